"""What all tasks of a cluster must have in common, and the first difference. Does not import TensorFlow."""

from collections.abc import Mapping
from typing import Any

from cluster.topology import HOSTS_FLAGS, Cluster
from errors import spelled

Settings = Mapping[str, Any]


def settings_of(cluster: Cluster, flags: Settings) -> Settings:
    """What a task has to share with the others: these flags, and who is in the cluster, by the names of flags."""
    hosts = {'ps': cluster.ps_hosts, 'worker': cluster.worker_hosts, 'controller': cluster.controller_hosts}
    return {**{HOSTS_FLAGS[job]: ','.join(named) or None for job, named in hosts.items()}, **flags}


def find_difference(settings: Mapping[str, Settings]) -> str | None:
    """Returns one line about the first setting in which two tasks differ; None if all agree.

    Args:
      settings: those of each task by its name. Only what two tasks both have is compared.
    """
    first: dict[str, tuple[str, Any]] = {}
    for task in sorted(settings):
        for name, value in settings[task].items():
            other, expected = first.setdefault(name, (task, value))
            if value != expected:
                both = f'{_said(name, expected)} in {other}, and {_said(name, value)} in {task}'
                return f'{both}: all processes of a cluster need the same; write the same --{name} for all'
    return None


def _said(name: str, value: Any) -> str:
    return f'no --{name}' if value is None else spelled(name, value)
