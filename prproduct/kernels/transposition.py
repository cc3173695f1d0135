"""From channels first to channels last, and back."""

from __future__ import annotations

from typing import Any

from prproduct.kernels.compiler.words import at, part_of_pass, transpose_square
from prproduct.kernels.tables import WIDE

NARROW = 8


@part_of_pass()
def transpose(rows: int, columns: int, source: Any, source_step: int, one: Any, target: Any, target_step: int) -> None:
    """target[c, r] = source[r, c], square by square; the last in a row or column overlaps with the one before.

    Whole lines of the cache at once: planes are often as far apart as to displace each other from it.
    """
    if rows < NARROW or columns < NARROW:
        for c in range(columns):
            for r in range(rows):
                target[c * target_step + r] = source[r * source_step + c]
        return
    size = WIDE if rows >= WIDE and columns >= WIDE else NARROW
    for left in range(0, columns, size):
        c = left if left + size <= columns else columns - size
        for top in range(0, rows, size):
            r = top if top + size <= rows else rows - size
            here, there = at(source, r * source_step + c, one), at(target, c * target_step + r, one)
            if size == WIDE:
                transpose_square(WIDE, here, source_step, there, target_step)
            else:
                transpose_square(NARROW, here, source_step, there, target_step)
