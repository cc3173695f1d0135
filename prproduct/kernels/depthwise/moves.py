"""Runs of memory that a depthwise convolution's backward adds up, and how numbers get there and back.

`layout.py` says where everything lies and lists the runs; `passes.py` does the rest, and calls
these passes by their addresses, so that each is compiled once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import (
    at,
    behind,
    copy_eight,
    fill_eight,
    integers,
    one_of,
    part_of_pass,
)

# The integers by which passes know a layout (`layout.layout`), the first five for each of three axes: places,
# windows, places in the padded plane (in one of its phases), stride, padding.
AXES = 3
SIZES, COUNTS, PADDED, STRIDES, PADDINGS = range(0, 5 * AXES, AXES)
(
    MEMORY,  # numbers a share works on; all below are places in them
    IMAGES,  # that are done together, along the first axis
    TAPS,
    PHASE,  # numbers in a phase
    PHASES,
    PLACES_START,  # of the input's first place, in any phase
    WINDOWS_RUN,  # from the first window to the last, with what lies between; these lengths are rounded up
    WINDOWS,
    ALL_PHASES,
    PLACES_RUN,  # from the first place to the last in all phases
    KERNEL,  # the taps, and a one
    X,
    SQUARES,
    SQUARE_SUMS,
    TURNED,  # D∘g
    BY_WINDOW,  # the coefficients where windows lie, and
    BY_PLACE,  # these added up for places
    RESULT,
    NORMS,
    INVERSES,
    BY_INPUT,
    FOR_WEIGHT,
    FOR_INPUT,
    OUTPUT,  # copies of several images', or of a plane that is no multiple of what loops take at a time
    GRADIENT,
    COEFFICIENTS,
    TO_WINDOWS,  # the first row of each kind in the table, which follows
    BACK_TO_PLACES,
    BY_TAPS,
    ROWS,
    IMAGE_STEP,  # from one slice of a plane, or from one image's to the next
    MOVE,  # the addresses of the passes below
    COMBINE,
    ADD_PRODUCTS,
    TABLE,
) = range(5 * AXES, 5 * AXES + 35)

# A row of the table: the target gets (if it is fresh) or is increased by the sum of three runs times three taps. For
# taps, the places of x which they meet.
FRESH, COUNT, TARGET, RUNS, FACTORS, MEETS, ROW = 0, 1, 2, 3, 6, 9, 12

KINDS = 4
TO_PHASES, FROM_PHASES, TO_RUN, FROM_RUN = range(KINDS)  # of moves

CHUNK = 4096  # products added up in the layer's own precision before they go to a total in float64


@part_of_pass(reassociates=True)
def _combine(count: int, a: Any, b: Any, c: Any, of_a: Any, of_b: Any, of_c: Any, fresh: bool, target: Any) -> None:
    if fresh:
        for k in range(count):
            target[k] = a[k] * of_a + b[k] * of_b + c[k] * of_c
    else:
        for k in range(count):
            target[k] += a[k] * of_a + b[k] * of_b + c[k] * of_c


@part_of_pass(reassociates=True)
def _products(count: int, turned: Any, a: Any, b: Any, c: Any, one: Any) -> Any:
    of_a = of_b = of_c = one - one
    for k in range(count):
        of_a += turned[k] * a[k]
        of_b += turned[k] * b[k]
        of_c += turned[k] * c[k]
    return of_a, of_b, of_c


@range_pass(TABLE)
def move(source: int, target: int, what: int, given: Any) -> None:
    """So many slices to where they lie in padded planes, or back: of a plane's places, or of numbers of its windows.

    Eight numbers at a time, the excess of which the next rows overwrite, as they do the zeros between rows.
    """
    one, layout = one_of(given), integers(given)
    slices, kind = what // KINDS, what % KINDS
    of_places, inwards = kind < TO_RUN, kind % 2 == 0
    rows, width = layout[COUNTS + 1], layout[COUNTS + 2]
    if of_places:
        rows, width = layout[SIZES + 1], layout[SIZES + 2]
    step, wide = layout[IMAGE_STEP] if of_places else rows * width, layout[PADDED + 2]
    wide_step, start = layout[PADDED + 1] * wide, layout[PLACES_START] if of_places else 0
    if of_places and layout[PHASES] > 1:
        stride, padding, y_stride = layout[STRIDES + 2], layout[PADDINGS + 2], layout[STRIDES + 1]
        for remainder in range(stride):
            first = (remainder - padding) % stride
            count, start = (width - first + stride - 1) // stride, (first + padding) // stride
            for z in range(slices):
                z_phase, z_place = (z + layout[PADDINGS]) % layout[STRIDES], (z + layout[PADDINGS]) // layout[STRIDES]
                # Counted along, as divisions for every row took longer than its numbers.
                y_phase, y_place = layout[PADDINGS + 1] % y_stride, layout[PADDINGS + 1] // y_stride
                for row in range(rows):
                    phase = (z_phase * y_stride + y_phase) * stride + remainder
                    lane = phase * layout[PHASE] + z_place * wide_step + y_place * wide + start
                    place = z * step + row * width + first
                    from_here = at(source, place if inwards else lane, one)
                    to_there = at(target, lane if inwards else place, one)
                    for k in range(count):
                        if inwards:
                            to_there[k] = from_here[k * stride]
                        else:
                            to_there[k * stride] = from_here[k]
                    y_phase += 1
                    if y_phase == y_stride:
                        y_phase, y_place = 0, y_place + 1
        return
    gap = wide - width if inwards else 0
    source_step, source_row, target_step, target_row = step, width, wide_step, wide
    if not inwards:
        source_step, source_row, target_step, target_row = wide_step, wide, step, width
    eights, reach = (width + 7) // 8 * 8, width + (gap + 7) // 8 * 8
    for z in range(slices):
        from_slice = at(source, z * source_step + (0 if inwards else start), one)
        to_slice = at(target, z * target_step + (start if inwards else 0), one)
        for row in range(rows):
            from_here, to_there = at(from_slice, row * source_row, one), at(to_slice, row * target_row, one)
            rest = rows - 1 - row
            behind_target = rest * target_row + width
            if rest * source_row + width >= eights and behind_target >= eights and behind_target >= reach:
                for k in range(0, width, 8):
                    copy_eight(at(to_there, k, one), at(from_here, k, one))
                if gap:  # the first by itself: the compiler makes a call of the loop, which costs more than a row
                    fill_eight(at(to_there, width, one), one - one)
                for k in range(width + 8, width + gap, 8):
                    fill_eight(at(to_there, k, one), one - one)
            else:
                for k in range(width):
                    to_there[k] = from_here[k]
                for k in range(width, width + gap if rest else width):
                    to_there[k] = one - one


@range_pass(TABLE)
def combine(first: int, last: int, memory: int, given: Any) -> None:
    """What some rows of the table say; none of them is fresh if the last is given as its complement."""
    one, layout = one_of(given), integers(given)
    kernel = at(memory, layout[KERNEL], one)
    for number in range(first, last if last > 0 else ~last):
        row = at(behind(given), number * ROW, np.int64(0))
        _combine(
            row[COUNT],
            at(memory, row[RUNS], one),
            at(memory, row[RUNS + 1], one),
            at(memory, row[RUNS + 2], one),
            kernel[row[FACTORS]],
            kernel[row[FACTORS + 1]],
            kernel[row[FACTORS + 2]],
            row[FRESH] != 0 and last > 0,
            at(memory, row[TARGET], one),
        )


@range_pass(TABLE)
def add_products(totals: int, slices: int, memory: int, given: Any) -> None:
    """dW of a plane, to the totals of the taps."""
    one, layout = one_of(given), integers(given)
    turned, run, of_taps = at(memory, layout[TURNED], one), layout[WINDOWS_RUN], at(totals, 0, 1.0)
    height, width = layout[COUNTS + 1], layout[COUNTS + 2]
    for number in range(layout[BY_TAPS], layout[ROWS]):
        row = at(behind(given), number * ROW, np.int64(0))
        x, y, z = at(memory, row[MEETS], one), at(memory, row[MEETS + 1], one), at(memory, row[MEETS + 2], one)
        of_x = of_y = of_z = 0.0
        for start in range(0, run, CHUNK):
            some = _products(
                CHUNK if run - start > CHUNK else run - start,
                at(turned, start, one),
                at(x, start, one),
                at(y, start, one),
                at(z, start, one),
                one,
            )
            of_x += some[0]
            of_y += some[1]
            of_z += some[2]
        if not np.isfinite(of_x + of_y + of_z):
            # Again without the columns that are no windows, where an Inf of x makes NaN of their zeros.
            of_x = of_y = of_z = 0.0
            for line in range(slices * height):
                start = (line // height * layout[PADDED + 1] + line % height) * layout[PADDED + 2]
                for k in range(start, start + width):
                    of_x += turned[k] * x[k]
                    of_y += turned[k] * y[k]
                    of_z += turned[k] * z[k]
        of_taps[row[FACTORS]] += of_x
        of_taps[row[FACTORS + 1]] += of_y
        of_taps[row[FACTORS + 2]] += of_z
