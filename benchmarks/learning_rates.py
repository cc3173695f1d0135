"""Which learning rates suit PR where a rate for the inner product is known, with and without clipping.

Two small networks on scikit-learn's handwritten digits, native and converted, over a grid of learning rates: the test
error after training. Then what `prproduct.check` says of the converted network's gradients at its start and its end.
Both products start from the same weights and see the same batches, seed for seed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import prproduct as pr

BATCH = 64
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def load() -> Data:
    """Images (count, 1, 8, 8) in [0, 1] and labels: 1,347 to train on, 450 to test on."""
    digits = load_digits()
    parts = train_test_split(digits.images / 16, digits.target, test_size=0.25, random_state=0, stratify=digits.target)
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)
    return train_x.float()[:, None], test_x.float()[:, None], train_y, test_y


def perceptron() -> nn.Sequential:
    """Three fully connected layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def convolutional() -> nn.Sequential:
    """Two convolutions with BatchNorm and a fully connected layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )


Optimizer = Callable[..., torch.optim.Optimizer]
SETTINGS: dict[str, tuple[Optimizer, tuple[float, ...], float | None]] = {
    "SGD": (partial(torch.optim.SGD, momentum=0.9), (0.01, 0.03, 0.1, 0.3, 1.0), None),
    "SGD, clipped at 1": (partial(torch.optim.SGD, momentum=0.9), (0.01, 0.03, 0.1, 0.3, 1.0), 1.0),
    "AdamW": (torch.optim.AdamW, (0.0003, 0.001, 0.003, 0.01, 0.03), None),
}


def train(
    net: nn.Module, data: Data, optimizer: torch.optim.Optimizer, clip: float | None, epochs: int
) -> tuple[float, float]:
    """Test error in percent after training, and the share of steps that were clipped."""
    train_x, test_x, train_y, test_y = data
    clipped = steps = 0
    for _ in range(epochs):
        for batch in torch.randperm(len(train_x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(train_x[batch]), train_y[batch]).backward()
            if clip is not None:
                clipped += int(nn.utils.clip_grad_norm_(net.parameters(), clip) > clip)
            steps += 1
            optimizer.step()
    with torch.no_grad():
        wrong = (net.eval()(test_x).argmax(1) != test_y).float().mean().item()
    return 100 * wrong, 100 * clipped / steps


class WithLoss(nn.Module):
    """A network and its loss, for `prproduct.check`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss alone."""
        return F.cross_entropy(self.net(x), y)


def growth(net: nn.Module, data: Data) -> str:
    """How many times longer gradients are under PR: all together, and the layers' range."""
    result = pr.check(WithLoss(net.train()), data[0][:512], data[2][:512])
    ratios = [row.ratio for row in result.rows if row.product]
    return f"{result.total.ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Train over the grid and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data, console = load(), Console(width=120)
    lengths = Table(title="Length of the gradient, PR beside P: all together (least to most of a layer)")
    for heading in ("network", "optimizer", "learning rate", "at the start", "at the end"):
        lengths.add_column(heading)
    for build in (perceptron, convolutional):
        for name, (make, rates, clip) in SETTINGS.items():
            table = Table(title=f"{build.__name__}, {name}: test error %, mean of {options.seeds} seeds (worst)")
            table.add_column("learning rate", justify="right")
            for product in ("p", "pr"):
                table.add_column(product, justify="right")
                if clip is not None:
                    table.add_column("clipped steps %", justify="right")
            for rate in track(rates, description=f"{build.__name__}, {name}", console=console, transient=True):
                cells = [f"{rate:g}"]
                for product in ("p", "pr"):
                    runs = []
                    for seed in range(options.seeds):
                        torch.manual_seed(seed)
                        net = pr.convert(build(), product)
                        start = growth(pr.convert(net, "pr"), data) if product == "pr" and seed == 0 else ""
                        runs.append(train(net, data, make(net.parameters(), lr=rate), clip, options.epochs))
                        if start and clip is None and rate == rates[2]:
                            lengths.add_row(build.__name__, name, f"{rate:g}", start, growth(net, data))
                    errors, clipped = zip(*runs, strict=True)
                    cells.append(f"{statistics.mean(errors):.1f} ({max(errors):.1f})")
                    if clip is not None:
                        cells.append(f"{statistics.mean(clipped):.0f}")
                table.add_row(*cells)
            console.print(table)
    console.print(lengths)


if __name__ == "__main__":
    main()
