"""Clusters that flags describe."""

from tf_cnn.cluster.topology import Cluster

# The source that they report.
FLAGS = 'the flags'
PS, WORKERS = ('10.0.0.1:2222',), ('10.0.0.2:2222', '10.0.0.3:2222')


def controlled(job: str, index: int) -> Cluster:
    """Returns a cluster with a controller, seen from one of its tasks."""
    return Cluster((), WORKERS, job, index, FLAGS, ('10.0.0.9:2222',))
