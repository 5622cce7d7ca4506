"""The TensorFlow server through which other tasks reach this process."""

import contextlib
import ctypes
import os
import socket
import sys

import tensorflow.compat.v1 as tf

from cluster.topology import HOSTS_FLAGS, Cluster
from errors import RunError

# Keys are the numbers of M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD in glibc's malloc.h.
_MALLOC_OPTIONS = {-4: 0, -1: 2**31 - 1, -2: 64 << 20}
_NO_PROXY = 'no_grpc_proxy'
_started: list[tf.train.Server] = []


def start_server(cluster: Cluster, config: tf.ConfigProto) -> tf.train.Server:
    """Starts the server of this task. It listens until the process ends.

    Raises:
      RunError: its port is in use.
    """
    # Tasks connect directly to each other, even if a proxy is set for other hosts.
    direct = [os.environ.get(_NO_PROXY, ''), *(task.host.rpartition(':')[0] for task in cluster.tasks)]
    os.environ[_NO_PROXY] = ','.join(dict.fromkeys(filter(None, direct)))
    port = int(cluster.own.host.rpartition(':')[2])
    # TensorFlow would silently share the port with another process that listens there.
    with contextlib.closing(_new_socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(AttributeError, OSError):
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(('', port))
        except OSError as error:
            raise RunError(
                f'--{HOSTS_FLAGS[cluster.job]}: port {port} of {cluster.own} cannot be used '
                f'({os.strerror(error.errno or 0)}); end the process that uses it, or write another port'
            ) from error
    _keep_memory()
    server = tf.train.Server(
        tf.train.ClusterSpec(cluster.spec), job_name=cluster.job, task_index=cluster.index, config=config
    )
    _started.append(server)
    return server


def _new_socket() -> socket.socket:
    """Returns a socket for IPv6 and IPv4, or for IPv4 if the kernel lacks IPv6 (socket.has_ipv6 is about Python)."""
    try:
        return socket.socket(socket.AF_INET6)
    except OSError:
        return socket.socket(socket.AF_INET)


def _keep_memory() -> None:
    """Makes glibc keep freed memory.

    Each step receives all variables into new buffers. Mapping and clearing large buffers each time took a third of the
    processor time of an exchange (AlexNet, loopback).
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOC_OPTIONS.items():
            libc.mallopt(parameter, value)


def leave(exit_code: int) -> None:
    """Ends the process at once if it has a server: the server's threads would crash while Python shuts down."""
    if _started:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
