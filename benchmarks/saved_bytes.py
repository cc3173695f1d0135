"""Bytes that nets save for backward: natively, with memory="save" and with memory="recompute".

    python benchmarks/saved_bytes.py

Counted as in `prproduct bench`; it takes a few minutes, and does not depend on what else the machine does.
"""

from __future__ import annotations

import copy

import torch

import prproduct as pr
from prproduct.bench.cases import CASES
from prproduct.bench.profiling import kept_bytes


def main() -> None:
    """Print the table of docs/speed.md."""
    print("| net | native MB | save | recompute |\n| --- | --- | --- | --- |")
    for case in CASES:
        if not case.classes:
            continue
        torch.manual_seed(0)
        native = case.build()
        batch = case.batch(torch.float32)
        nets = [native, *(pr.convert(copy.deepcopy(native), memory=memory) for memory in ("save", "recompute"))]
        first, *others = (kept_bytes(case.forward(net), batch) for net in nets)
        print(
            f"| {case.name} | {first / 1e6:.0f} | {' | '.join(f'{ours / first:.2f}' for ours in others)} |", flush=True
        )


if __name__ == "__main__":
    main()
