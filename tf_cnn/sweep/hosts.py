"""Places the runs of a sweep on other hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tf_cnn.launch.config import REMOTE_FLAGS
from tf_cnn.launch.host_layout import lay_out_tasks, read_hosts_flag
from tf_cnn.managers.modes import MODES
from tf_cnn.sweep.configurations import Configuration, ExcludedCombination, SweepPlan
from tf_cnn.system.errors import UsageError, format_flag

# The flags of `cluster` about other hosts; they may appear after --.
_HOST_FLAGS = ('hosts', *REMOTE_FLAGS)


def split_host_flags(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Splits the words after -- into flags of runs, and {name: value} of the flags about hosts."""
    flags, host_flags = [], {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix('-').removeprefix('-').partition('=')
        if word.startswith('-') and name in _HOST_FLAGS:
            host_flags[name] = value if equals else next(words, '')
        else:
            flags.append(word)
    return flags, host_flags


def place_on_hosts(plan: SweepPlan, host_flags: Mapping[str, str]) -> SweepPlan:
    """Returns the plan with every run on other hosts; leaves out what does not fit there."""
    if not host_flags:
        return plan
    if 'hosts' not in host_flags:
        name, value = next(iter(host_flags.items()))
        raise UsageError(f'{format_flag(name, value)}: it needs other hosts; add --hosts')
    configurations, left_out = [], [*plan.left_out]
    for configuration in plan.configurations:
        try:
            hosts = _select_hosts(configuration, host_flags['hosts'])
            launch = tuple(
                format_flag(name, value) for name, value in {**host_flags, 'hosts': hosts}.items()
            )
            configurations.append(replace(configuration, launch=launch))
        except UsageError as error:
            left_out.append(ExcludedCombination(configuration.varied, str(error)))
    if not configurations:
        raise UsageError(left_out[-1].reason)
    return replace(plan, configurations=tuple(configurations), left_out=tuple(left_out))


def _select_hosts(configuration: Configuration, hosts: str) -> str:
    """Returns the first hosts with slots for all workers, and the hosts without slots."""
    slots = read_hosts_flag(hosts)
    num_unplaced, entries = configuration.shape.workers, []
    for entry, count in zip(hosts.split(','), slots.values(), strict=True):
        if num_unplaced > 0 or count == 0:
            entries.append(entry)
        num_unplaced -= 1 if count is None else count
    selected_hosts = ','.join(entries)
    controllers = int(MODES[configuration.variable_update].has_controller)
    lay_out_tasks(
        read_hosts_flag(selected_hosts),
        format_flag('hosts', hosts),
        configuration.shape.workers,
        configuration.shape.num_ps,
        controllers,
    )
    return selected_hosts
