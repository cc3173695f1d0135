"""The whole backward of a depthwise convolution, plane by plane, in the cache.

A plane (a channel of an image) is laid out in memory of its own with its padding, and with a stride in phases: one
piece for each remainder of the positions. Then every tap of the kernel meets all windows in one run of memory,
whatever stride and dilation: windows lie at the width of the padded plane, and the columns between, which are no
windows, hold zeros. So all sums over taps are sums of shifted runs, three at a time (`moves.py`):

    to windows      the squares of x, axis by axis
    back to places  the coefficients of the correction along x, axis by axis
    taps            dX, the sum of shifted D∘g times a tap, and dW, the products of D∘g with shifted x

Between them the pairs are split (`split.py`), without the columns between. Small planes of several images are
done together.

D∘g is never written out, and the native backward is not asked: it takes as long as all of this (64 images of 64
channels of 32²), or seven times as long (kernels of 7×7).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import (
    at,
    behind,
    call,
    integers,
    one_of,
    part_of_pass,
    rounded_to,
)
from prproduct.kernels.depthwise.moves import (
    ADD_PRODUCTS,
    ALL_PHASES,
    BACK_TO_PLACES,
    BY_INPUT,
    BY_PLACE,
    BY_TAPS,
    BY_WINDOW,
    COEFFICIENTS,
    COMBINE,
    COUNTS,
    FOR_INPUT,
    FOR_WEIGHT,
    FROM_PHASES,
    FROM_RUN,
    GRADIENT,
    IMAGES,
    KERNEL,
    KINDS,
    MEMORY,
    MOVE,
    OUTPUT,
    PLACES_RUN,
    PLACES_START,
    RESULT,
    ROWS,
    SIZES,
    SQUARE_SUMS,
    SQUARES,
    TAPS,
    TO_PHASES,
    TO_RUN,
    TO_WINDOWS,
    TURNED,
    WINDOWS,
    X,
)
from prproduct.kernels.depthwise.split import GIVEN
from prproduct.kernels.strips import copy, turn
from prproduct.kernels.tables import HAS_SUMS, INPUT_HALF, SAME, WEIGHT_HALF, WRITES


@part_of_pass()
def _add_along(count: int, x: Any, coefficient: Any, factor: Any, total: Any) -> None:
    for k in range(count):
        total[k] += x[k] * coefficient[k] * factor


@range_pass(GIVEN)
def depthwise_planes(first: int, last: int, share: int, given: Any) -> None:
    """dX of some planes, and the share's sums for dW: by tap, along the weight vectors, and of the windows' norms.

    `turns_input`, `turns_weight`: whether dX and dW have a part made of D∘g. `split` is an address.
    """
    one, zero, me = one_of(given), one_of(given) - one_of(given), behind(given) - 8 * GIVEN
    batch, groups, channels, wants_input, turns_input, turns_weight, size, geometry = integers(given)[:8]
    x, output, gradient, dx, weight, _, longest, _ = integers(given)[8:16]
    by_tap, total_norm, _, all_memory, program, split = integers(given)[16:]
    layout, same = at(geometry, 0, np.int64(0)), at(program, SAME, np.int64(0))[0]
    writes_weight = at(program, WEIGHT_HALF + WRITES, np.int64(0))[0]
    writes_input = at(program, INPUT_HALF + WRITES, np.int64(0))[0]
    images, vectors, taps, to_windows = layout[IMAGES], groups * channels, layout[TAPS], layout[COUNTS] * KINDS
    places = layout[SIZES] * layout[SIZES + 1] * layout[SIZES + 2] // images
    windows = layout[COUNTS] * layout[COUNTS + 1] * layout[COUNTS + 2] // images
    excess = layout[WINDOWS] - images * windows
    base = all_memory + share * layout[MEMORY] * size
    memory, turned = at(base, 0, one), base + layout[TURNED] * size
    kernel, padded, result = (
        at(memory, layout[KERNEL], one),
        at(memory, layout[X], one),
        at(memory, layout[RESULT], one),
    )
    for k in range(layout[MEMORY]):
        memory[k] = zero
    kernel[taps] = one
    # Loops go on behind the windows, to the next multiple of what they take at a time, over pairs of g = 0 and ‖x‖ = 1.
    for k in range(layout[WINDOWS] - excess, layout[WINDOWS]):
        at(memory, layout[BY_INPUT], one)[k] = one
    for k in range(vectors * (taps + 1)):
        at(by_tap, share * vectors * (taps + 1) + k, 1.0)[0] = 0.0
    at(total_norm, share, 1.0)[0] = -1.0 * excess * (last - first)
    call(split, 0, 0, share * vectors, me)
    for unit in range(first, last):
        group, image = unit % groups, unit // groups * images
        present = images if batch - image > images else batch - image
        slices, here = present if images > 1 else layout[SIZES], (image * groups + group) * places * size
        if present < images:
            for k in range(layout[ALL_PHASES]):
                padded[k] = zero
            for k in range(layout[WINDOWS]):
                at(memory, layout[GRADIENT], one)[k] = zero
        call(layout[MOVE], x + here, base + layout[X] * size, slices * KINDS + TO_PHASES, geometry)
        turn(layout[ALL_PHASES], padded, padded, at(memory, layout[SQUARES], one))
        call(layout[COMBINE], layout[TO_WINDOWS], layout[BACK_TO_PLACES], memory, geometry)
        from_here, to_there = base + layout[SQUARE_SUMS] * size, base + layout[BY_INPUT] * size
        call(layout[MOVE], from_here, to_there, to_windows + FROM_RUN, geometry)
        for vector in range(group * channels, (group + 1) * channels):
            plane = (image * vectors + vector) * windows
            p, grad = output + plane * size, gradient + plane * size
            if excess or images > 1:
                for z in range(present):
                    copied, original = at(memory, z * windows, one), plane + z * vectors * windows
                    copy(windows, at(output, original, one), at(copied, layout[OUTPUT], one))
                    copy(windows, at(gradient, original, one), at(copied, layout[GRADIENT], one))
                p, grad = base + layout[OUTPUT] * size, base + layout[GRADIENT] * size
            call(split, p, grad, share * vectors + vector, me)
            if turns_weight:
                source = base + layout[FOR_WEIGHT] * size if writes_weight else grad
                call(layout[MOVE], source, turned, to_windows + TO_RUN, geometry)
                of_vector = by_tap + (share * vectors + vector) * (taps + 1) * 8
                call(layout[ADD_PRODUCTS], of_vector, layout[COUNTS], memory, geometry)
            if turns_input:
                if not (same and turns_weight):
                    source = base + (layout[FOR_WEIGHT] if same else layout[FOR_INPUT]) * size if writes_input else grad
                    call(layout[MOVE], source, turned, to_windows + TO_RUN, geometry)
                for k in range(taps):
                    kernel[k] = at(weight, vector * taps + k, one)[0]
                rows = layout[ROWS] if vector % channels == 0 else ~layout[ROWS]
                call(layout[COMBINE], layout[BY_TAPS], rows, memory, geometry)
        if wants_input:
            for k in range(0 if turns_input else layout[ALL_PHASES]):
                result[k] = zero
            if at(program, INPUT_HALF + HAS_SUMS, np.int64(0))[0]:
                from_here, to_there = base + layout[COEFFICIENTS] * size, base + layout[BY_WINDOW] * size
                call(layout[MOVE], from_here, to_there, to_windows + TO_RUN, geometry)
                call(layout[COMBINE], layout[BACK_TO_PLACES], layout[BY_TAPS], memory, geometry)
                start, factor = layout[PLACES_START], at(longest, group, one)[0]
                coefficients = at(memory, layout[BY_PLACE] + start, one)
                _add_along(layout[PLACES_RUN], at(padded, start, one), coefficients, factor, at(result, start, one))
            call(layout[MOVE], base + layout[RESULT] * size, dx + here, slices * KINDS + FROM_PHASES, geometry)


@range_pass(9)
def weight_of_planes(first: int, last: int, share: int, given: Any) -> None:
    """dW of some weight vectors, from the sums of all shares."""
    one = one_of(given)
    vectors, taps, shares, has_sums, weight, inverse, by_weight, by_tap, dw = integers(given)
    for vector in range(first, last):
        along = 0.0
        for thread in range(shares if has_sums else 0):
            along += at(by_weight, thread * vectors + vector, 1.0)[0]
        along *= at(inverse, vector, one)[0]
        for k in range(taps):
            total = at(weight, vector * taps + k, one)[0] * along if has_sums else 0.0
            for thread in range(shares):
                total += at(by_tap, (thread * vectors + vector) * (taps + 1) + k, 1.0)[0]
            at(dw, vector * taps + k, one)[0] = rounded_to(one, total)
