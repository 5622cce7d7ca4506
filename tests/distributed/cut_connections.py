"""Cuts all connections of a living worker, and measures how long the tasks of its cluster take to
end.

    python -m tests.distributed.cut_connections --trials=40 --at_once=4

Each trial has a private network. `ss -K` resets the connections of worker 1 once, or the loopback
interface is down for a minute. Prints a line for each trial: the time to the end of the last task.
Training may also go on: TensorFlow then had no call on the connections, and connects again.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.distributed.processes import Processes
from tests.distributed.scenarios import ENDLESS, cluster_of, errors_of, start_under_way
from tf_cnn.cluster.private_network import PrivateNetwork
from tf_cnn.system.tether import die_with_parent

MODES = (
    'parameter_server',
    'collective_all_reduce',
    'distributed_replicated',
    'staged',
    'distributed_all_reduce',
)
CUTS = ('ss', 'link')
DOWN_SECS = 60.0
# How long tasks may take to end after the limit of a step.
MARGIN_SECS = 60.0
# In which training that goes on prints a step.
PROGRESS_SECS = 30.0


@dataclass(frozen=True)
class Trial:
    """secs: from the cut to the end of each task; errors: what each has said; both are empty if
    training goes on.
    """

    secs: dict[str, float]
    errors: dict[str, list[str]]


def run(network: PrivateNetwork, *words: str) -> str:
    """Runs a program in the network, and returns its output."""
    command = die_with_parent(words, network=network.pid)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def reset_connections(network: PrivateNetwork, pid: int) -> int:
    """Resets all connections of a process; returns their number."""
    lines = run(network, 'ss', '-HtnpO', 'state', 'established').splitlines()
    ends = [re.findall(r':(\d+)(?=\s)', line)[:2] for line in lines if f'pid={pid},' in line]
    for here, there in ends:
        run(
            network,
            'ss',
            '-K',
            f'( sport = :{here} and dport = :{there} ) or ( sport = :{there} and dport = :{here} )',
        )
    return len(ends)


def cut(network: PrivateNetwork, processes: Processes, how: str) -> None:
    if how == 'ss':
        assert reset_connections(network, processes.tasks['worker 1'].pid), (
            'worker 1 has no connection'
        )
        return
    run(network, 'ip', 'link', 'set', 'lo', 'down')
    processes.still_running(DOWN_SECS)
    run(network, 'ip', 'link', 'set', 'lo', 'up')


def try_once(mode: str, how: str, limit_secs: float, folder: Path) -> Trial:
    """Runs a cluster, cuts the connections of its worker 1, and waits until all tasks have ended,
    if they do.
    """
    network = PrivateNetwork()
    try:
        flags = ENDLESS, f'--step_timeout_secs={limit_secs}'
        with cluster_of(mode, folder, *flags, network=network.pid) as processes:
            start_under_way(processes)
            began = time.monotonic()
            cut(network, processes, how)
            left = processes.still_running(limit_secs + MARGIN_SECS)
            if left:
                lines = processes.trainers[0].out
                processes.still_running(PROGRESS_SECS)
                assert processes.trainers[0].out != lines, f'{left} neither end nor go on'
                return Trial({}, {})
            tasks = processes.tasks.items()
            return Trial(
                {name: task.ended_at - began for name, task in tasks},
                {name: errors_of(task) for name, task in tasks},
            )
    finally:
        network.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--trials', type=int, default=40)
    parser.add_argument('--at_once', type=int, default=2)
    parser.add_argument('--step_timeout_secs', type=float, default=20.0)
    options = parser.parse_args()
    # A process for each trial, since a task dies with the thread that started it.
    running: set[int] = set()
    for number in range(options.trials):
        if len(running) == options.at_once:
            running.discard(os.wait()[0])
        if (pid := os.fork()) == 0:
            mode = MODES[number % len(MODES)]
            how = CUTS[number // len(MODES) % 4 == 3]
            with tempfile.TemporaryDirectory() as folder, open(os.devnull, 'w') as logs:
                out, sys.stdout = sys.stdout, logs
                try:
                    trial = try_once(mode, how, options.step_timeout_secs, Path(folder))
                    unnamed = [
                        name
                        for name, lines in trial.errors.items()
                        if not any('127.0.0.1' in x for x in lines)
                    ]
                    line = 'training goes on'
                    if trial.secs:
                        line = (
                            f'{max(trial.secs.values()):6.1f} s, without a name: '
                            f'{unnamed or "none"}'
                        )
                except AssertionError as error:
                    line = f'failed: {error}'
            print(f'{number:3} {mode:24} {how:5} {line}', file=out, flush=True)
            os._exit(0)
        running.add(pid)
    while running:
        running.discard(os.wait()[0])


if __name__ == '__main__':
    main()
