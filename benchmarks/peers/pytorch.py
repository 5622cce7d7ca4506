"""Trains a network in PyTorch, in channels_last, with autocast for training in bf16.

pip install -r benchmarks/requirements.txt
python -m benchmarks.peers.pytorch --model=vit_s16 --batch_size=32 --precision=bf16
"""

import os
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.peers import measuring
from benchmarks.peers.measuring import IMAGE_SIZE, NUM_CLASSES, WEIGHT_DECAY
from benchmarks.peers.pytorch_networks import NETWORKS


def make_step(
    model: str, batch_size: int, precision: str, *, forward_only: bool
) -> Callable[[], float]:
    """Returns a function that takes a step and returns the loss. model: a key of NETWORKS."""
    network = NETWORKS[model]().to(memory_format=torch.channels_last)
    images = (
        torch.rand(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
        .mul_(2)
        .sub_(1)
        .to(memory_format=torch.channels_last)
    )
    labels = torch.randint(0, NUM_CLASSES, (batch_size,))
    is_bf16 = precision == 'bf16'
    if forward_only:
        network.eval()
        if is_bf16:
            network, images = network.bfloat16(), images.bfloat16()

        def forward() -> float:
            with torch.inference_mode():
                return float(nn.functional.cross_entropy(network(images).float(), labels))

        return forward
    kernels = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in network.parameters() if parameter.ndim == 1]
    groups = [{'params': kernels, 'weight_decay': WEIGHT_DECAY}, {'params': vectors}]
    optimizer = torch.optim.SGD(groups, measuring.LEARNING_RATE, foreach=True)

    def train() -> float:
        with torch.autocast('cpu', torch.bfloat16, enabled=is_bf16):
            loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return train


def main() -> None:
    parser = measuring.make_parser('A network in PyTorch.')
    parser.add_argument('--model', choices=NETWORKS, default='resnet50')
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    step = make_step(args.model, args.batch_size, args.precision, forward_only=args.forward_only)
    measuring.run_steps(args, f'PyTorch {torch.__version__}', step)


if __name__ == '__main__':
    main()
