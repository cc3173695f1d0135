"""Networks of the table that are nobody else's: two transformers, and a net that writes into its convolutions' outputs.

Their attention is made of ordinary linear layers, so that every product of a weight and a data vector is converted.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        per_head = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1))  # (batch, length, 3, heads, width)
        q, k, v = per_head.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(attended.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention and a perceptron four times as wide, each behind a layer norm and beside a residual."""

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
    """A vision transformer; by default ViT-S for 32×32 pictures."""

    def __init__(
        self, size: int = 32, patch: int = 4, width: int = 384, depth: int = 12, heads: int = 6, classes: int = 100
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        tokens = self.patches(pictures).flatten(2).mT  # (batch, patches, width)
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
        return self.classifier(self.norm(self.blocks(tokens))[:, 0])


class GPT(nn.Module):
    """A language model; by default as wide as GPT-2 and half as deep."""

    def __init__(
        self, vocabulary: int = 50257, length: int = 256, width: int = 768, depth: int = 6, heads: int = 12
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, vocabulary, bias=False)
        self.classifier.weight = self.words.weight  # tied, as GPT-2's

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions[: tokens.shape[1]]
        return self.classifier(self.norm(self.blocks(x)))


class InPlaceBlock(nn.Module):
    """A pre-activation block that adds its residual into the last convolution's output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.branch(x)
        out += x
        return out


class InPlaceNet(nn.Module):
    """A small residual net of such blocks: every second convolution loses its output."""

    def __init__(self, width: int = 32, depth: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*(InPlaceBlock(width) for _ in range(depth)))
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.norm(self.blocks(self.stem(pictures))).relu()
        return self.classifier(features.mean((2, 3)))
