"""The networks of some models of this program in PyTorch. Vectors have no weight decay."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.peers.measuring import BLOCKS, IMAGE_SIZE, NUM_CLASSES


def _conv(channels: int, filters: int, size: int, strides: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, filters, size, strides, size // 2, bias=False),
        nn.BatchNorm2d(filters, momentum=0.1),
    )


class _ResidualBlock(nn.Module):
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


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, num_blocks in enumerate(BLOCKS):
        for index in range(num_blocks):
            layers.append(
                _ResidualBlock(
                    channels, 64 << stage, 2 if stage and not index else 1, project=not index
                )
            )
            channels = 256 << stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES)
    )


class _DropPath(nn.Module):
    """Stochastic depth, a factor for each image: Huang et al. 2016 (arXiv:1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.rate:
            return x
        kept = x.new_empty(len(x), 1, 1).bernoulli_(1 - self.rate)
        return x * (kept / (1 - self.rate))


class _SelfAttention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads.unbind())
        return self.output(attended.transpose(1, 2).flatten(2))


class _EncoderBlock(nn.Module):
    def __init__(self, width: int, num_heads: int, drop_rate: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6), _SelfAttention(width, num_heads), _DropPath(drop_rate)
        )
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            _DropPath(drop_rate),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.perceptron(x)


class _VisionTransformer(nn.Module):
    """ViT: Dosovitskiy et al. 2021 (arXiv:2010.11929), with the stochastic depth of DeiT."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        depth, patch_size = 12, 16
        self.patches = nn.Conv2d(3, width, patch_size, patch_size)
        self.class_token = nn.Parameter(0.02 * torch.randn(width))
        num_tokens = (IMAGE_SIZE // patch_size) ** 2 + 1
        self.positions = nn.Parameter(0.02 * torch.randn(num_tokens * width))
        self.blocks = nn.Sequential(
            *(_EncoderBlock(width, num_heads, 0.1 * index / (depth - 1)) for index in range(depth))
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.logits = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1).to(x.dtype), x], 1)
        x = self.blocks(x + self.positions.view(x.shape[1:]))
        return self.logits(self.norm(x[:, 0]))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    'resnet50': _resnet50,
    'vit_b16': partial(_VisionTransformer, width=768, num_heads=12),
    'vit_s16': partial(_VisionTransformer, width=384, num_heads=6),
}
