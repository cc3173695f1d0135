"""The tokenizer beside the original Java program, on all captions of COCO 2014: how many differ, and which."""

from __future__ import annotations

import time

from prproduct.captioning.metrics.bundled import coco_captions
from prproduct.captioning.metrics.java import tokenize_java
from prproduct.captioning.metrics.tokenizer import tokenize_all


def main() -> None:
    """Print the count and every caption that differs."""
    captions = [caption for split in ("train", "val") for image in coco_captions(split).values() for caption in image]
    begin = time.perf_counter()
    ours = tokenize_all(captions)
    between = time.perf_counter()
    theirs = tokenize_java(captions)
    end = time.perf_counter()
    differ = [row for row in zip(captions, ours, theirs, strict=True) if row[1] != row[2]]
    share = 100 * (1 - len(differ) / len(captions))
    print(f"{len(captions):,} captions, {len(differ):,} differ: {share:.4f} % identical")
    print(f"{between - begin:.1f} s in Python, {end - between:.1f} s in Java")
    for caption, python, java in differ:
        print(f"{caption!r}\n  python: {python}\n  java:   {java}")


if __name__ == "__main__":
    main()
