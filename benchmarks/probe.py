"""What AngleProbe costs: a training step with and without it, and a sampled one, in units of a forward.

python benchmarks/probe.py             one thread, medians
python benchmarks/probe.py --memory    the largest block of memory the probe asks for, beside a layer's output
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import prproduct as pr


def convolutional() -> tuple[nn.Module, Tensor]:
    """Conv–BatchNorm–ReLU with the widths of a ResNet for CIFAR."""
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), torch.randn(64, 3, 32, 32)


def depthwise() -> tuple[nn.Module, Tensor]:
    """Depthwise and pointwise convolutions in turn."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2, 1)]
    for _ in range(4):
        layers += [
            nn.Conv2d(64, 64, 3, 1, 1, groups=64),
            nn.Conv2d(64, 64, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers), torch.randn(32, 3, 32, 32)


class LastStep(nn.Module):
    """A recurrent layer and a classifier of its last output."""

    def __init__(self, recurrent: nn.RNNBase, size: int) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(time, batch, features) to (batch, 10)."""
        logits: Tensor = self.head(self.recurrent(x)[0][-1])
        return logits


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "MLP 784-512-512-10, batch 128": lambda: (
        nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
        torch.randn(128, 784),
    ),
    "MLP 64-64-64-10, batch 64": lambda: (
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        torch.randn(64, 64),
    ),
    "convolutions 16-32-64, 32×32, batch 64": convolutional,
    "depthwise convolutions, 16×16, batch 32": depthwise,
    "LSTM 512, 1 layer, 20 steps, batch 64": lambda: (LastStep(nn.LSTM(512, 512), 512), torch.randn(20, 64, 512)),
    "LSTM 256, 3 layers, both ways, 20 steps": lambda: (
        LastStep(nn.LSTM(256, 256, 3, bidirectional=True), 512),
        torch.randn(20, 64, 256),
    ),
    "encoder layer 256, 4 heads, 64 tokens, batch 16": lambda: (
        nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True),
        torch.randn(16, 64, 256),
    ),
    "vocabulary 512 → 20000, batch 64": lambda: (nn.Linear(512, 20000), torch.randn(64, 512)),
}


def step(model: nn.Module, x: Tensor) -> None:
    """Forward and backward."""
    model.zero_grad()
    model(x).square().mean().backward()


def measure(model: nn.Module, x: Tensor, repeats: int) -> tuple[float, float, float, float]:
    """In seconds: a forward, a step, a step between samples, a sampled step. They take turns."""
    times: list[list[float]] = [[], [], [], []]
    for _ in range(repeats):
        for kind, found in enumerate(times):
            probe = pr.AngleProbe(model, every=1 if kind == 3 else 10**9) if kind >= 2 else None
            if kind == 2:
                step(model, x)  # the sampled one
                step(model, x)  # the one that completes its records
            start = time.perf_counter()
            model(x) if kind == 0 else step(model, x)
            found.append(time.perf_counter() - start)
            if probe is not None:
                probe.close()
    forward, plain, between, sampled = (min(found) for found in times)
    return forward, plain, between, sampled


def idle_hook(calls: int = 5000) -> float:
    """Seconds that a forward takes longer between samples, on a model so small that it can be seen."""
    model, x = nn.Sequential(nn.Linear(1, 1)), torch.ones(1, 1)
    bare = min(timeit.repeat(lambda: model(x), number=calls, repeat=9)) / calls
    with pr.AngleProbe(model, every=10**9):
        model(x)
        model(x)
        return min(timeit.repeat(lambda: model(x), number=calls, repeat=9)) / calls - bare


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table(title=f"AngleProbe, one thread, smallest of {options.repeats}, torch {torch.__version__}")
    for column in ("model", "forward ms", "step ms", "between samples", "sampled ms", "extra forwards"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for name, build in MODELS.items():
        model, x = build()
        step(model, x)
        forward, plain, between, sampled = measure(model, x, options.repeats)
        milliseconds = [f"{1e3 * seconds:.2f}" for seconds in (forward, plain, sampled)]
        more = f"{100 * (between / plain - 1):+.1f} %"
        table.add_row(name, *milliseconds[:2], more, milliseconds[2], f"{(sampled - plain) / forward:.2f}")
    Console(width=130).print(table)
    print(f"between samples, the hook on the model takes {1e6 * idle_hook():.1f} µs a forward")


if __name__ == "__main__":
    main()
