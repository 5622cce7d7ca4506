"""`tf_cnn_benchmarks.py all_reduce`: how fast gradients meet, in every way. Starts without TensorFlow."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.environments import environment_of_runs, with_brackets
from cluster.roster import read_hosts_flag
from cluster.shape import Shape
from commands.options import Arguments, Declaration, Rest
from comparison.tables import Table, TableColumn, print_table
from errors import RunError, UsageError, format_warning, spelled
from hardware.gpus import has_nvidia_gpu
from models.gradients import GradientFacts, gradients_of
from models.registry import MODELS, load_model_file
from params.modes import MODES, Mode
from params.parsing import split_argv
from params.spec import flag
from planning.environment import check_file
from planning.line import check_launch
from results.document import Record
from scaling.exchanges import algorithm_bandwidth, bus_bandwidth, fit_line, link_bandwidth
from scaling.links import DTYPE_BYTES, MOST_ROWS, WHOLE, LinkRow, write_links
from scaling.terms import LARGEST_WHOLE_VALUES
from sweeps.configurations import Configuration, SweepPlan, make_plan
from sweeps.folder import Folder, Outcome
from sweeps.plan_runner import make_runs
from sweeps.request import SHAPE, Axes, Request, Setting, on_cpu, override, read_setting
from sweeps.runner import PROGRAM, Starter, describe, limits_of, succeeded
from sweeps.settings import Settings, read_bytes

# The flags of a run that send gradients in each type.
_DTYPE_FLAGS: Mapping[str, Mapping[str, Setting]] = {
    'float32': {},
    'float16': {'precision': 'fp16', 'compact_gradient_transfer': True},
    'bfloat16': {'precision': 'bf16', 'compact_gradient_transfer': True},
}
_LEAST_BYTES, _MOST_BYTES = 1 << 12, 1 << 28
_SERVERS = 'parameter_servers'
# The flags of a grid of runs, or some of them, with their values.
_Values = Mapping[str, tuple[Setting, ...]]


@dataclass(frozen=True)
class AllReduceOptions:
    """The flags of the subcommand."""

    devices: int = flag(2, 'Devices of each process; alone, and in each worker if --workers is given.', lower_bound=1)
    workers: int | None = flag(None, 'Instead of one process: a cluster of so many workers here.', lower_bound=2)
    hosts: str | None = flag(
        None, 'Instead of one process: a cluster on these hosts over ssh, as in `cluster --hosts`.'
    )
    ps: int = flag(1, 'The most parameter servers; 1, 2, 4 ... up to this number are measured.', lower_bound=1)
    sizes: str = flag(
        '4k,64k,1m,16m', 'Bytes of the tensor, separated by commas, with k, m for KiB and MiB; from 4k to 256m.'
    )
    model: str | None = flag(
        None,
        'Instead of --sizes: the gradients of this model; for parameter servers also with fewer workers.',
    )
    dtype: str = flag('float32', 'The type in which values are sent.', choices=tuple(DTYPE_BYTES))
    exchanges: str | None = flag(None, 'Only these exchanges, separated by commas; by default all that can run.')
    steps: int = flag(20, 'Timed steps of each run.', lower_bound=1)
    repeats: int = flag(1, 'Runs of each row.', lower_bound=1)
    timeout_secs: float | None = flag(None, 'End a run that takes longer, and go on.', lower_bound=1, unit='seconds')
    links_file: str | None = flag(None, 'Write the links for `predict --links` to this file.', is_path=True)
    output: str | None = flag(None, 'New folder for results, logs and the table; or one to continue.', is_path=True)
    resume: bool = flag(False, 'Continue in the folder --output, with the same flags.')
    format: str = flag('text', 'How to print the table.', choices=('text', 'markdown', 'csv'))


DECLARATION = Declaration(
    'all_reduce',
    AllReduceOptions,
    'Measures how fast gradients meet, without computing any: in one process, a cluster here, or on other hosts.',
    examples=(
        '--devices=2 -- --device=cpu',
        '--workers=2 --devices=1 --ps=2 -- --device=cpu',
        '--hosts=node1,node2 --devices=1 --sizes=4k,1m,64m --links_file=links.json',
        '--hosts=node1,node2 --devices=1 --model=resnet50 --dtype=float16',
    ),
    details='Each row is a run with --exchange_only in fresh processes. docs/all_reduce.md explains the columns.',
    rest=Rest('FLAGS', 'the flags of all runs'),
)


def main(argv: Sequence[str]) -> int:
    """Runs `all_reduce` with the arguments in argv; returns the exit code: 1 if a run failed, else 0.

    Raises:
      UsageError: an argument is wrong; nothing has been started then.
      RunError: the disk is full, or fails.
    """
    return DECLARATION.run(argv, lambda arguments: _all_reduce(arguments, argv))


def _all_reduce(arguments: Arguments[AllReduceOptions], argv: Sequence[str]) -> int:
    options = arguments.options
    plan = _plan(options, arguments.rest)
    if options.links_file:
        check_file('links_file', options.links_file)
    output = options.output or time.strftime('all_reduce-%Y%m%d-%H%M%S')
    folder = Folder(Path(output), _resuming(options, argv, output))
    environment = environment_of_runs(os.environ, 'all_reduce')
    if not options.resume:
        folder.create(plan)
    elif options.output:
        folder.check_plan(plan)
    else:
        raise UsageError('--resume: it needs the folder; write --output=DIR, too')

    starter = Starter(PROGRAM, environment=environment, limits=limits_of(plan.settings))
    return make_runs(plan, folder, starter, lambda outcomes: _show(options, plan, folder, outcomes))


def _show(
    options: AllReduceOptions, plan: SweepPlan, folder: Folder, outcomes: Mapping[str, Sequence[Outcome]]
) -> bool:
    """Prints and writes what was measured; returns whether a run failed."""
    rows, problems = _rows_of(options, plan, outcomes)
    if rows:
        table = table_of(rows)
        titles = [column.title for column in table.columns]
        objects = [dict(zip(titles, cells, strict=True)) for cells in table.rows]
        print_table(table, options.format, {'rows': objects}, is_dense=False)
        folder.write(folder.path / 'table.md', table.as_markdown())
    for line in problems:
        print(format_warning(line), file=sys.stderr)
    links = [row for row in rows if row.is_exchange]
    if options.links_file and links:
        try:
            write_links(links, options.links_file)
        except OSError as error:
            what = f'{spelled("links_file", options.links_file)}: it cannot be written ({error.strerror})'
            raise RunError(f'{what}; continue with: {folder.resume_command}, which only writes it') from None
    return bool(problems)


def _resuming(options: AllReduceOptions, argv: Sequence[str], output: str) -> list[str]:
    """Returns the words after the program that continue the runs in a folder."""
    end = argv.index('--') if '--' in argv else len(argv)
    more = [*([] if options.output else [spelled('output', output)]), *([] if options.resume else ['--resume'])]
    return ['all_reduce', *argv[:end], *more, *argv[end:]]


def read_sizes(text: str) -> list[int]:
    """Reads '4k,1m,256m' as bytes.

    Raises:
      UsageError: a size is none, too small, too large, or given twice.
    """
    sizes = []
    for word in text.split(','):
        try:
            size = read_bytes(word)
        except ValueError:
            size = 0
        if not _LEAST_BYTES <= size <= _MOST_BYTES or size % 4 or size in sizes:
            raise UsageError(
                f'{spelled("sizes", text)}: {word!r}: write different sizes from 4k to 256m, such as 4k,1m'
            )
        sizes.append(size)
    return sizes


def _plan(options: AllReduceOptions, rest: Sequence[str]) -> SweepPlan:
    hosts = _read_hosts(options)
    workers = sum(host.slots for host in hosts) or options.workers or 1
    if hosts and workers == 1:
        raise UsageError(
            f'{spelled("hosts", options.hosts)}: one worker is no cluster; write {hosts[0].name}:2, or run all_reduce '
            'on that host'
        )
    # Other hosts look for their own GPUs.
    gpu = bool(hosts) or has_nvidia_gpu()
    if path := split_argv(rest).get('model_file'):
        # It may have the model.
        load_model_file(path)
    ways = _ways(workers, options, has_gpu=gpu)
    if options.exchanges:
        wanted = options.exchanges.split(',')
        if unknown := [name for name in wanted if name not in ways]:
            raise UsageError(
                f'{spelled("exchanges", options.exchanges)}: {unknown[0]} is none that can run here; write some of '
                f'{",".join(ways)}'
            )
        ways = {name: ways[name] for name in wanted}
    common = {'exchange_only': True, 'num_batches': options.steps, 'num_warmup_batches': 5}
    request = Request(
        name='all_reduce',
        title='How fast gradients meet',
        source='all_reduce',
        flags={key: read_setting(key, value, 'all_reduce') for key, value in common.items()}
        | dict(_DTYPE_FLAGS[options.dtype]),
        grids=[Axes(f'all_reduce {name}', grid, name=name) for name, grid in ways.items()],
        settings=Settings(repeats=options.repeats, timeout_secs=options.timeout_secs),
    )
    request = override(request, rest, {})
    if not gpu:
        request = on_cpu(request)
    plan = make_plan(request, lambda params, alone: check_launch(params, alone=alone), has_gpu=gpu)
    if len(plan.configurations) > MOST_ROWS:
        raise UsageError(f'all_reduce: {len(plan.configurations)} rows, and {MOST_ROWS} are the most; keep fewer sizes')
    launched = (replace(one, launch=_place(hosts, one.shape).launch) for one in plan.configurations)
    return replace(plan, configurations=tuple(launched)) if hosts else plan


@dataclass(frozen=True)
class _Host:
    """An entry of --hosts.

    Attributes:
      entry: as it is written.
      name: the entry without its number of workers.
      slots: the number of its workers.
    """

    entry: str
    name: str
    slots: int


@dataclass(frozen=True)
class _Placement:
    """Where the processes of a run are.

    Attributes:
      hosts: its hosts, as the flag of `cluster` has them; empty on this machine.
      server_hosts: how many of these have parameter servers and no workers.
    """

    hosts: tuple[str, ...] = ()
    server_hosts: int = 0

    @property
    def launch(self) -> tuple[str, ...]:
        """The flags of `cluster`."""
        return (spelled('hosts', ','.join(self.hosts)),) if self.hosts else ()


def _read_hosts(options: AllReduceOptions) -> list[_Host]:
    """Returns the hosts of --hosts; empty without hosts."""
    if not options.hosts:
        return []
    if options.workers is not None:
        raise UsageError(
            f'{spelled("workers", options.workers)}: --hosts says how many workers there are; leave it out'
        )
    found = []
    for host, slots in read_hosts_flag(options.hosts).items():
        name = with_brackets(host)
        if slots == 0:
            raise UsageError(
                f'{spelled("hosts", options.hosts)}: {name}:0 has no worker, and all_reduce itself decides which hosts '
                'are for parameter servers alone; leave :0 out'
            )
        found.append(_Host(name if slots is None else f'{name}:{slots}', name, slots or 1))
    return found


def _place(hosts: Sequence[_Host], shape: Shape) -> _Placement:
    """Returns where the processes of a shape are.

    Of fewer workers than there could be, each sends over a link: the parameter servers are on the first hosts, and the
    workers on those after them. If these are too few, the servers are among the workers.
    """
    if not hosts:
        return _Placement()
    for apart in range(min(shape.num_ps, len(hosts) - 1), 0, -1):
        if sum(host.slots for host in hosts[apart:]) >= shape.workers:
            alone = [f'{host.name}:0' for host in hosts[:apart]]
            return _Placement((*alone, *_filled(hosts[apart:], shape.workers)), apart)
    return _Placement(_filled(hosts, shape.workers))


def _filled(hosts: Sequence[_Host], workers: int) -> tuple[str, ...]:
    """Returns the entries of the first hosts, as many as these workers fill."""
    return tuple(
        host.entry for number, host in enumerate(hosts) if sum(before.slots for before in hosts[:number]) < workers
    )


def _ways(workers: int, options: AllReduceOptions, *, has_gpu: bool) -> dict[str, _Values]:
    """The runs of each exchange, by its name in the table."""
    devices, values = options.devices, _values(options)

    def grid(flags: Mapping[str, Setting], shapes: Sequence[Shape], values: _Values = values) -> _Values:
        return {**{name: (value,) for name, value in flags.items()}, **values, SHAPE: tuple(shapes)}

    if workers == 1:
        if devices < 2:
            raise UsageError(f'{spelled("devices", devices)}: one device exchanges nothing; write --devices=2 or more')
        replicated = _of_mode(lambda mode: mode.takes_hierarchy)
        sums = {'copies': 'psgpu' if has_gpu else 'pscpu', 'ring': 'xring', **({'nccl': 'nccl'} if has_gpu else {})}
        shapes = [Shape(1, devices)]
        ways = {name: grid({**replicated, 'all_reduce_spec': spec}, shapes) for name, spec in sums.items()}
        if devices % 2 == 0:
            ways['hierarchical'] = grid({**replicated, 'hierarchical_copy': True}, shapes)
        return ways
    peers, peer = [Shape(workers, devices)], _of_mode(lambda mode: mode.nccl_between_gpus)
    servers = [2**power for power in range(options.ps.bit_length())]
    # On many hosts every number would take hours.
    fewer = [2**power for power in range((workers - 1).bit_length())] if options.model else []
    shapes = [Shape(number, devices, count) for count in servers for number in [*fewer, workers]]
    served = _of_mode(lambda mode: mode.can_stage)
    ways = {_SERVERS: grid(served, shapes)}
    several = [shape for shape in shapes if shape.num_ps > 1]
    # Where nothing is cut, both ways are the same.
    if several and (cut := _values(options, more_than=LARGEST_WHOLE_VALUES)):
        ways[WHOLE] = grid({**served, 'slice_variables': False}, several, cut)
    ways['collective'] = grid(peer, peers)
    ways['controller'] = grid({**_of_mode(lambda mode: mode.has_controller), 'all_reduce_spec': 'xring'}, peers)
    return ways


def _values(options: AllReduceOptions, more_than: int = 0) -> _Values:
    """Returns the sizes, or the model, as a flag of a run; empty if there is none.

    Args:
      more_than: only those with a tensor of more values.
    """
    if options.model:
        if more_than and gradients_of(MODELS.find_model(options.model, None)).largest <= more_than:
            return {}
        return {'model': (options.model,)}
    width = DTYPE_BYTES[options.dtype]
    # The flag has the bytes in 32 bits.
    sizes = tuple(4 * (size // width) for size in read_sizes(options.sizes) if size // width > more_than)
    return {'exchange_bytes': sizes} if sizes else {}


def _rows_of(
    options: AllReduceOptions, plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]
) -> tuple[list[LinkRow], list[str]]:
    """The measured exchanges, and a line for each run that failed."""
    facts = gradients_of(MODELS.find_model(options.model, None)) if options.model else None
    hosts = _read_hosts(options)
    rows, problems = [], []
    for one in plan.configurations:
        records = [found for found in outcomes[one.id] if isinstance(found, Record) and succeeded(found)]
        problems += [f'{one.caption}: {describe(found)}' for found in outcomes[one.id] if not succeeded(found)]
        if records:
            rows.append(_row_of(options, one, _place(hosts, one.shape), records, facts))
    return rows, problems


def _row_of(
    options: AllReduceOptions,
    one: Configuration,
    placement: _Placement,
    records: Sequence[Record],
    facts: GradientFacts | None,
) -> LinkRow:
    shape, width = one.shape, DTYPE_BYTES[options.dtype]
    if facts:
        size, tensors, largest = facts.parameters * width, facts.tensors, facts.largest * width
    else:
        size = largest = int(records[0].flags['exchange_bytes']) * width // 4
        tensors = 1
    # One parameter server has all variables, whole or not.
    slices = shape.num_ps < 2 or bool(records[0].flags.get('slice_variables', True))
    return LinkRow(
        _SERVERS if one.name == WHOLE else one.name,
        options.dtype,
        max(1, len(placement.hosts)),
        shape.workers,
        shape.devices,
        shape.num_ps,
        size,
        tensors,
        largest,
        statistics.median(float(seconds) for record in records for seconds in record.step_seconds()),
        options.model,
        slices,
        placement.server_hosts,
    )


def _of_mode(has: Callable[[Mode], bool]) -> dict[str, Setting]:
    return {'variable_update': next(name for name, mode in MODES.items() if has(mode))}


def table_of(rows: Sequence[LinkRow]) -> Table:
    """Returns the table of measured exchanges; each line was fitted to the rows that differ in their bytes only.

    A tensor that is too small to be cut is on the lines of both ways to place variables on parameter servers.
    """
    across = any(row.hosts > 1 for row in rows)
    titles = ['exchange', 'W*G+P', 'bytes', 'tensors', 'ms', 'algbw MB/s', 'busbw MB/s']
    titles += [*(['link Mbit/s'] if across else []), 'latency ms', 'rate MB/s']
    columns = [TableColumn(title, is_number=number > 1) for number, title in enumerate(titles)]
    cells = []
    for row in rows:
        like = [other for other in rows if _is_on_line_of(row, other)]
        line, bus, link = fit_line(like), bus_bandwidth(row), link_bandwidth(row)
        cells.append(
            [
                row.name,
                str(Shape(row.workers, row.devices, row.servers)),
                str(row.bytes),
                str(row.tensors),
                f'{1e3 * row.seconds:.3f}',
                f'{algorithm_bandwidth(row) / 1e6:.1f}',
                '' if bus is None else f'{bus / 1e6:.1f}',
                *(['' if link is None else f'{8 * link / 1e6:.1f}'] if across else []),
                *(['', ''] if line is None else [f'{1e3 * line.latency:.3f}', f'{line.rate / 1e6:.1f}']),
            ]
        )
    return Table(columns, cells)


def _is_on_line_of(row: LinkRow, other: LinkRow) -> bool:
    return _kind(row) == _kind(other if other.is_cut else replace(other, slices=row.slices))


def _kind(row: LinkRow) -> LinkRow:
    return replace(row, bytes=0, largest=0, seconds=0.0)
