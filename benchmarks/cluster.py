"""The cost of a cluster: 2 workers on this machine compared with one process with 2 towers, in turns.

    python benchmarks/cluster.py --model=alexnet --batch_size=16 --rounds=5
    python benchmarks/cluster.py --modes=collective_all_reduce --transfers=sent_32_bits

Both process the same images on the same cores. The cluster also moves gradients and variables between its processes:
in messages of 32 or 16 bits (--transfers). Two ratios are printed,
each cluster / process: images/sec, and seconds from the start of the chief to the end of its first step. The memory for
messages grows during the first steps, so rates are measured after the default warm-up. The process takes turns with the
transfers of each mode, so that compared runs are neighbours. A second process keeps memory as the cluster does
(--keep_memory).

The last table is a floor: how long the exchange takes without computing (--exchange_only), and how long the kernel
takes to move as many bytes from one process to another.
"""

import argparse
import multiprocessing
import socket
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command_runs import PROGRAM, Results, add_output, exit_code, take_runs
from benchmarks.standings import Measure, Throughput, contestants_table, machine_line, ratios_table
from benchmarks.turns import Timed, add_flags, outcomes, some_of
from comparison.tables import Table, TableColumn
from results.document import Record

_NUM_WORKERS = 2
# The name of each mode in this script, its flags, and whether it has parameter servers.
_MODES = {
    'parameter_server': (['--variable_update=parameter_server'], True),
    'async': (['--variable_update=parameter_server', '--nocross_replica_sync'], True),
    'staged': (['--variable_update=parameter_server', '--staged_vars'], True),
    'distributed_replicated': (['--variable_update=distributed_replicated'], True),
    'collective_all_reduce': (['--variable_update=collective_all_reduce'], False),
    'distributed_all_reduce': (['--variable_update=distributed_all_reduce'], False),
}
_TRANSFERS = {
    'sent_32_bits': ['--nocompact_gradient_transfer'],
    'sent_16_bits': ['--compact_gradient_transfer'],
}
_MEASURES = (
    Throughput(),
    Measure[Record]('s to the first step', lambda run: float(run.document['phases']['first_step']), is_cost=True),
)


_ALONE, _FLOOR = '2 towers', 'exchange alone'
_LOOPBACK_BYTES, _CHUNK_BYTES = 2 << 30, 1 << 20


def loopback_rate() -> float:
    """Returns the bytes/s that the kernel moves through a TCP connection between two processes of this machine.

    Raises:
      OSError: the connection broke.
    """
    with socket.create_server(('127.0.0.1', 0)) as server:
        sender = multiprocessing.Process(target=_send, args=(server.getsockname()[1],), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer, left, began = bytearray(_CHUNK_BYTES), _LOOPBACK_BYTES, time.perf_counter()
            while left:
                received = connection.recv_into(buffer, min(left, _CHUNK_BYTES))
                if not received:
                    raise ConnectionError('the sender ended')
                left -= received
            seconds = time.perf_counter() - began
        sender.join()
    return _LOOPBACK_BYTES / seconds


def _send(port: int) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection(('127.0.0.1', port)) as connection:
        for _ in range(_LOOPBACK_BYTES // _CHUNK_BYTES):
            connection.sendall(chunk)


def floor_table(turns: dict[str, list[Timed[Record]]], names: list[str]) -> str:
    """Formats the seconds of a step of each cluster, of its exchange alone, and of its bytes through the kernel."""
    rate, rows = statistics.median(loopback_rate() for _ in range(3)), []
    for name in names:
        runs = outcomes(turns[name])
        # By the documents of the chief; the bytes are those of all workers.
        moved = runs[0].document['transfer']['bytes_per_step']
        steps = [step_seconds(runs), step_seconds(outcomes(turns[f'{name}, {_FLOOR}']))]
        rows.append([name, *(f'{seconds:.3f}' for seconds in steps), f'{moved / 1e6:.0f}', f'{moved / rate:.3f}'])
    titles = ['cluster', 's a step', 'exchange alone, s', 'MB a step', 'through the kernel, s']
    return Table(
        [TableColumn(title, is_number=bool(number)) for number, title in enumerate(titles)], rows
    ).as_markdown()


def step_seconds(runs: list[Record]) -> float:
    """Returns the median seconds of the timed steps of several runs."""
    return statistics.median(float(seconds) for run in runs for seconds in run.step_seconds())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='alexnet')
    parser.add_argument('--batch_size', type=int, default=16, help='images per step on each tower')
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--ps', type=int, default=1)
    parser.add_argument(
        '--modes', type=some_of(_MODES), default=list(_MODES), help='comma-separated list; default: all'
    )
    parser.add_argument(
        '--transfers', type=some_of(_TRANSFERS), default=list(_TRANSFERS), help='comma-separated list; default: all'
    )
    parser.add_argument('flags', nargs='*', help='further flags for all runs, after --')
    add_flags(parser, rounds=5, max_repeats=2)
    add_output(parser, 'cluster')
    args = parser.parse_args()
    common = [f'--model={args.model}', f'--batch_size={args.batch_size}', '--device=cpu', *args.flags]
    common.append(f'--num_batches={args.num_batches}')
    print(f'{" ".join(common)}\n\n{machine_line()}\n', flush=True)
    results, turns = Results(args.output), dict[str, list[Timed[Record]]]()
    pairs: list[tuple[str, str]] = []
    clusters: list[str] = []
    for mode in args.modes:
        flags, has_ps = _MODES[mode]
        alone = f'{_ALONE}, with {mode}'
        argv = [*PROGRAM, *common, f'--num_gpus={_NUM_WORKERS}', '--variable_update=parameter_server']
        kept = f'{alone}, memory kept'
        contestants = {
            alone: results.contestant(alone, argv),
            kept: results.contestant(kept, [*argv, '--keep_memory']),
        }
        for transfer in args.transfers:
            name = f'{mode} {transfer}'
            launcher = [*PROGRAM, 'cluster', f'--ps={args.ps if has_ps else 0}', f'--workers={_NUM_WORKERS}', '--']
            argv = [*launcher, *common, *flags, *_TRANSFERS[transfer]]
            contestants[name] = results.contestant(name, argv)
            contestants[f'{name}, {_FLOOR}'] = results.contestant(f'{name}, {_FLOOR}', [*argv, '--exchange_only'])
            clusters.append(name)
            pairs += [(name, alone), (name, kept)]
        turns |= take_runs(contestants, args)
    trained = {name: taken for name, taken in turns.items() if not name.endswith(_FLOOR)}
    print(contestants_table(trained, _MEASURES), ratios_table(trained, _MEASURES, pairs), sep='\n\n')
    print(f'\n{floor_table(turns, clusters)}')


if __name__ == '__main__':
    sys.exit(exit_code(main))
