"""Vision transformers, which the paper does not have: patches of 4×4 pixels, pre-norm blocks, a class token.

Attention is made of linear layers instead of `nn.MultiheadAttention`, so that reports and probes name each of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention on (batch, length, width)."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        per_head = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1))  # (batch, length, 3, heads, head)
        q, k, v = per_head.permute(2, 0, 3, 1, 4)  # (batch, heads, length, head) each
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(attended.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then a perceptron four times as wide; each has a layer norm before it and a residual around it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, causal))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.perceptron(x)


class ViT(nn.Module):
    """A vision transformer on square images; by default ViT-S for CIFAR.

    >>> ViT(depth=2, width=64, heads=1)(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        size: int = 32,
        patch: int = 4,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT  # (batch, patches, width)
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
        return self.classifier(self.norm(self.blocks(tokens))[:, 0])
