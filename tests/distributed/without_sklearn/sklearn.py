"""Stands for scikit-learn in processes of clusters, see processes.environment."""

raise ImportError('scikit-learn is not installed where users train')
