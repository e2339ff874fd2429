"""Six small models whose forward returns the loss: what PyTorch's plans are measured and tested on. All float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut, with ReLU and the sum in place."""

    def __init__(self, width: int, middle: int, stride: int) -> None:
        super().__init__()
        wide = 4 * middle
        self.conv1, self.norm1 = nn.Conv2d(width, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2, self.norm2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv3, self.norm3 = nn.Conv2d(middle, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        other = stride != 1 or width != wide
        down = nn.Sequential(nn.Conv2d(width, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        self.shortcut = down if other else None

    def forward(self, x: Any) -> Any:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """Bottlenecks in four stages."""

    def __init__(self, blocks: list[int], width: int = 64, classes: int = 100, dropout: float = 0.0) -> None:
        super().__init__()
        first = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        layers, wide = [], width
        for stage, count in enumerate(blocks):
            middle = width * 2**stage
            for block in range(count):
                layers.append(Bottleneck(wide, middle, 2 if block == 0 and stage > 0 else 1))
                wide = 4 * middle
        self.body, self.dropout, self.fc = nn.Sequential(*layers), nn.Dropout(dropout), nn.Linear(wide, classes)

    def forward(self, x: Any, y: Any) -> Any:
        return F.cross_entropy(self.fc(self.dropout(self.body(self.stem(x)).mean((2, 3)))), y)


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, -1)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        p = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        x = x + F.dropout(self.out(found.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(
        self, vocabulary: int = 2048, width: int = 256, layers: int = 6, heads: int = 4, length: int = 256,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dropout = dropout
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any, y: Any) -> Any:
        h = F.dropout(self.tokens(x) + self.places.weight[: x.shape[1]], self.dropout, self.training)
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.tokens.weight)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def _double(width: int, wide: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
        nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Down and up again, with a skip at each depth."""

    def __init__(self, width: int = 32, depth: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.down, wide = nn.ModuleList(), 3
        for level in range(depth):
            self.down.append(_double(wide, width * 2**level))
            wide = width * 2**level
        self.middle, wide = _double(wide, 2 * wide), 2 * wide
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for _ in range(depth):
            self.up.append(nn.ConvTranspose2d(wide, wide // 2, 2, 2))
            self.merge.append(_double(wide, wide // 2))
            wide //= 2
        self.out = nn.Conv2d(wide, classes, 1)

    def forward(self, x: Any, y: Any) -> Any:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return F.cross_entropy(self.out(x), y)


class LSTM(nn.Module):
    """A cell unrolled over time."""

    def __init__(self, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.cell, self.fc, self.hidden = nn.LSTMCell(width, hidden), nn.Linear(hidden, 10), hidden

    def forward(self, x: Any, y: Any) -> Any:
        h, c = x.new_zeros(x.shape[1], self.hidden), x.new_zeros(x.shape[1], self.hidden)
        for step in x:
            h, c = self.cell(step, (h, c))
        return F.cross_entropy(self.fc(h), y)


def _tokens(batch: int = 4, length: int = 256, vocabulary: int = 2048) -> tuple[Any, Any]:
    return torch.randint(0, vocabulary, (batch, length)), torch.randint(0, vocabulary, (batch, length))


def _images(batch: int, size: int, classes: int = 100) -> tuple[Any, Any]:
    return torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))


def _lstm(steps: int) -> tuple[nn.Module, tuple[Any, Any]]:
    return LSTM(), (torch.randn(steps, 32, 64), torch.randint(0, 10, (32,)))


MODELS: Final[Mapping[str, Callable[[], tuple[nn.Module, tuple[Any, Any]]]]] = {
    "rn50": lambda: (ResNet([3, 4, 6, 3]), _images(4, 160)),
    "rn26": lambda: (ResNet([2, 2, 2, 2], width=16, dropout=0.3), _images(8, 128)),
    "gpt": lambda: (GPT(), _tokens()),
    "gptd": lambda: (GPT(dropout=0.1), _tokens()),
    "unet": lambda: (UNet(), (torch.randn(2, 3, 64, 64), torch.randint(0, 4, (2, 64, 64)))),
    "lstm": lambda: _lstm(200),
    "lstm20": lambda: _lstm(20),
}


def made(name: str) -> tuple[nn.Module, tuple[Any, Any]]:
    """A model in training mode and its inputs, from seed 0."""
    torch.manual_seed(0)
    return MODELS[name]()
