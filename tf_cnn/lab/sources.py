"""What `sweep`, `compare --run` and `cluster --each` measure. Does not import TensorFlow."""

import dataclasses
import re
import shlex
import string
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_cnn.cluster.topology import Shape
from tf_cnn.lab import against
from tf_cnn.lab.config import CompareOptions, FleetOptions, MeasureOptions, SweepOptions
from tf_cnn.lab.configurations import (
    HOST,
    PAIR,
    SHAPE,
    Axes,
    Configuration,
    Maker,
    check_placeholders,
    each_host,
    each_pair,
    grid,
    points_of,
    run_of_command,
    run_of_flags,
    turns,
)
from tf_cnn.lab.measure import make_laboratory, run_all
from tf_cnn.lab.output_patterns import Patterns, check_patterns
from tf_cnn.lab.rows import importance, make_rows
from tf_cnn.lab.runs import WITH
from tf_cnn.lab.sentence import answer
from tf_cnn.lab.sides import Side, read_side
from tf_cnn.lab.sweep_file import (
    SweepFile,
    axes_of,
    check_values,
    find_sweep_file,
    flag_words,
    read_grid,
    read_sweep_file,
)
from tf_cnn.launch.commands import read_slots, ssh_target
from tf_cnn.launch.config import REMOTE_FLAGS, ClusterOptions
from tf_cnn.launch.ssh import SshTarget, call_hosts, list_problems
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.managers.modes import MODES
from tf_cnn.plan.parsing import parse_argv, read_modes_of, split_argv
from tf_cnn.system.errors import RunError, UsageError, format_flag, plural, warn

# A command that starts another one over ssh, without the option that ends it with the connection.
_SSH = re.compile(r'(^|[;&|(])\s*ssh\s(?!.*-\w*tt)')
# The flags of `cluster` about other hosts; they may appear after --.
_HOST_FLAGS = ('hosts', 'hostfile', *REMOTE_FLAGS)
_FLAGS_OF_PAIRS = ('--exchange_only=true', '--variable_update=collective_all_reduce')


# ---- compare --run and --command -----------------------------------------------------------------


def measure_in_turns(options: CompareOptions) -> list[Side]:
    """Returns the results of each side. Prints the answer so far after each round."""
    texts = [format_flag('run', text) for text in options.run]
    texts += [format_flag('command', text) for text in options.command]
    if not 2 <= len(texts) <= len(string.ascii_lowercase):
        raise UsageError(
            f'{texts[0]}: --run and --command appear {plural(len(texts), "time")}; use them twice, '
            'for A and B, or more often'
        )
    axes = read_grid(options.grid)
    commands = makers_of_commands(options, axes)
    if options.run and commands and not (options.rate or options.secs):
        raise UsageError(
            f'{texts[-1]}: it has a wall time, and --run a rate; use --rate for its rate, or two '
            'commands'
        )
    argvs = [_read_run(text) for text in options.run]
    for argv in argvs:
        check_values(axes, '--grid', parse_argv(argv).params.given_flags)
    if not options.force:
        _check_same_work(argvs)
    makers: list[Maker] = [*map(run_of_flags, argvs), *commands]
    configurations = turns(makers, points_of(axes))
    letters = dict.fromkeys(each.name.partition('/')[0] for each in configurations)
    folder = options.output or tempfile.mkdtemp(prefix='tf_cnn_compare-')
    laboratory = make_laboratory('compare', folder, options.timeout_secs)

    def sides() -> list[Side]:
        results = laboratory.results
        return [read_side(str(results / letter), letter.upper()) for letter in letters]

    def so_far() -> str:
        rows = make_rows(sides(), against.same_setting, force=options.force)
        return answer(sorted(rows, key=importance))

    if failures := run_all(laboratory, configurations, options.rounds, so_far):
        configuration, outcome = failures[0]
        again = f'; to try this run again, delete {outcome.source}' if options.output else ''
        text = dict(zip(letters, texts, strict=True))[configuration.name[0]]
        raise RunError(f'{text}: {outcome.reason}{again}')
    return sides()


def makers_of_commands(
    options: MeasureOptions, axes: Axes, target: SshTarget | None = None
) -> list[Maker]:
    """Checks --command and what is read from its output; warns about commands that go on.

    target: of the hosts where they run.
    """
    patterns: Patterns = {name: getattr(options, name) for name in ('rate', 'secs', 'record')}
    for name, texts in patterns.items():
        if texts and not options.command:
            text = format_flag(name, texts[0])
            raise UsageError(f'{text}: it has no effect without --command; use both')
    check_patterns(patterns)
    for command in options.command:
        check_placeholders(command, axes, has_hosts=target is not None)
        if _SSH.search(command):
            warn(
                f'{format_flag("command", command)}: what it starts on the other machine goes on '
                'there after Ctrl-C and --timeout_secs; use ssh -tt'
            )
    return [run_of_command(command, patterns, target) for command in options.command]


def maker_of_command(
    options: MeasureOptions,
    run_argv: Sequence[str],
    axes: Axes,
    subcommand: str,
    target: SshTarget | None,
) -> Maker | None:
    """Returns None without --command; raises UsageError for several, or with flags of a run."""
    words = [*run_argv, *(format_flag('command', text) for text in options.command[1:])]
    if options.command and words:
        raise UsageError(
            f'{words[0]}: {subcommand} runs one command, with its flags within --command'
        )
    return next(iter(makers_of_commands(options, axes, target)), None)


def _read_run(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f'{format_flag("run", text)}: it is not a command line ({error}); close its quotes'
        ) from None


def _check_same_work(argvs: Sequence[Sequence[str]]) -> None:
    """Raises UsageError if the flags alone say that the runs do different work. Other differences
    show when all have run.
    """
    params = [parse_argv(argv).params for argv in argvs]
    for name, values in {
        'model': [each.run.model for each in params],
        'role': [each.role.value for each in params],
    }.items():
        if len({*values}) > 1:
            raise UsageError(
                f'--run: A and B measure different work: {name} {" and ".join(values)}; compare '
                'runs of the same work, or use --force'
            )


# ---- sweep ---------------------------------------------------------------------------------------


def read_sweep(name: str | None, grid: Sequence[str]) -> SweepFile:
    """Reads a file, or the sweep of this name that comes with the program, or --grid."""
    if bool(name) == bool(grid):
        problem = f'{name} and --grid' if name else 'neither a FILE nor --grid'
        raise UsageError(f'sweep: {problem}: use one of them, see sweep --help')
    if name:
        return read_sweep_file(find_sweep_file(name))
    return SweepFile(grid=read_grid(grid)[0])


def plan_sweep(
    file: SweepFile, options: SweepOptions, run_argv: Sequence[str], where: str = '--grid'
) -> tuple[list[Configuration], dict[str, list[str]]]:
    """Returns the configurations, and the captions of those that cannot run, by the reason.

    Args:
      options: with the keys of the file.
      run_argv: the flags of all runs, and those about hosts.
      where: the source of the grid; errors begin with it.
    """
    axes = axes_of(file, where)
    argv, host_flags = split_host_flags(run_argv)
    cluster = dataclasses.replace(ClusterOptions(), **host_flags)
    flag, slots = read_slots(cluster)
    hosts = slots if flag else {}
    target = ssh_target(cluster) if hosts else None
    make = maker_of_command(options, argv, axes, 'sweep', target)
    if not make:
        flags = [*flag_words(file.flags), *argv]
        read_modes_of([*flags, *(f'--{n}={v}' for axis in axes for n in axis for v in axis[n])])
        check_values(axes, where, split_argv(argv))
        if not hosts and _needs_device(axes, split_argv(flags)):
            warn('this machine has no GPU: all runs get --device=cpu')
            flags.append('--device=cpu')
        make = run_of_flags(flags, hosts, _remote_flags(cluster))
    return grid(axes, make, [*hosts])


def split_host_flags(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Splits the words after -- into flags of runs, and {name: value} of the flags about hosts."""
    flags, host_flags = list[str](), dict[str, Any]()
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix('-').removeprefix('-').partition('=')
        if word.startswith('-') and name in _HOST_FLAGS:
            host_flags[name] = value if equals else next(words, '')
        else:
            flags.append(word)
    return flags, host_flags


def _needs_device(axes: Axes, flags: Mapping[str, object]) -> bool:
    """Whether runs need --device=cpu: those on several devices, and those with a controller."""
    values = [(name, value) for axis in axes for name in axis for value in axis[name]]
    values += [(name, str(value)) for name, value in flags.items()]
    if has_nvidia_gpu() or any(name == 'device' for name, _ in values):
        return False
    return any(
        (name == SHAPE and Shape.parse(value).devices > 1)
        or (name == 'variable_update' and value in MODES and MODES[value].has_controller)
        for name, value in values
    )


def format_left_out(left_out: Mapping[str, Sequence[str]], most: int = 3) -> Iterator[str]:
    for reason, captions in left_out.items():
        listed = [*captions[:most], *([f'{n} more'] if (n := len(captions) - most) > 0 else [])]
        number = f'{len(captions)} combination{"s" if len(captions) > 1 else ""}'
        yield f'left out {number}: {reason} ({"; ".join(listed)})'


# ---- cluster --each and --pairs ------------------------------------------------------------------


def measure_hosts(
    options: FleetOptions, cluster: ClusterOptions, run_flags: Sequence[str]
) -> tuple[Side, bool]:
    """Runs the flags or the command on each host, or on each pair, in rounds.

    Returns the results, and whether a run failed.

    Raises:
      RunError: no run succeeded.
      UsageError: the flags cannot be used, or the names do not stand for different hosts.
    """
    flag = '--pairs' if options.pairs else '--each'
    names = [*read_slots(cluster)[1]]
    if len(names) < 2:
        raise UsageError(f'{flag}: it compares hosts; use --hosts with two hosts or more')
    axes = read_grid(options.grid)
    target = ssh_target(cluster)
    make = maker_of_command(options, run_flags, axes, flag, target)
    if not make:
        check_values(axes, '--grid', split_argv(run_flags))
        make = _make_own_runs(options, cluster, run_flags)
    make_list = each_pair if options.pairs else each_host
    configurations = make_list(make, names, points_of(axes))
    default = time.strftime(f'{flag.strip("-")}-%Y%m%d-%H%M%S')
    laboratory = make_laboratory(f'cluster {flag}', options.output or default, options.timeout_secs)
    problems = find_unusable_hosts(names, target, needs_tensorflow=not options.command)
    if len(problems) == len(names):
        raise RunError(*list_problems(problems))
    warn(*list_problems(problems))
    refused = dict[str, str]()
    for each in configurations:
        hosts = (each.setting.get(PAIR) or each.setting[HOST]).split(WITH)
        if reasons := [problems[name] for name in hosts if name in problems]:
            refused[each.name] = '; '.join(reasons)
    failures = run_all(laboratory, configurations, options.rounds, refused=refused)
    return read_side(str(laboratory.results)), bool(failures)


def _make_own_runs(
    options: FleetOptions, cluster: ClusterOptions, run_flags: Sequence[str]
) -> Maker:
    flag_text = parse_argv(run_flags).params.given_flags.get('variable_update')
    if options.pairs and flag_text:
        raise UsageError(f'{flag_text}: --pairs has its own ({_FLAGS_OF_PAIRS[1]}); remove it')
    flags = [*run_flags, *(_FLAGS_OF_PAIRS if options.pairs else ())]
    return run_of_flags(flags, None, _remote_flags(cluster))


def _remote_flags(cluster: ClusterOptions) -> list[str]:
    return [format_flag(name, value) for name in REMOTE_FLAGS if (value := getattr(cluster, name))]


def find_unusable_hosts(
    names: Sequence[str], target: SshTarget, *, needs_tensorflow: bool = True
) -> dict[str, str]:
    """Returns why hosts cannot be used: name -> reason.

    Raises UsageError if two of the names lead to hosts of one name: they would share the cores of
    one machine, or their results could not be told apart.
    """
    problems: dict[str, str] = {}
    names_by_hostname: dict[str, str] = {}
    layout = {name: [('worker', 0)] for name in names}
    for host, reply in [*call_hosts(layout, target, needs_tensorflow=needs_tensorflow)]:
        if isinstance(reply, RunError):
            problems[host.name] = str(reply)
            continue
        hostname = str(reply['hostname'])
        if (other := names_by_hostname.setdefault(hostname, host.name)) != host.name:
            raise UsageError(
                f'--hosts: {other} and {host.name} are both the host {hostname}; list each machine '
                'once, and give each its own host name'
            )
        if hostname.partition('.')[0] != host.name.rpartition('@')[2].partition('.')[0]:
            print(f'{host.name} is the host {hostname}', file=sys.stderr)
    return problems
