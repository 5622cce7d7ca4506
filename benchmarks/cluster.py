"""The cost of a cluster: 2 workers on this machine compared with one process with 2 towers, run alternately.

    python benchmarks/cluster.py --model=alexnet --batch_size=16 --rounds=5
    python benchmarks/cluster.py --modes=parameter_server,async --transfers=fp32

Both process the same images on the same cores; in addition, the cluster sends gradients and variables through
TensorFlow's servers. Two ratios are printed, each cluster / process of consecutive runs: images/sec, and seconds to the
end of the first step. The memory for messages grows during the first steps, so rates are measured after the default
warm-up, and the time to the first step in separate runs of two steps. Linux only.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.launched import Run, RunFailedError, load, run_alone, run_cluster

_NUM_WORKERS = 2
# The name of each mode in this benchmark, its flags, and whether it has parameter servers.
_MODES = {
    'parameter_server': (['--variable_update=parameter_server'], True),
    'async': (['--variable_update=parameter_server', '--nocross_replica_sync'], True),
    'staged': (['--variable_update=parameter_server', '--staged_vars'], True),
    'distributed_replicated': (['--variable_update=distributed_replicated'], True),
    'collective_all_reduce': (['--variable_update=collective_all_reduce'], False),
    'distributed_all_reduce': (['--variable_update=distributed_all_reduce'], False),
}
# The first is a warm-up step.
_TWO_STEPS = ['--num_warmup_batches=1', '--num_batches=1']
_TRANSFERS = {'fp32': [], 'bfloat16': ['--compact_gradient_transfer']}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='alexnet')
    parser.add_argument('--batch_size', type=int, default=16, help='images per step on each tower')
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--ps', type=int, default=1)
    parser.add_argument(
        '--modes', type=_some_of(_MODES), default=list(_MODES), help='comma-separated list; default: all'
    )
    parser.add_argument(
        '--transfers', type=_some_of(_TRANSFERS), default=list(_TRANSFERS), help='comma-separated list; default: all'
    )
    parser.add_argument('flags', nargs='*', help='further flags for all runs, after --')
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
                runs, alone = _run_consecutively(
                    mode, transfers, args.ps, [*common, f'--num_batches={args.num_batches}']
                )
                first_runs, first_alone = _run_consecutively(mode, transfers, args.ps, [*common, *_TWO_STEPS])
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
                raise argparse.ArgumentTypeError(f'{name!r} is not one of {", ".join(known)}')
        return chosen

    return parse


def _run_consecutively(
    mode: str, transfers: Sequence[str], num_ps: int, common: Sequence[str]
) -> tuple[dict[str, Run], Run]:
    """Runs the cluster with one or two transfers, and the process after the first of them, so next to both."""
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
