"""What it costs to be a cluster: 2 workers on this machine against one process with 2 towers, in turn.

    python benchmarks/cluster.py --model=alexnet --batch_size=16 --rounds=5
    python benchmarks/cluster.py --modes=parameter_server,async --transfers=fp32

Both compute the same images with the same cores; what the cluster adds is that gradients and variables travel through
TensorFlow's servers. The ratios are images/sec of the cluster over those of the process, and seconds to the end of the
first step over those of the process, each of neighbouring runs. The memory that messages need takes some steps to reach
its size, so rates are those after the warm-up of an ordinary run, and runs of two steps show the start. Linux only.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.launched import Run, RunFailedError, load, run_alone, run_cluster

_NUM_WORKERS = 2
# What each mode is called here, its flags, and whether it has parameter servers.
_MODES = {
    'parameter_server': (['--variable_update=parameter_server'], True),
    'async': (['--variable_update=parameter_server', '--nocross_replica_sync'], True),
    'staged': (['--variable_update=parameter_server', '--staged_vars'], True),
    'distributed_replicated': (['--variable_update=distributed_replicated'], True),
    'collective_all_reduce': (['--variable_update=collective_all_reduce'], False),
    'distributed_all_reduce': (['--variable_update=distributed_all_reduce'], False),
}
# One warms up.
_TWO_STEPS = ['--num_warmup_batches=1', '--num_batches=1']
_TRANSFERS = {'fp32': [], 'bfloat16': ['--compact_gradient_transfer']}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='alexnet')
    parser.add_argument('--batch_size', type=int, default=16, help='images of a step on each tower')
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--ps', type=int, default=1)
    parser.add_argument('--modes', default=','.join(_MODES), help='some of them, with commas between')
    parser.add_argument('--transfers', default=','.join(_TRANSFERS), help='some of them, with commas between')
    parser.add_argument('flags', nargs='*', help='further flags of all runs, behind --')
    args = parser.parse_args()
    common = [f'--model={args.model}', f'--batch_size={args.batch_size}', '--device=cpu', *args.flags]
    print(f'{" ".join(common)}; {load()}', flush=True)
    settings = [(mode, transfer) for mode in args.modes.split(',') for transfer in args.transfers.split(',')]
    rates: dict[tuple[str, str], list[float]] = {setting: [] for setting in settings}
    starts: dict[tuple[str, str], list[float]] = {setting: [] for setting in settings}
    try:
        for _ in range(args.rounds):
            for setting in settings:
                many, alone = _run_both(setting, args.ps, [*common, f'--num_batches={args.num_batches}'])
                rates[setting].append(many.images_per_second / alone.images_per_second)
                first, first_alone = _run_both(setting, args.ps, [*common, *_TWO_STEPS])
                starts[setting].append(first.warm_up_secs / first_alone.warm_up_secs)
                print(
                    f'{" ".join(setting)}: {many.images_per_second:.1f} and {alone.images_per_second:.1f} images/sec, '
                    f'first step after {first.warm_up_secs:.1f} and {first_alone.warm_up_secs:.1f} s; {load()}',
                    flush=True,
                )
    except RunFailedError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f'\n{"cluster / one process":<36}{"images/sec":<24}seconds to the first step')
    for setting in settings:
        print(f'{" ".join(setting):<36}{_spread(rates[setting]):<24}{_spread(starts[setting])}')
    return 0


def _run_both(setting: tuple[str, str], num_ps: int, common: Sequence[str]) -> tuple[Run, Run]:
    """The cluster and then the process."""
    mode, transfer = setting
    flags, has_ps = _MODES[mode]
    many = run_cluster(num_ps if has_ps else 0, _NUM_WORKERS, [*common, *flags, *_TRANSFERS[transfer]])
    return many, run_alone([*common, f'--num_gpus={_NUM_WORKERS}', '--variable_update=parameter_server'])


def _spread(ratios: Sequence[float]) -> str:
    """Median and quartiles."""
    if len(ratios) == 1:
        return f'{ratios[0]:.2f}'
    lower, median, upper = statistics.quantiles(ratios, n=4, method='inclusive')
    return f'{median:.2f} ({lower:.2f} to {upper:.2f})'


if __name__ == '__main__':
    sys.exit(main())
