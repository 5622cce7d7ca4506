"""An isolated network for the processes of a cluster on this machine. Linux only.

TensorFlow's servers listen on all addresses of a machine (0.0.0.0 in grpc_server_lib.cc), whatever
address the cluster names. So the processes share a network namespace that has only a loopback
interface (network_namespaces(7)). A small process keeps the namespace while the launcher lives;
tf_cnn/system/tether.py enters it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

# From linux/sched.h, linux/sockios.h and linux/if.h.
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_READY = 'ready'
# The kernel may add these interfaces to a new namespace. They are down.
_TUNNELS = {
    'tunl0',
    'gre0',
    'gretap0',
    'erspan0',
    'ip_vti0',
    'ip6_vti0',
    'sit0',
    'ip6tnl0',
    'ip6gre0',
}


class PrivateNetwork:
    """A network namespace, until close(). Raises OSError if the system does not allow one.

    pid is a process in the namespace. Create it on the main thread: the namespace ends with the
    thread.
    """

    def __init__(self) -> None:
        # Not at the top: the process that keeps the namespace runs this file without packages.
        from tf_cnn.system.tether import die_with_parent

        self._keeper = subprocess.Popen(
            die_with_parent([sys.executable, '-I', '-S', __file__]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Keep Ctrl-C for the launcher.
            start_new_session=True,
            text=True,
        )
        self.pid = self._keeper.pid
        assert self._keeper.stdout
        answer = self._keeper.stdout.readline().strip()
        # Some systems let a user create namespaces, but not enter them.
        if answer == _READY:
            entry_check = subprocess.run(
                die_with_parent(['true'], network=self.pid), stderr=subprocess.PIPE, check=False
            )
            if entry_check.returncode:
                answer = 'a process cannot enter it'
        if answer != _READY:
            self.close()
            raise OSError(answer)

    def close(self) -> None:
        """Releases the namespace, which ends with its last process."""
        self._keeper.communicate()


def is_private() -> bool:
    """Whether the network of this process has only a loopback interface."""
    return {name for _, name in socket.if_nameindex()} <= {'lo', *_TUNNELS}


def _enter_new_network() -> None:
    """Moves this process into a new network namespace with a loopback interface."""
    uid, gid = os.geteuid(), os.getegid()
    # Only root can do this without a user namespace. In a user namespace, root would lose its
    # access to the files of other users.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET | (_CLONE_NEWUSER if uid else 0)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if uid:
        Path('/proc/self/uid_map').write_text(f'{uid} {uid} 1')
        Path('/proc/self/setgroups').write_text('deny')
        Path('/proc/self/gid_map').write_text(f'{gid} {gid} 1')
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack('16sH22x', b'lo', _IFF_UP))


def _main() -> None:
    try:
        _enter_new_network()
    except OSError as error:
        print(error.strerror, flush=True)
        return
    print(_READY, flush=True)
    sys.stdin.read()


if __name__ == '__main__':
    _main()
