"""Stands for scikit-learn in processes of clusters, see environment() in tests.support.programs."""

raise ImportError('scikit-learn is not installed where users train')
