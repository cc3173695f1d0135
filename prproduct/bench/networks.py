"""Networks that `classification.models` does not have: a language model, and a net with in-place residuals."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prproduct.classification.models.vit import TransformerBlock


class GPT(nn.Module):
    """A causal language model, (batch, length) → (batch, length, vocabulary); by default half as deep as GPT-2."""

    def __init__(
        self, vocabulary: int = 50257, length: int = 256, width: int = 768, depth: int = 6, heads: int = 12
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, vocabulary, bias=False)
        self.classifier.weight = self.words.weight  # tied, as in GPT-2

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
    """A residual net of such blocks: the saved output of every second convolution is overwritten by the residual."""

    def __init__(self, width: int = 32, depth: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*(InPlaceBlock(width) for _ in range(depth)))
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.norm(self.blocks(self.stem(pictures))).relu()
        return self.classifier(features.mean((2, 3)))
