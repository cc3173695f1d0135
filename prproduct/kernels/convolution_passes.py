"""The passes of a convolution's backward, image by image, so that what lies between them stays in the cache.

For every image and group: the squares of the input are added up over channels and then over windows (`windows.py` has
the same in torch); with the norms of the windows the pairs are split (as `passes.split_rows` does); the sums of the
windows go back to the positions of the input, by which the gradient's correction along the input is made.

Positions have three axes; a convolution of fewer has axes of length one. Each axis is added up apart: shifted runs of
memory, never running sums, in which one outlier would ruin the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.passes import (
    OFFSET,
    ROUNDED,
    STRIP,
    WEIGHT_INVERSE,
    WEIGHT_LENGTH,
    WEIGHT_VALUE,
    angles,
    prepare,
    run,
    sines,
    square_sum,
    sums,
    turn,
)
from prproduct.kernels.pointers import at, compiled_pass, in_team, part_of_pass, team_pass
from prproduct.kernels.programs import COS, INVERSE_SIN, SIN

AXES = 3


# Loops that LLVM vectorizes only in functions of their own.
@part_of_pass
def _add(count: int, x: Any, total: Any) -> None:
    for k in range(count):
        total[k] += x[k]


@part_of_pass
def _add_squares(count: int, x: Any, total: Any) -> None:
    for k in range(count):
        total[k] += x[k] * x[k]


@part_of_pass
def _norms(count: int, square: Any, one: Any, value: Any, inverse: Any) -> None:
    """`pairs.Norms.of`."""
    zero = one - one
    for k in range(count):
        root = np.sqrt(square[k])
        positive = root > zero and root < np.inf
        value[k] = root if positive else zero
        inverse[k] = one / root if positive else zero


@part_of_pass
def _add_neighbours(rows: int, width: int, source: Any, one: Any, target: Any) -> None:
    """The sums of three neighbours in every row: along the last axis, windows of three with one place of padding."""
    for row in range(rows):
        t, total = at(source, row * width, one), at(target, row * width, one)
        for k in range(1, width - 1):
            total[k] = t[k - 1] + t[k] + t[k + 1]
        last = width - 1
        total[last] = t[last] + t[last - 1]
        total[0] = t[0] + t[1]


@part_of_pass
def _over_windows(gather: bool, groups: int, shape: Any, source: Any, spare: Any, one: Any) -> Any:
    """`windows.gather` or `windows.scatter`, to and fro between two pieces of memory; the one with the result."""
    sizes, counts, kernels, strides, paddings, dilations = shape
    for axis in range(AXES):
        kernel, stride, padding, size, count = kernels[axis], strides[axis], paddings[axis], sizes[axis], counts[axis]
        if kernel == 1 and stride == 1 and padding == 0 and size == count:
            continue
        outer, inner = groups, 1  # how often the axis is there, and how many numbers lie in one of its places
        for other in range(AXES):
            if other < axis:
                outer *= counts[other] if gather else sizes[other]
            elif other > axis:
                inner *= sizes[other] if gather else counts[other]
        if inner == 1 and kernel == 3 and stride == 1 and padding == 1 and dilations[axis] == 1 and size == count > 1:
            _add_neighbours(outer, size, source, one, spare)  # its own transpose
            source, spare = spare, source
            continue
        for k in range(outer * inner * (count if gather else size)):
            spare[k] = one - one
        for block in range(outer):
            for k in range(kernel):
                shift = k * dilations[axis] - padding  # the kth place of window o is o·stride + shift
                low, high = -(shift // stride), (size - 1 - shift) // stride + 1
                low, high = low if low > 0 else 0, high if high < count else count
                # Windows whose places are next to each other, or as far apart as all, make one run.
                whole = stride == 1 or inner == 1
                length = (high - low) * inner if whole else inner
                step = stride if inner == 1 else 1
                for o in range(low, low + 1 if whole and high > low else high):
                    window = (block * count + o) * inner
                    place = (block * size + o * stride + shift) * inner
                    if gather and step == 1:
                        _add(length, at(source, place, one), at(spare, window, one))
                    elif gather:
                        for i in range(length):
                            spare[window + i] += source[place + i * step]
                    elif step == 1:
                        _add(length, at(source, window, one), at(spare, place, one))
                    else:
                        for i in range(length):
                            spare[place + i * step] += source[window + i]
        source, spare = spare, source
    return source


@compiled_pass
def split_planes(
    first: int,  # planes that belong together, those of an image and a group
    last: int,
    share: int,  # which of by_weight and of the memory for work is this thread's
    transposed: bool,
    together: int,  # one: groups that are summed over windows at a time
    groups: int,
    in_channels: int,  # of a group
    channels: int,
    shape: Any,  # of the axes: places, windows, kernel, stride, padding, dilation
    x: int,
    pairs: Any,  # addresses: output, grad, D∘g for ∂/∂w, D∘g for ∂/∂x
    table: int,
    by_weight: int,  # float64, added to
    coefficients: int,  # for the correction along x, a number for every image, group and position
    work: Any,  # addresses: registers, and numbers for every window and place
    memory: int,  # how many of the latter each share has
    plan: Any,  # these as for `passes.split_rows`
    weight_half: Any,
    input_half: Any,
    steps: Any,
    constants: int,
    floor: Any,
    eps: Any,
    one: Any,
) -> None:
    """`splitting.split` for planes, and the sums over windows before and behind it."""
    sizes, counts = shape[0], shape[1]
    size, windows = sizes[0] * sizes[1] * sizes[2], counts[0] * counts[1] * counts[2]
    places, windows = (windows, size) if transposed else (size, windows)
    vectors = groups * channels
    registers = at(work[0], share * (plan[0] + 1) * STRIP, one)
    norm = at(work[1], share * memory, one)
    reciprocal, by_input, source = at(norm, windows, one), at(norm, 2 * windows, one), at(norm, 3 * windows, one)
    spare = at(source, (memory - 3 * windows) // 2, one)
    totals = at(by_weight, share * vectors, 1.0)
    prepare(registers, plan[0], constants, one)
    cos, inverse = at(registers, COS * STRIP, one), at(registers, INVERSE_SIN * STRIP, one)
    weight_length, weight_direction = (
        at(registers, weight_half[0] * STRIP, one),
        at(registers, weight_half[1] * STRIP, one),
    )
    for unit in range(first, last):
        for k in range(places):
            source[k] = one - one
        for c in range(in_channels):
            _add_squares(places, at(x, (unit * in_channels + c) * places, one), source)
        squares = _over_windows(not transposed, together, shape, source, spare, one)
        _norms(windows, squares, one, norm, reciprocal)
        for k in range(windows):
            by_input[k] = one - one
        for j in range(channels):
            vector = unit % groups * channels + j
            of_weight = at(table, vector, one)
            offset, rounded, w_norm = (
                of_weight[OFFSET * vectors],
                of_weight[ROUNDED * vectors],
                of_weight[WEIGHT_VALUE * vectors],
            )
            w_inverse, w_length = of_weight[WEIGHT_INVERSE * vectors], of_weight[WEIGHT_LENGTH * vectors]
            for start in range(0, windows, STRIP):
                count = STRIP if windows - start > STRIP else windows - start
                here = (unit * channels + j) * windows + start
                grad, x_norm = at(pairs[1], here, one), at(norm, start, one)
                x_inverse, x_total = at(reciprocal, start, one), at(by_input, start, one)
                angles(count, at(pairs[0], here, one), offset, w_inverse, x_inverse, rounded, floor, one, cos, inverse)
                if eps is not None:
                    sines(count, cos, eps, one, at(registers, SIN * STRIP, one))
                if steps is not None:
                    run(count, plan[1], steps, w_norm, x_norm, registers, one)
                if weight_half[3]:
                    totals[vector] += sums(
                        count,
                        grad,
                        weight_length,
                        weight_direction,
                        cos,
                        w_length,
                        x_norm,
                        one,
                        x_total if input_half is None else at(registers, plan[0] * STRIP, one),
                    )
                if input_half is not None:
                    length, direction = (
                        at(registers, input_half[0] * STRIP, one),
                        at(registers, input_half[1] * STRIP, one),
                    )
                    if input_half[3]:
                        sums(count, grad, length, direction, cos, w_length, x_norm, one, x_total)
                    if input_half[2]:
                        turn(count, grad, direction, at(pairs[3], here, one))
                if weight_half[2]:
                    turn(count, grad, weight_direction, at(pairs[2], here, one))
        for k in range(windows):
            source[k] = by_input[k] * reciprocal[k]
        result, target = (
            _over_windows(transposed, together, shape, source, spare, one),
            at(coefficients, unit * places, one),
        )
        for k in range(places):
            target[k] = result[k]


@compiled_pass
def window_norms(
    first: int,  # images
    last: int,
    share: int,
    transposed: bool,
    groups: int,
    channels: int,
    shape: Any,
    x: int,
    work: int,
    memory: int,
    value: int,
    inverse: int,
    total: int,  # float64, for each share: the sum of its norms
    planes: bool,  # if not, channels are last
    one: Any,
) -> None:
    """The norms of all windows, written for every image, window and group if channels are last."""
    sizes, counts = shape[0], shape[1]
    size, windows = sizes[0] * sizes[1] * sizes[2], counts[0] * counts[1] * counts[2]
    places, windows = (windows, size) if transposed else (size, windows)
    source = at(work, share * memory, one)
    spare = at(source, memory // 2, one)
    norms = 0.0
    for n in range(first, last):
        for g in range(groups):
            target = at(source, g * places, one)
            for s in range(places):
                row = at(x, ((n * places + s) * groups + g) * channels, one)
                target[s] = one - one if planes else square_sum(channels, row, one)
            for c in range(channels if planes else 0):
                _add_squares(places, at(x, ((n * groups + g) * channels + c) * places, one), target)
        squares = _over_windows(not transposed, groups, shape, source, spare, one)
        for g in range(groups):
            for s in range(windows):
                root = np.sqrt(squares[g * windows + s])
                positive = root > 0.0 and root < np.inf
                norms += root if positive else 0.0
                if not planes:
                    here = (n * windows + s) * groups + g
                    at(value, here, one)[0] = root if positive else one - one
                    at(inverse, here, one)[0] = one / root if positive else one - one
    at(total, share, 1.0)[0] = norms


@compiled_pass
def window_sums_back(
    first: int,
    last: int,
    share: int,
    transposed: bool,
    groups: int,
    shape: Any,
    by_input: int,  # float64, for every image, window and group
    inverse: int,
    work: int,
    memory: int,
    coefficients: int,  # for every image, group and position
    one: Any,
) -> None:
    """The sums of the windows, by their norms, back to the positions of the input."""
    sizes, counts = shape[0], shape[1]
    size, windows = sizes[0] * sizes[1] * sizes[2], counts[0] * counts[1] * counts[2]
    places, windows = (windows, size) if transposed else (size, windows)
    source = at(work, share * memory, one)
    spare = at(source, memory // 2, one)
    for n in range(first, last):
        for g in range(groups):
            for s in range(windows):
                here = (n * windows + s) * groups + g
                source[g * windows + s] = at(inverse, here, one)[0] * at(by_input, here, 1.0)[0]
        result = _over_windows(transposed, groups, shape, source, spare, one)
        target = at(coefficients, n * groups * places, one)
        for k in range(groups * places):
            target[k] = result[k]


@compiled_pass
def add_along_planes(
    first: int,
    last: int,
    share: int,
    groups: int,
    channels: int,
    positions: int,
    x: int,
    coefficients: int,
    longest: int,
    total: int,
    one: Any,
) -> None:
    """total += x·coefficient·longest, for planes of an image and a group."""
    for unit in range(first, last):
        factor, coefficient = at(longest, unit % groups, one)[0], at(coefficients, unit * positions, one)
        for c in range(channels):
            here = (unit * channels + c) * positions
            plane, target = at(x, here, one), at(total, here, one)
            for k in range(positions):
                target[k] += plane[k] * coefficient[k] * factor


@compiled_pass
def add_along_rows(
    first: int,
    last: int,
    share: int,
    groups: int,
    channels: int,
    positions: int,
    x: int,
    coefficients: int,
    longest: int,
    total: int,
    one: Any,
) -> None:
    """total += x·coefficient·longest, for images with channels last."""
    for n in range(first, last):
        for s in range(positions):
            for g in range(groups):
                factor = at(coefficients, (n * groups + g) * positions + s, one)[0] * at(longest, g, one)[0]
                here = ((n * positions + s) * groups + g) * channels
                row, target = at(x, here, one), at(total, here, one)
                for k in range(channels):
                    target[k] += row[k] * factor


@team_pass(split_planes)
def split_planes_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`split_planes` on OpenMP's threads."""
    in_team(openmp, split_planes, threads, first, last, arguments)


@team_pass(window_norms)
def window_norms_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`window_norms` on OpenMP's threads."""
    in_team(openmp, window_norms, threads, first, last, arguments)


@team_pass(window_sums_back)
def window_sums_back_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`window_sums_back` on OpenMP's threads."""
    in_team(openmp, window_sums_back, threads, first, last, arguments)


@team_pass(add_along_planes)
def add_along_planes_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`add_along_planes` on OpenMP's threads."""
    in_team(openmp, add_along_planes, threads, first, last, arguments)


@team_pass(add_along_rows)
def add_along_rows_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`add_along_rows` on OpenMP's threads."""
    in_team(openmp, add_along_rows, threads, first, last, arguments)
