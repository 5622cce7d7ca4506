"""Compares a network in this program with a plain TensorFlow loop, with Keras and with PyTorch.

    python -m benchmarks.frameworks --precisions=fp32,bf16 --phases=training,forward --rounds=3
    python -m benchmarks.frameworks --model=vit_s16 --torch_python=data/torch/bin/python

The two programs of a pair alternate, each time in a new process on the CPU with its default
threads. All take the same steps, see benchmarks/peers/__init__.py. PyTorch may be in another
environment, see benchmarks/requirements.txt.
"""

import itertools
import sys

from benchmarks.comparing import comma_separated, compare_pairs, make_parser
from tf_cnn.system.place import PROGRAM

# The module of each peer in benchmarks/peers.
_PEERS = {
    'plain_tensorflow': 'plain_tensorflow',
    'keras': 'keras_resnet50',
    'pytorch': 'pytorch',
}
# The peers that have each model.
_MODELS = {'resnet50': tuple(_PEERS), 'vit_b16': ('pytorch',), 'vit_s16': ('pytorch',)}
_CHOICES = {
    'precisions': ('fp32', 'bf16'),
    'phases': ('training', 'forward'),
}
_SIZES = {'batch_size': 32, 'num_batches': 10, 'num_warmup_batches': 2}


def main() -> int:
    parser = make_parser(__doc__, 'frameworks', **_SIZES)
    for name, choices in _CHOICES.items():
        parser.add_argument(
            f'--{name}',
            type=comma_separated(choices),
            default=','.join(choices),
            help='comma-separated',
        )
    parser.add_argument(
        '--torch_python', default=sys.executable, help='the Python that has PyTorch'
    )
    parser.add_argument('--model', choices=_MODELS, default='resnet50', help=' ')
    parser.add_argument(
        '--peers',
        type=comma_separated(_PEERS),
        help='comma-separated; by default all that have the model',
    )
    args = parser.parse_args()
    peers = args.peers or _MODELS[args.model]
    for peer in peers:
        if peer not in _MODELS[args.model]:
            parser.error(
                f'--peers={peer}: it does not have {args.model}; use '
                f'--peers={",".join(_MODELS[args.model])}'
            )
    commands, pairs = dict[str, list[str]](), []
    for phase, precision in itertools.product(args.phases, args.precisions):
        steps = [
            *(f'--{name}={getattr(args, name)}' for name in _SIZES),
            f'--precision={precision}',
            *(['--forward_only'] if phase == 'forward' else []),
        ]
        ours = f'{args.model}, this program, {phase} {precision}'
        commands[ours] = [*PROGRAM, f'--model={args.model}', '--device=cpu', *steps]
        for peer in peers:
            name = f'{args.model}, {peer}, {phase} {precision}'
            commands[name] = [sys.executable, '-m', f'benchmarks.peers.{_PEERS[peer]}', *steps]
            if peer == 'pytorch':
                commands[name][0] = args.torch_python
                commands[name].append(f'--model={args.model}')
            pairs.append((ours, name))
    return compare_pairs(commands, pairs, args)


if __name__ == '__main__':
    sys.exit(main())
