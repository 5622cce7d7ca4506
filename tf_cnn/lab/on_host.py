"""Runs a command on hosts at the same time, over ssh, each by tf_cnn/lab/probe.py:

    python -m tf_cnn.lab.on_host HOSTS SSH WORDS...

In the last of WORDS, {rank}, {size} and {first} stand for the number of the host, how many there
are, and the name of the first, whose output is the result. The rank follows.
"""

import json
import os
import sys

from tf_cnn.launch.hosts import Command
from tf_cnn.launch.launcher import launch
from tf_cnn.launch.ssh import SshHost, SshTarget


def main(names: str, ssh: str, *words: str) -> int:
    target = SshTarget(*json.loads(ssh))
    hosts = [SshHost(name, target) for name in names.split(',')]
    first = hosts[0].name.rpartition('@')[2]
    *program, line = words
    commands = []
    for rank, host in enumerate(hosts):
        text = line.replace('{rank}', str(rank)).replace('{size}', str(len(hosts)))
        argv = [*program, text.replace('{first}', first), str(rank)]
        env = host.environment(os.environ) | {'PYTHONPATH': target.folder}
        commands.append(Command(host.name, argv, env, has_result=not rank, host=host))
    return launch(commands)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
