"""The processes that tests/support/hosts.py starts in new namespaces: `host_processes.py
host|switch SETTINGS`.

Both get their settings as JSON, and print their process id, then `ready` when their files are
mounted. A `host` is the first process of a host: when a line comes it starts sshd, prints `up` when
that answers, and reaps what others leave. A `switch` holds the network between the hosts. Needs
nothing but Python, for a quick start.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Folders in which processes of one machine meet. Each host has its own.
OWN_FOLDERS = ('/dev/shm', '/run', '/tmp')
_SSH_PORT = 22
# Of linux/sched.h and linux/prctl.h.
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(*arguments: str) -> None:
    """Calls mount(8), which cannot write its table in /run."""
    subprocess.run(['mount', '--no-mtab', *arguments], check=True)


def unshare(flags: int) -> None:
    """Moves this process into new namespaces, one for its mounts included."""
    if _LIBC.unshare(flags | _CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), 'unshare')


def own_folders(shared: Sequence[str]) -> None:
    """Mounts an empty folder over each of OWN_FOLDERS. What the hosts share stays visible in it."""
    for folder in OWN_FOLDERS:
        # The new folder can only be filled from the old one, so it lies elsewhere at first.
        fresh = '/mnt'
        mount('-t', 'tmpfs', '-o', 'mode=1777', 'tmpfs', fresh)
        for path in shared:
            if path.startswith(f'{folder}/'):
                Path(fresh + path.removeprefix(folder)).mkdir(parents=True, exist_ok=True)
                mount('--bind', path, fresh + path.removeprefix(folder))
        mount('--move', fresh, folder)
    Path('/run/sshd').mkdir()


def be_host(settings: Mapping[str, Any]) -> None:
    """Runs the first process of a host, for ever, as a child of this process."""
    unshare(_CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET)
    if pid := os.fork():
        print(pid, flush=True)
        os.waitpid(pid, 0)
        return
    # All processes of the host end with this one.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Mounts are invisible outside.
    mount('--make-rprivate', '/')
    mount('-t', 'proc', 'proc', '/proc')
    socket.sethostname(settings['name'])
    own_folders(settings['shared'])
    mount_files(settings)
    print('ready', flush=True)
    if not sys.stdin.readline():
        return
    sshd = subprocess.Popen(
        settings['sshd'], stdin=subprocess.DEVNULL, env={'PATH': os.environ['PATH']}
    )
    while sshd.poll() is None:
        with socket.socket() as probe:
            if not probe.connect_ex(('127.0.0.1', _SSH_PORT)):
                print('up', flush=True)
                break
        time.sleep(0.005)
    else:
        sys.exit(f'sshd ended with {sshd.returncode}; see {settings["sshd"][-1]}')
    while True:
        try:
            os.wait()
        except ChildProcessError:
            # sshd was ended by a test. The host goes on without it.
            time.sleep(0.1)


def mount_files(settings: Mapping[str, Any]) -> None:
    """Mounts files and folders over those of the machine: {there: here}."""
    for there, here in settings['files'].items():
        mount('--bind', here, there)


def be_switch(settings: Mapping[str, Any]) -> None:
    """Holds the network, for ever."""
    unshare(_CLONE_NEWNET)
    mount('--make-rprivate', '/')
    mount_files(settings)
    print(os.getpid(), 'ready', sep='\n', flush=True)
    while True:
        signal.pause()


if __name__ == '__main__':
    {'host': be_host, 'switch': be_switch}[sys.argv[1]](json.loads(sys.argv[2]))
