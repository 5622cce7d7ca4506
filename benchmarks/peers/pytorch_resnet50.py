"""Trains ResNet-50 in PyTorch, in channels_last, with autocast for training in bf16.

pip install -r benchmarks/requirements.txt
python -m benchmarks.peers.pytorch_resnet50 --batch_size=32 --precision=bf16
"""

import os
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.peers import measuring
from benchmarks.peers.measuring import BLOCKS, IMAGE_SIZE, NUM_CLASSES, WEIGHT_DECAY


def _conv(channels: int, filters: int, size: int, strides: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, filters, size, strides, size // 2, bias=False),
        nn.BatchNorm2d(filters, momentum=0.1),
    )


class _Block(nn.Module):
    """A bottleneck block with the stride in its first convolution, unlike torchvision's."""

    def __init__(self, channels: int, width: int, strides: int, *, project: bool) -> None:
        super().__init__()
        self.shortcut = _conv(channels, 4 * width, 1, strides) if project else nn.Identity()
        self.inner = nn.Sequential(
            _conv(channels, width, 1, strides),
            nn.ReLU(inplace=True),
            _conv(width, width, 3, 1),
            nn.ReLU(inplace=True),
            _conv(width, 4 * width, 1, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.inner(x) + self.shortcut(x))


def make_network() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, num_blocks in enumerate(BLOCKS):
        for index in range(num_blocks):
            layers.append(
                _Block(channels, 64 << stage, 2 if stage and not index else 1, project=not index)
            )
            channels = 256 << stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES)
    )


def make_step(batch_size: int, precision: str, *, forward_only: bool) -> Callable[[], float]:
    model = make_network().to(memory_format=torch.channels_last)
    images = (
        torch.rand(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
        .mul_(2)
        .sub_(1)
        .to(memory_format=torch.channels_last)
    )
    labels = torch.randint(0, NUM_CLASSES, (batch_size,))
    is_bf16 = precision == 'bf16'
    if forward_only:
        model.eval()
        if is_bf16:
            model, images = model.bfloat16(), images.bfloat16()

        def forward() -> float:
            with torch.inference_mode():
                return float(nn.functional.cross_entropy(model(images).float(), labels))

        return forward
    kernels = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{'params': kernels, 'weight_decay': WEIGHT_DECAY}, {'params': vectors}]
    optimizer = torch.optim.SGD(groups, measuring.LEARNING_RATE, foreach=True)

    def train() -> float:
        with torch.autocast('cpu', torch.bfloat16, enabled=is_bf16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return train


def main() -> None:
    args = measuring.make_parser('ResNet-50 in PyTorch.').parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    step = make_step(args.batch_size, args.precision, forward_only=args.forward_only)
    measuring.run_steps(args, 'PyTorch', {'torch': torch.__version__}, step)


if __name__ == '__main__':
    main()
