"""Trains a small network on handwritten digits under P and under PR, and draws what AngleProbe saw.

`python docs/probe_figure.py` writes docs/figures/probe.svg and prints the table of docs/probe.md.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import prproduct as pr

FIGURE = Path(__file__).parent / "figures" / "probe.svg"
STEPS, EVERY, BATCH, SEED = 600, 5, 64, 0


class RowReader(nn.Module):
    """An LSTM reads the eight rows of a digit; two linear layers tell what it was."""

    def __init__(self, product: str) -> None:
        super().__init__()
        self.lstm = pr.nn.LSTM(8, 64, batch_first=True, product=product)
        self.hidden = pr.nn.Linear(64, 64, product=product)
        self.output = pr.nn.Linear(64, 10, product=product)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 8, 8) to (batch, 10)."""
        logits: Tensor = self.output(F.relu(self.hidden(self.lstm(images)[0][:, -1])))
        return logits


def train(product: str) -> list[pr.probe.AngleRecord]:
    """The records of one run; both products start from the same weights and see the same batches."""
    digits = load_digits()
    images, labels = torch.as_tensor(digits.images / 16).float(), torch.as_tensor(digits.target)
    torch.manual_seed(SEED)
    net = RowReader(product)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    with pr.AngleProbe(net, every=EVERY) as probe:
        for _ in range(STEPS):
            batch = torch.randint(len(images), (BATCH,))
            optimizer.zero_grad()
            F.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    return probe.records


def mean(records: list[pr.probe.AngleRecord], name: str, quantity: str) -> float:
    """Over the last third of the training."""
    return statistics.mean(getattr(r, quantity) for r in records if r.name == name and r.step >= 2 * STEPS // 3)


def main() -> None:
    """Train, draw, print."""
    torch.set_num_threads(1)
    runs = {"P": train("p"), "PR": train("pr")}
    plt.rcParams["svg.hashsalt"] = "prproduct"
    pr.probe.plot(runs).savefig(FIGURE, metadata={"Date": None})
    print("| layer | min \\|sin θ\\| of a sample, P | PR | direction share, P | PR |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in dict.fromkeys(record.name for record in runs["P"]):
        cells = [f"{mean(runs[run], name, q):.3f}" for q in ("sample_min_sin", "direction_share") for run in runs]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
