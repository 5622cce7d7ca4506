"""The settings that all tasks of a cluster must share, and how two of them differ. Does not import TensorFlow."""

from collections.abc import Mapping
from typing import Any

from cluster.topology import HOSTS_FLAGS, Cluster
from errors import format_flag

Settings = Mapping[str, Any]


def settings_of(cluster: Cluster, flags: Settings) -> Settings:
    """Returns the settings that a task must share with the others, by flag: these flags, and the hosts."""
    hosts = {'ps': cluster.ps_hosts, 'worker': cluster.worker_hosts, 'controller': cluster.controller_hosts}
    return {**{HOSTS_FLAGS[job]: ','.join(named) or None for job, named in hosts.items()}, **flags}


def find_difference(settings: Mapping[str, Settings]) -> str | None:
    """Returns one line about the first setting that two tasks both have and that differs; None if all agree.

    A name of several words is no flag: its value counts such things in --data_dir.
    """
    first: dict[str, tuple[str, Any]] = {}
    for task in sorted(settings):
        for name, value in settings[task].items():
            other, expected = first.setdefault(name, (task, value))
            if value != expected:
                both = f'{_written(name, expected)} in {other}, and {_written(name, value)} in {task}'
                advice = 'give each the same data' if ' ' in name else f'write the same --{name} for all'
                return f'{both}: all processes of a cluster need the same; {advice}'
    return None


def _written(name: str, value: Any) -> str:
    if ' ' in name:
        return f'--data_dir with {value} {name}'
    return f'no --{name}' if value is None else format_flag(name, value)
