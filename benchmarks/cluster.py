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
from collections.abc import Callable, Collection, Sequence
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
    parser.add_argument(
        '--modes', type=_some_of(_MODES), default=list(_MODES), help='some of them, with commas between'
    )
    parser.add_argument(
        '--transfers', type=_some_of(_TRANSFERS), default=list(_TRANSFERS), help='some of them, with commas between'
    )
    parser.add_argument('flags', nargs='*', help='further flags of all runs, behind --')
    args = parser.parse_args()
    common = [f'--model={args.model}', f'--batch_size={args.batch_size}', '--device=cpu', *args.flags]
    print(f'{" ".join(common)}; {load()}', flush=True)
    transfers = args.transfers
    settings = [(mode, transfer) for mode in args.modes for transfer in transfers]
    rates: dict[tuple[str, str], list[float]] = {setting: [] for setting in settings}
    starts: dict[tuple[str, str], list[float]] = {setting: [] for setting in settings}
    try:
        for _ in range(args.rounds):
            for mode in args.modes:
                runs, alone = _neighbours(mode, transfers, args.ps, [*common, f'--num_batches={args.num_batches}'])
                first_runs, first_alone = _neighbours(mode, transfers, args.ps, [*common, *_TWO_STEPS])
                for transfer in transfers:
                    many, first = runs[transfer], first_runs[transfer]
                    rates[mode, transfer].append(many.images_per_second / alone.images_per_second)
                    starts[mode, transfer].append(first.warm_up_secs / first_alone.warm_up_secs)
                    print(
                        f'{mode} {transfer}: {many.images_per_second:.1f} and {alone.images_per_second:.1f} '
                        f'images/sec, first step after {first.warm_up_secs:.1f} and {first_alone.warm_up_secs:.1f} s; '
                        f'{load()}',
                        flush=True,
                    )
    except RunFailedError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f'\n{"cluster / one process":<36}{"images/sec":<24}seconds to the first step')
    for setting in settings:
        print(f'{" ".join(setting):<36}{_spread(rates[setting]):<24}{_spread(starts[setting])}')
    return 0


def _some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(',')
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f'{name!r} is none of {", ".join(known)}')
        return chosen

    return parse


def _neighbours(mode: str, transfers: Sequence[str], num_ps: int, common: Sequence[str]) -> tuple[dict[str, Run], Run]:
    """The cluster with each of two transfers at most, and the process, which runs second: so it is next to both."""
    flags, has_ps = _MODES[mode]

    def cluster(transfer: str) -> Run:
        return run_cluster(num_ps if has_ps else 0, _NUM_WORKERS, [*common, *flags, *_TRANSFERS[transfer]])

    first, *others = transfers
    runs = {first: cluster(first)}
    alone = run_alone([*common, f'--num_gpus={_NUM_WORKERS}', '--variable_update=parameter_server'])
    return runs | {other: cluster(other) for other in others}, alone


def _spread(ratios: Sequence[float]) -> str:
    """Median and quartiles."""
    if len(ratios) == 1:
        return f'{ratios[0]:.2f}'
    lower, median, upper = statistics.quantiles(ratios, n=4, method='inclusive')
    return f'{median:.2f} ({lower:.2f} to {upper:.2f})'


if __name__ == '__main__':
    sys.exit(main())
