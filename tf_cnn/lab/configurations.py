"""What is measured: each configuration is a process that prints its document. Does not import
TensorFlow.
"""

import itertools
import json
import os
import re
import shlex
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.topology import Shape
from tf_cnn.lab.output_patterns import Patterns
from tf_cnn.lab.runs import WITH
from tf_cnn.launch.host_layout import HostSlots, select_hosts
from tf_cnn.launch.ssh import SshTarget
from tf_cnn.machine.gpus import count_visible_gpus
from tf_cnn.managers.modes import Topology
from tf_cnn.plan.params import Params, output_flags
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import check_launch
from tf_cnn.system.errors import STDIO, UsageError, format_flag, plural
from tf_cnn.system.place import PROGRAM

SHAPE = 'shape'
# Names in settings of hosts.
HOST, PAIR = 'host', 'pair'
PROBE = 'tf_cnn.lab.probe'
# What a command on hosts is told: the number of the host, how many there are, the first one's name.
HOST_FIELDS = ('rank', 'size', 'first')
_UNSAFE = re.compile(r'[^A-Za-z0-9.+_-]+')
_MAX_NAME_LENGTH = 80
# Names in the document of a command that are not for its placeholders.
_RESERVED = ('command', 'rate', 'secs', 'record', PAIR)
_PLACEHOLDER = re.compile(r'\{([A-Za-z_][\w.-]*)\}', re.ASCII)
# A word that no command has.
_MARK = 'tf-cnn-value'

# A point of a grid: the values of flags, the shape, placeholders, and variables in capitals.
Setting = Mapping[str, str]
# The names of a grid with their values; several grids are measured one after the other.
Axes = Sequence[Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Configuration:
    """A process that runs once in each round, and prints its document.

    Attributes:
      name: its results are NAME.1.json, NAME.2.json ...; it may begin with a folder.
      argv: the command line.
      setting: what tells it apart, for lines about its progress.
      given_flags: as written, for the document of a failure.
      together: configurations with this word run at the same time; '': it runs alone.
      has_job: it gets the variables of a job, by which srun and mpirun find their nodes. A run of
        this program would take them for its own cluster.
    """

    name: str
    argv: Sequence[str]
    setting: Setting = field(default_factory=dict)
    given_flags: Mapping[str, str] = field(default_factory=dict)
    shape: str = '1*1'
    together: str = ''
    has_job: bool = False

    @property
    def caption(self) -> str:
        return caption(self.setting) or self.name


# Makes the configuration of a setting on these hosts, or on this machine, without a name. Raises
# UsageError if it cannot run.
Maker = Callable[[Setting, Sequence[str]], Configuration]


def caption(setting: Setting) -> str:
    return ' '.join(f'{name}={value}' for name, value in setting.items())


# ---- one configuration ---------------------------------------------------------------------------


def run_of_flags(
    argv: Sequence[str], slots: HostSlots | None = None, remote_flags: Sequence[str] = ()
) -> Maker:
    """This program. A setting has flags, a shape, and environment variables in capitals.

    Args:
      argv: the flags of all settings.
      slots: of the hosts; None if their numbers have no effect.
      remote_flags: of `cluster`, about the program on the hosts.
    """

    def make(setting: Setting, hosts: Sequence[str]) -> Configuration:
        shape = Shape.parse(setting[SHAPE]) if SHAPE in setting else None
        variables = [f'{name}={value}' for name, value in setting.items() if name.isupper()]
        flags = [(n, v) for n, v in setting.items() if n not in (SHAPE, PAIR) and not n.isupper()]
        flags += [('num_gpus', str(shape.devices))] if shape else []
        words = [*argv, *(format_flag(name, value) for name, value in flags)]
        params = parse_argv(words).params
        _check_flags_of_runs(params)
        if not hosts:
            _check_gpus(params)
        # The results name the hosts of both workers of a pair.
        shape = shape or Shape(1 + (PAIR in setting), params.devices.num_gpus or 1)
        mode = params.variables.mode
        if reason := shape.unsupported_reason(mode):
            raise UsageError(reason)
        if 'all_reduce_spec' in setting and params.variables.is_nccl_on_cpu(params):
            raise UsageError(f'{params.flag_text("all_reduce_spec")}: NCCL sums between GPUs')
        is_alone = shape.topology(mode) is Topology.LOCAL
        check_launch(params, is_single_process=is_alone, is_local=not hosts)
        cluster = [] if is_alone and not hosts else ['cluster']
        if hosts:
            selected = select_hosts(
                {name: (slots or {}).get(name) for name in hosts},
                shape.workers,
                shape.num_ps,
                int(mode.has_controller),
            )
            cluster += [format_flag('hosts', selected), *remote_flags]
        if cluster:
            servers = [format_flag('ps', shape.num_ps)] if shape.num_ps or hosts else []
            cluster += [format_flag('workers', shape.workers), *servers, '--']
        return Configuration(
            '',
            [
                *(['env', *variables] if variables else ()),
                *PROGRAM,
                *cluster,
                *words,
                format_flag('result_file', STDIO),
            ],
            setting,
            dict(params.given_flags),
            str(shape),
            has_job=bool(hosts),
        )

    return make


def _check_flags_of_runs(params: Params) -> None:
    for name, flag_text in params.given_flags.items():
        if name == 'repeat' or name in ROLE_FLAGS:
            raise UsageError(f'{flag_text}: each run is one process or cluster; remove it')
        if name in output_flags() and params.writes_to(name):
            raise UsageError(
                f'{flag_text}: all runs would use the same path; remove it, and use --output for '
                'the results'
            )


def _check_gpus(params: Params) -> None:
    count, devices = count_visible_gpus(os.environ), params.devices
    if count and devices.device != 'cpu' and devices.num_gpus > count:
        raise UsageError(f'{params.flag_text("num_gpus")}: {plural(count, "GPU")} here')


def run_of_command(command: str, patterns: Patterns, target: SshTarget | None = None) -> Maker:
    """Any command. A setting fills its {name}s, and names in capitals are environment variables.

    Other braces stay as they are, so that awk '{print $1}' needs no more quotes. On hosts the
    command runs on all of them at once, and HOST_FIELDS are filled in there.
    """

    def make(setting: Setting, hosts: Sequence[str]) -> Configuration:
        line = _fill(command, setting)
        variables = {name: value for name, value in setting.items() if name.isupper()}
        # As on the command line.
        texts = {name: f' --{name}='.join(each) for name, each in patterns.items() if each}
        flags = {'command': command, **texts, **setting}
        task = json.dumps({'flags': flags, 'patterns': patterns, 'variables': variables})
        argv = [sys.executable, '-P', '-m', PROBE, task, line, '0']
        if hosts and target:
            ssh = json.dumps([target.ssh, target.python, target.folder, target.working_folder])
            there = [target.python, '-P', '-m', PROBE, task, line]
            argv = [sys.executable, '-P', '-m', 'tf_cnn.lab.on_host', ','.join(hosts), ssh, *there]
        flag_texts = {name: format_flag(name, value) for name, value in flags.items()}
        return Configuration('', argv, setting, flag_texts, 'command', has_job=True)

    return make


def check_placeholders(command: str, axes: Axes, *, has_hosts: bool = False) -> None:
    """Raises UsageError for names and values that a command cannot have."""
    flag_text = format_flag('command', command)
    for name in dict.fromkeys(name for axis in axes for name in axis):
        if name in _RESERVED or (has_hosts and name in HOST_FIELDS):
            raise UsageError(f'--grid={name}=...: this name has a meaning; use another one')
        if any(name not in axis for axis in axes):
            raise UsageError(f'{name}: some [[grids]] or [[include]] have no value for it; add one')
        if not name.isupper() and f'{{{name}}}' not in command:
            raise UsageError(
                f'{flag_text}: it has no {{{name}}}; put it where the value of {name} belongs, or '
                f'use --grid={name.upper()}=... for an environment variable'
            )
    for name, value in ((n, v) for axis in axes for n in axis for v in axis[n] if not n.isupper()):
        if shlex.quote(value) == value:
            continue
        # Within quotes of the command, the quotes of the value would be part of it.
        try:
            words = shlex.split(command.replace(f'{{{name}}}', _MARK))
            filled = shlex.split(_fill(command, {name: value}))
        except ValueError:
            words, filled = [_MARK], []
        if filled != [word.replace(_MARK, value) for word in words]:
            raise UsageError(
                f'{flag_text}: {{{name}}} stands within quotes, and {value!r} needs its own; '
                f'remove the quotes around {{{name}}}'
            )


def _fill(command: str, setting: Setting) -> str:
    """Fills all names at once, since values may have braces."""
    return _PLACEHOLDER.sub(
        lambda match: shlex.quote(setting[match[1]]) if match[1] in setting else match[0], command
    )


# ---- lists of configurations ---------------------------------------------------------------------


def points_of(axes: Axes) -> list[dict[str, str]]:
    return [
        dict(zip(each, values, strict=True))
        for each in axes
        for values in itertools.product(*each.values())
    ]


def turns(makers: Sequence[Maker], points: Sequence[Setting]) -> list[Configuration]:
    """A, B ... in turns, at each point of a grid: a folder of results for each side."""
    return [
        replace(
            make(point, ()),
            name=f'{letter}/{_file_name(letter, point)}',
            setting={'side': letter.upper(), **point},
        )
        for point in points
        for letter, make in zip(string.ascii_lowercase, makers, strict=False)
    ]


def grid(
    axes: Axes, make: Maker, hosts: Sequence[str] = ()
) -> tuple[list[Configuration], dict[str, list[str]]]:
    """All points of all grids, and the captions of those that cannot run, by the reason."""
    by_argv: dict[str, Configuration] = {}
    left_out: dict[str, list[str]] = {}
    points = points_of(axes)
    for point in points:
        try:
            configuration = make(point, hosts)
            by_argv.setdefault(shlex.join(configuration.argv), configuration)
        except UsageError as error:
            left_out.setdefault(str(error), []).append(caption(point))
    if not by_argv:
        raise UsageError(f'no combination can run: {next(iter(left_out))}')
    names = dict.fromkeys(name for point in points for name in point)
    varied = [name for name in names if len({point.get(name) for point in points}) > 1]
    width = len(str(len(by_argv)))
    configurations = []
    for number, configuration in enumerate(by_argv.values(), 1):
        setting = {name: configuration.setting.get(name, 'default') for name in varied or names}
        name = _file_name(f'{number:0{width}d}', setting)[:_MAX_NAME_LENGTH]
        configurations.append(replace(configuration, name=name, setting=setting))
    return configurations, left_out


def each_host(make: Maker, hosts: Sequence[str], points: Sequence[Setting]) -> list[Configuration]:
    """The same on each host by itself, on all at once."""
    return [
        replace(
            make(point, [host]),
            name=f'{host}/{_file_name(host, point)}',
            setting={HOST: host, **point},
            together=f'point {number}',
        )
        for number, point in enumerate(points)
        for host in hosts
    ]


def each_pair(make: Maker, hosts: Sequence[str], points: Sequence[Setting]) -> list[Configuration]:
    """The same on each pair of hosts; pairs without a common host run at once."""
    return [
        replace(
            make({PAIR: WITH.join(pair), **point}, pair),
            name=_file_name('+'.join(pair), point),
            setting={PAIR: WITH.join(pair), **point},
            together=f'pairs {number}',
        )
        for number, (point, pairs) in enumerate(itertools.product(points, pair_up(hosts)))
        for pair in pairs
    ]


def pair_up(names: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """Returns rounds in which each host meets another one at most once, and in all each pair once.

    This is the circle method for tournaments: the first name stays, the others move on by a place.
    """
    circle = [*names, *[''] * (len(names) % 2)]
    rounds: list[list[tuple[str, ...]]] = []
    for _ in circle[1:]:
        pairs = zip(circle, reversed(circle[len(circle) // 2 :]), strict=False)
        rounds.append([tuple(sorted(pair, key=names.index)) for pair in pairs if all(pair)])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def _file_name(first: str, setting: Setting) -> str:
    return '-'.join(
        [first, *(_UNSAFE.sub('_', text.replace('*', 'x'))[:40] for text in setting.values())]
    )
