"""One small network on scikit-learn's handwritten digits, under each product: a template for your own training loop.

Every product starts from the same weights and sees the same batches, seed for seed, so the rows can be compared.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import prproduct as pr

PRODUCTS = {
    "p": "the inner product",
    "pr": "the paper's: direction gradient as long as x",
    "tempered:0.5": "half way between p and pr",
    "pr-w": "pr for the weights, p for the data",
    "r": "the rejection alone; its outputs shrink by |cos θ|/(1+|sin θ|)",
    "no-length": "w is only turned",
    "no-direction-w": "w is only stretched",
    "no-direction": "neither w nor x is turned",
}
BATCH = 64


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images as rows of 64 pixels in [0, 1], and labels: 1,347 to train on, 450 to test on."""
    digits = load_digits()
    parts = train_test_split(digits.data / 16, digits.target, test_size=0.25, random_state=0, stratify=digits.target)
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)
    return train_x.float(), test_x.float(), train_y, test_y


def build(product: str) -> nn.Sequential:
    """Three fully connected layers under one product."""
    return nn.Sequential(
        pr.nn.Linear(64, 64, product=product),
        nn.ReLU(inplace=True),
        pr.nn.Linear(64, 64, product=product),
        nn.ReLU(inplace=True),
        pr.nn.Linear(64, 10, product=product),
    )


def mean_sin(net: nn.Sequential, x: Tensor) -> float:
    """The mean of |sin θ| over all pairs of a data vector and a weight vector, in all layers."""
    sines = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            cos = F.cosine_similarity(x[:, None], layer.weight, dim=-1)  # (images, outputs)
            sines.append((1 - cos.square()).clamp_min(0).sqrt().flatten())
        x = layer(x)
    return torch.cat(sines).mean().item()


def train(product: str, seed: int, epochs: int, learning_rate: float, step: Callable[[], None]) -> tuple[float, float]:
    """Test error in percent and mean |sin θ| after training."""
    train_x, test_x, train_y, test_y = load()
    torch.manual_seed(seed)
    net = build(product)
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(train_x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(train_x[batch]), train_y[batch]).backward()
            optimizer.step()
        step()
    with torch.no_grad():
        wrong = (net(test_x).argmax(1) != test_y).float().mean().item()
        return 100 * wrong, mean_sin(net, test_x)


def spread(values: list[float], digits: int) -> str:
    """Mean ± standard deviation."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def main() -> None:
    """Train under every product and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5, help="how many runs a product")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--products", nargs="+", default=list(PRODUCTS), help="names from prproduct.products")
    options = parser.parse_args()
    for product in options.products:
        try:
            pr.products.resolve(product)
        except ValueError as error:
            parser.error(str(error))
    for name in ("epochs", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(options, name)}")

    console = Console()
    table = Table(title=f"Digits, 64-64-64-10, {options.epochs} epochs, {options.seeds} seed(s) a product")
    table.caption = (
        "± is the standard deviation over seeds: smaller differences say nothing. One learning rate for all."
    )
    table.add_column("product", no_wrap=True)
    table.add_column("test error %", justify="right", no_wrap=True)
    table.add_column("mean |sin θ|", justify="right", no_wrap=True)
    table.add_column("what it is")
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(options.products) * options.seeds * options.epochs)
        for product in options.products:
            progress.update(task, description=product)
            runs = [
                train(product, seed, options.epochs, options.learning_rate, lambda: progress.advance(task))
                for seed in range(options.seeds)
            ]
            errors, sines = (list(column) for column in zip(*runs, strict=True))
            table.add_row(product, spread(errors, 2), spread(sines, 3), PRODUCTS.get(product, ""))
        progress.update(task, description="done")
    console.print(table)


if __name__ == "__main__":
    main()
