"""The tokenizer beside the original Java program, on all captions of COCO 2014: how many differ, and which.

Then on captions with a character too many, 20,000 of those that have more than letters: rules that no caption needs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from prproduct.captioning.metrics.java import coco_captions, tokenize_java
from prproduct.captioning.metrics.tokenizer import tokenize_all

CHARACTERS = "aeinostxAST.,'-/:;!?&()# 0123456789\"$"


def main() -> None:
    """Print the counts and what differs."""
    captions = [caption for split in ("train", "val") for image in coco_captions(split).values() for caption in image]
    _compare("captions", captions)
    odd = [caption for caption in captions if not caption.replace(" ", "").rstrip(".").isalpha()]
    chance = random.Random(0)
    _compare("altered captions", [_altered(chance.choice(odd), chance) for _ in range(20_000)])


def _altered(caption: str, chance: random.Random) -> str:
    """With a character put in beside one that is no letter."""
    places = [i for i, character in enumerate(caption) if not character.isalpha() and character != " "]
    at = chance.choice(places) + chance.randrange(2)
    return caption[:at] + chance.choice(CHARACTERS) + caption[at:]


def _compare(what: str, captions: Sequence[str]) -> None:
    begin = time.perf_counter()
    ours = tokenize_all(captions)
    between = time.perf_counter()
    theirs = tokenize_java(captions)
    end = time.perf_counter()
    differ = [row for row in zip(captions, ours, theirs, strict=True) if row[1] != row[2]]
    share = 100 * (1 - len(differ) / len(captions))
    print(f"{len(captions):,} {what}, {len(differ):,} differ: {share:.4f} % identical")
    print(f"{between - begin:.1f} s in Python, {end - between:.1f} s in Java")
    for caption, python, java in differ:
        print(f"{caption!r}\n  python: {python}\n  java:   {java}")


if __name__ == "__main__":
    main()
