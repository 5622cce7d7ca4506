"""ResNet-50 in this program, in a plain TensorFlow loop, in Keras and in PyTorch: images/sec, in turns.

    python benchmarks/frameworks.py --precisions=fp32,bf16 --phases=training,forward --rounds=3
    python benchmarks/frameworks.py --peers=pytorch --torch_python=data/torch/bin/python

Each turn is a new process on the CPU with its default threads, and all take the same steps, which benchmarks/peers
describes. PyTorch may be in another environment, see benchmarks/requirements.txt.
"""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command_runs import PROGRAM, ROOT, Results, add_output, exit_code, take_runs
from benchmarks.standings import Throughput, contestants_table, machine_line, ratios_table
from benchmarks.turns import Timed, add_flags, some_of
from results.document import Record

_OURS = 'this program'
# For each contestant: its script in benchmarks/peers, and the script's flags.
_PEERS = {
    'plain_tensorflow': ('plain_tensorflow.py', ()),
    'keras': ('keras_resnet50.py', ()),
    'keras_xla': ('keras_resnet50.py', ('--jit_compile',)),
    'pytorch': ('pytorch_resnet50.py', ()),
    'pytorch_compiled': ('pytorch_resnet50.py', ('--compile',)),
}
_DEFAULT_PEERS = ('plain_tensorflow', 'keras', 'pytorch')
_PHASES = {'training': (), 'forward': ('--forward_only',)}
_PRECISIONS = ('fp32', 'bf16')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--batch_size', type=int, default=32)
    parser.add_argument('--num_batches', type=int, default=10)
    parser.add_argument('--num_warmup_batches', type=int, default=2)
    for name, known, default in (
        ('peers', _PEERS, _DEFAULT_PEERS),
        ('precisions', _PRECISIONS, _PRECISIONS),
        ('phases', _PHASES, _PHASES),
    ):
        shown = f'comma-separated list of {", ".join(known)}; default: {",".join(default)}'
        parser.add_argument(f'--{name}', type=some_of(tuple(known)), default=list(default), help=shown)
    parser.add_argument('--torch_python', default=sys.executable, help='the Python that has PyTorch')
    add_flags(parser, rounds=3, max_repeats=2)
    add_output(parser, 'frameworks')
    args = parser.parse_args()
    if any(peer.startswith('pytorch') for peer in args.peers):
        _check_torch(parser, args.torch_python)
    results, turns = Results(args.output), dict[str, list[Timed[Record]]]()
    pairs: list[tuple[str, str]] = []
    for phase in args.phases:
        for precision in args.precisions:
            ours = f'{_OURS}, {phase} {precision}'
            steps = [f'--{name}={getattr(args, name)}' for name in ('batch_size', 'num_batches', 'num_warmup_batches')]
            steps += [f'--precision={precision}', *_PHASES[phase]]
            contestants = {ours: results.contestant(ours, [*PROGRAM, '--model=resnet50', '--device=cpu', *steps])}
            for peer in args.peers:
                script, flags = _PEERS[peer]
                python = args.torch_python if peer.startswith('pytorch') else sys.executable
                argv = [python, str(ROOT / 'benchmarks' / 'peers' / script), *steps, *flags]
                name = f'{peer}, {phase} {precision}'
                contestants[name] = results.contestant(name, argv)
                pairs.append((ours, name))
            turns |= take_runs(contestants, args)
    measures = [Throughput()]
    print(machine_line(), contestants_table(turns, measures), ratios_table(turns, measures, pairs), sep='\n\n')


def _check_torch(parser: argparse.ArgumentParser, python: str) -> None:
    """Ends the script with exit code 2 if this Python has no PyTorch."""
    try:
        found = subprocess.run([python, '-c', 'import torch'], capture_output=True, check=False).returncode == 0
    except OSError as error:
        parser.error(f'--torch_python={python}: it cannot be started ({error.strerror}); give the path of a Python')
    if not found:
        parser.error(
            f'--torch_python={python}: it has no PyTorch; install benchmarks/requirements.txt there, give another '
            'Python, or leave pytorch out of --peers'
        )


if __name__ == '__main__':
    sys.exit(exit_code(main))
