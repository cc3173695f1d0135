"""Captions a second: beam search for many images at once, beside the same search and a plain one image by image.

    python benchmarks/decoding.py --images 100 --vocabulary 9488

The plain search keeps its beginnings in Python lists, takes the model's step for those of one image at a time, and goes
on to the longest caption. All three find the same captions. The captioner is untrained and never ends, so that all
captions have sixteen words and nobody gains by stopping early. Times are CPU time, since machines are rarely alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from prproduct.captioning.decoding import Limits, beam
from prproduct.captioning.model import Captioner, Memory

BEAMS, LIMITS = 5, Limits(longest=16)


def main() -> None:
    """Print the figures of docs/captioning.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--vocabulary", type=int, default=9488)
    parser.add_argument("--regions", type=int, default=49)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = captioner(options.vocabulary)
    present = torch.ones(options.images, options.regions, dtype=torch.bool)
    with torch.no_grad():
        memory = model.encode(torch.randn(options.images, options.regions, 1280).relu(), present)
    ways: dict[str, Callable[[], list[list[int]]]] = {
        "all images at once": lambda: batched(model, memory),
        "the same, image by image": lambda: [
            caption for image in range(memory.images) for caption in batched(model, one(memory, image))
        ],
        "a plain search, image by image": lambda: [plain(model, one(memory, image)) for image in range(memory.images)],
    }
    seconds: dict[str, float] = dict.fromkeys(ways, float("inf"))
    captions = {}
    for _ in range(options.rounds):
        for name, decode in ways.items():
            start = time.process_time()
            captions[name] = decode()
            seconds[name] = min(seconds[name], time.process_time() - start)
    first = captions["all images at once"]
    print(f"{options.images} images, {BEAMS} beams, {torch.get_num_threads()} threads; best of {options.rounds} rounds")
    print(f"{sum(map(len, first)) / len(first):.1f} words a caption")
    for name, taken in seconds.items():
        same = sum(a == b for a, b in zip(captions[name], first, strict=True))
        ratio = taken / seconds["all images at once"]
        print(f"{name:32} {options.images / taken:7.1f} captions/s  {ratio:5.2f} × the time  {same} captions equal")


def captioner(vocabulary: int) -> Captioner:
    """Untrained, with logits as far apart as a trained one's."""
    model = Captioner(vocabulary, 1280).eval()
    with torch.no_grad():
        model.output.weight.mul_(20)
    return model


def one(memory: Memory, image: int) -> Memory:
    """One image's."""
    return memory.select(torch.tensor([image]))


def batched(model: Captioner, memory: Memory) -> list[list[int]]:
    """Words of the best captions."""
    return [
        [word for word in words if word]
        for words in beam(model, memory, beams=BEAMS, limits=LIMITS).words[:, 0].tolist()
    ]


@torch.no_grad()
def plain(model: Captioner, memory: Memory) -> list[int]:
    """Words of the best caption of one image; as the definition reads, up to the longest caption."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[tuple[float, list[int]]] = []
    state = model.begin(memory)
    for _ in range(LIMITS.longest):
        last = torch.tensor([words[-1] if words else 0 for _, words in live])
        logits, state, _ = model.step(last, state, memory)
        log_probabilities = logits.log_softmax(-1)
        extensions = []
        for row, (total, words) in enumerate(live):
            best, ids = log_probabilities[row].topk(2 * BEAMS)
            extensions += [(total + b, [*words, i], row) for b, i in zip(best.tolist(), ids.tolist(), strict=True)]
        extensions.sort(key=lambda extension: -extension[0])
        found += [(total, words) for total, words, _ in extensions[:BEAMS] if words[-1] == 0]
        going = [extension for extension in extensions if extension[1][-1] != 0][:BEAMS]
        live = [(total, words) for total, words, _ in going]
        state = state.select(torch.tensor([row for *_, row in going]))
    return [word for word in max(found + live, key=lambda pair: pair[0])[1] if word]


if __name__ == "__main__":
    main()
