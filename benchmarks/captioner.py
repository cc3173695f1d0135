"""A training step of the captioner under PR beside one under the inner product, in turns.

    python benchmarks/captioner.py --vocabulary 9488

10 images of 49 regions of width 1280, 5 captions of 17 steps each, 512 hidden units. Times are CPU time of one thread,
since machines are rarely alone.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import prproduct as pr
from prproduct.captioning.losses import cross_entropy, targets_of
from prproduct.captioning.model import Captioner

IMAGES, CAPTIONS, STEPS, REGIONS, WIDTH = 10, 5, 17, 49, 1280


def main() -> None:
    """Print the figures of docs/captioning.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=9488)
    parser.add_argument("--sample-probability", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {product: pr.convert(Captioner(options.vocabulary, WIDTH), product) for product in ("p", "pr")}
    features, present = torch.randn(IMAGES, REGIONS, WIDTH).relu(), torch.ones(IMAGES, REGIONS, dtype=torch.bool)
    words = torch.randint(1, options.vocabulary, (IMAGES * CAPTIONS, STEPS))
    words[:, 0] = 0

    def seconds(model: Captioner) -> float:
        model.zero_grad()
        start = time.process_time()
        logits = model(features, present, words, options.sample_probability)
        cross_entropy(logits, targets_of(words)).backward()
        return time.process_time() - start

    for model in models.values():
        seconds(model)  # compiles
    taken: dict[str, list[float]] = {product: [] for product in models}
    for _ in range(options.rounds):
        for product, model in models.items():
            taken[product].append(seconds(model))
    ratio = statistics.median(ours / native for native, ours in zip(taken["p"], taken["pr"], strict=True))
    medians = " and ".join(f"{product} {statistics.median(times):.2f} s" for product, times in taken.items())
    print(f"a step with {options.vocabulary} words: {medians}; median ratio {ratio:.2f} over {options.rounds} turns")


if __name__ == "__main__":
    main()
