"""The cost of a cluster: 2 workers on this machine compared with one process with 2 towers, in turns.

    python benchmarks/cluster.py --model=alexnet --batch_size=16 --rounds=5
    python benchmarks/cluster.py --modes=collective_all_reduce --transfers=shared_memory,sent_32_bits

Both process the same images on the same cores. The cluster also moves gradients and variables between its processes:
in messages of 32 or 16 bits, or through shared memory in collective_all_reduce (--transfers). Two ratios are printed,
each cluster / process: images/sec, and seconds from the start of the chief to the end of its first step. The memory for
messages grows during the first steps, so rates are measured after the default warm-up. The process takes turns with the
transfers of each mode, so that compared runs are neighbours.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command_runs import PROGRAM, Results, add_output, exit_code, take_runs
from benchmarks.standings import Measure, Throughput, contestants_table, machine_line, ratios_table
from benchmarks.turns import Turn, add_flags, some_of
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
# Only collective_all_reduce shares memory, which is its default; the other modes leave out the first row.
_TRANSFERS = {
    'shared_memory': [],
    'sent_32_bits': ['--nocompact_gradient_transfer'],
    'sent_16_bits': ['--compact_gradient_transfer'],
}
_MEASURES = (
    Throughput(),
    Measure[Record]('s to the first step', lambda run: float(run.document['phases']['first_step']), is_cost=True),
)


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
    results, turns = Results(args.output), dict[str, list[Turn[Record]]]()
    pairs: list[tuple[str, str]] = []
    for mode in args.modes:
        flags, has_ps = _MODES[mode]
        alone = f'2 towers, with {mode}'
        argv = [*PROGRAM, *common, f'--num_gpus={_NUM_WORKERS}', '--variable_update=parameter_server']
        contestants = {alone: results.contestant(alone, argv)}
        can_share = mode == 'collective_all_reduce'
        for transfer in args.transfers:
            if transfer == 'shared_memory' and not can_share:
                continue
            name = f'{mode} {transfer}'
            launcher = [*PROGRAM, 'cluster', f'--ps={args.ps if has_ps else 0}', f'--workers={_NUM_WORKERS}', '--']
            sends = ['--shared_memory=off'] if can_share and transfer != 'shared_memory' else []
            contestants[name] = results.contestant(name, [*launcher, *common, *flags, *sends, *_TRANSFERS[transfer]])
            pairs.append((name, alone))
        turns |= take_runs(contestants, args)
    print(contestants_table(turns, _MEASURES), ratios_table(turns, _MEASURES, pairs), sep='\n\n')


if __name__ == '__main__':
    sys.exit(exit_code(main))
