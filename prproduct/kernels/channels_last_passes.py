"""The passes of a convolution whose channels are last in memory: the pairs of an image lie position by position.

All groups of an image are done together. A strip takes as many whole positions as fit into it, so that few channels, or
one a group, do not make short loops: what is known of the weight vectors is laid out once for every position of a strip
(the tile), and the norms of the windows are spread over their pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, fill_eight, integers, one_of, part_of_pass
from prproduct.kernels.convolution_passes import HALF, add_squares, extent, norms, sum_over_windows
from prproduct.kernels.program_passes import prepare, run_program
from prproduct.kernels.programs import COS, INVERSE_SIN
from prproduct.kernels.strips import angles, copy, take_off, turn
from prproduct.kernels.tables import (
    BLOCK,
    DIRECTION,
    EXCESSES,
    FIELDS,
    FLOOR,
    HAS_SUMS,
    INPUT_HALF,
    IS_PR,
    LENGTH,
    LIMITS,
    OFFSET,
    PRODUCTS,
    REGISTERS,
    ROUNDED,
    SAME,
    STRIP,
    WEIGHT_HALF,
    WEIGHT_INVERSE,
    WEIGHT_LENGTH,
    WEIGHT_VALUE,
    WRITES,
)

EIGHT = 8  # channels at a time, for which the compiler makes a vector of each


@part_of_pass(reassociates=True)
def squares_of_image(places: int, groups: int, channels: int, x: Any, one: Any, squares: Any) -> None:
    """Σ x² over the channels of every position and group."""
    for s in range(places * groups):
        row, total, eighths = at(x, s * channels, one), one - one, channels // EIGHT
        for eighth in range(eighths):
            eight = at(row, eighth * EIGHT, one)
            for k in range(EIGHT):
                total += eight[k] * eight[k]
        for k in range(eighths * EIGHT, channels):
            total += row[k] * row[k]
        squares[s] = total


@part_of_pass()
def _spread(start: int, count: int, channels: int, norm: Any, inverse: Any, one: Any, norms: Any) -> None:
    """The norms of windows, to each of their pairs from `start` on, and their inverses to the strip behind."""
    inverses = at(norms, STRIP, one)
    for row in range(start // channels, (start + count - 1) // channels + 1):
        low, high = row * channels - start, (row + 1) * channels - start
        low, high = low if low > 0 else 0, high if high < count else count
        x, y, eighths = norm[row], inverse[row], (high - low) // EIGHT
        for eighth in range(eighths):
            fill_eight(at(norms, low + eighth * EIGHT, one), x)
            fill_eight(at(inverses, low + eighth * EIGHT, one), y)
        for k in range(low + eighths * EIGHT, high):
            norms[k] = x
            inverses[k] = y


@part_of_pass(reassociates=True)
def _gather(start: int, count: int, channels: int, of_pairs: Any, one: Any, of_windows: Any) -> None:
    """The transpose: added up for every position and group."""
    for row in range(start // channels, (start + count - 1) // channels + 1):
        low, high = row * channels - start, (row + 1) * channels - start
        low, high = low if low > 0 else 0, high if high < count else count
        total, eighths = one - one, (high - low) // EIGHT
        for eighth in range(eighths):
            here = low + eighth * EIGHT
            for k in range(EIGHT):
                total += of_pairs[here + k]
        for k in range(low + eighths * EIGHT, high):
            total += of_pairs[k]
        of_windows[row] += total


@part_of_pass(apart=True)
def _radial(
    count: int,
    grad: Any,
    length: Any,
    direction: Any,
    cos: Any,
    input_norm: Any,
    weight_length: Any,
    sums: Any,
    of_x: Any,
) -> None:
    """The radial half (L − D)·cos θ·g: times ‖x‖ added to the sums of the weight vectors, times ‖w‖ for those of x."""
    for k in range(count):
        radial = (length[k] - direction[k]) * cos[k] * grad[k]
        sums[k] += radial * input_norm[k]
        of_x[k] = radial * weight_length[k]


@part_of_pass(apart=True)
def _split_at_once(
    count: int,
    output: Any,
    gradient: Any,
    offset: Any,
    rounded: Any,
    weight_inverse: Any,
    input_inverse: Any,
    input_norm: Any,
    weight_length: Any,
    length: Any,
    floor: Any,
    one: Any,
    sums: Any,
    of_x: Any,
    turned: Any,
) -> None:
    """`angles`, `_radial` and `turn` in one loop, for D = 1/|sin θ| and one L for all."""
    zero = one - one
    for k in range(count):
        c = (output[k] - offset[k]) * input_inverse[k] * weight_inverse[k]
        c = min(max(c, -one), one) if c == c else zero
        square = (one - c) * (one + c)
        resolved = square > floor * (one + rounded[k] * input_inverse[k])
        direction = one / np.sqrt(square if resolved else one)
        radial = (length - direction) * c * gradient[k]
        sums[k] += radial * input_norm[k]
        of_x[k] = radial * weight_length[k]
        turned[k] = gradient[k] * direction


@part_of_pass()
def _split_strip(
    count: int,
    program: int,
    registers: Any,
    one: Any,
    output: Any,
    addend: int,
    first: int,
    gradient: Any,
    tile: Any,
    span: int,
    input_norm: Any,
    input_inverse: Any,
    sums: Any,
    of_x: Any,
    for_weight: Any,
    for_input: Any,
) -> Any:
    """`strips.split_strip`, where along a strip both vectors change; the sum of what p was rounded in.

    Unless its address is 0, the addend was added to the output: the strip's begins with its `first`.
    """
    plan = at(program, 0, np.int64(0))
    weight_half, input_half = at(plan, WEIGHT_HALF, np.int64(0)), at(plan, INPUT_HALF, np.int64(0))
    offset, rounded = at(tile, OFFSET * span, one), at(tile, ROUNDED * span, one)
    inverse, lengths = at(tile, WEIGHT_INVERSE * span, one), at(tile, WEIGHT_LENGTH * span, one)
    w_length, x_length = at(registers, weight_half[LENGTH] * STRIP, one), at(registers, input_half[LENGTH] * STRIP, one)
    floor, added, p = at(plan[LIMITS], FLOOR, one)[0], one - one, at(output, 0, one)
    if addend:
        products = at(registers, (plan[REGISTERS] + PRODUCTS) * STRIP, one)
        excesses = at(registers, (plan[REGISTERS] + EXCESSES) * STRIP, one)
        added = take_off(count, p, at(addend, first, one), rounded, inverse, one, products, excesses)
        p, rounded = products, excesses
    if plan[IS_PR]:
        _split_at_once(
            count,
            p,
            gradient,
            offset,
            rounded,
            inverse,
            input_inverse,
            input_norm,
            lengths,
            w_length[0],
            floor,
            one,
            sums,
            of_x,
            for_weight,
        )
        return added
    cos, inverse_sin = at(registers, COS * STRIP, one), at(registers, INVERSE_SIN * STRIP, one)
    w_direction = at(registers, weight_half[DIRECTION] * STRIP, one)
    x_direction = at(registers, input_half[DIRECTION] * STRIP, one)
    angles(count, p, offset, inverse, input_inverse, rounded, floor, one, cos, inverse_sin)
    run_program(count, program, registers, at(tile, WEIGHT_VALUE * span, one), input_norm, one)
    if weight_half[HAS_SUMS]:
        _radial(count, gradient, w_length, w_direction, cos, input_norm, lengths, sums, of_x)
    if weight_half[WRITES]:
        turn(count, gradient, w_direction, for_weight)
    if not plan[SAME]:
        if input_half[HAS_SUMS]:
            unread = at(registers, (plan[REGISTERS] + 3) * STRIP, one)
            _radial(count, gradient, x_length, x_direction, cos, input_norm, lengths, unread, of_x)
        if input_half[WRITES]:
            turn(count, gradient, x_direction, for_input)
    return added


@range_pass(20)
def split_last(first: int, last: int, share: int, given: Any) -> None:
    """`convolution_passes.split_planes` for images with channels last."""
    one = one_of(given)
    transposed, groups, in_channels, channels, geometry, x, output, gradient, for_weight, for_input = integers(given)[
        :10
    ]
    table, by_weight, total_norm, coefficients, work, memory, tiles, program, addend, added = integers(given)[10:]
    plan, half = at(program, 0, np.int64(0)), at(geometry, 0, np.int64(0))[HALF]
    places, windows = extent(geometry, transposed)
    vectors, all_windows = groups * channels, windows * groups
    span = STRIP // vectors * vectors if vectors <= STRIP else vectors
    source = at(memory, share * (2 * half + 3 * all_windows), one)
    norm = at(source, 2 * half, one)
    reciprocal, by_input = at(norm, all_windows, one), at(norm, 2 * all_windows, one)
    totals, tile = at(by_weight, share * vectors, 1.0), at(tiles, share * (FIELDS + 1) * span, one)
    partial = at(tile, FIELDS * span, one)
    for field in range(FIELDS):
        for k in range(span):
            tile[field * span + k] = at(table, field * vectors + k % vectors, one)[0]
    for k in range(span):
        partial[k] = one - one
    registers = prepare(work, share, program, one)
    spread = at(registers, plan[REGISTERS] * STRIP, one)
    blocks, all_norms, all_added = 0, 0.0, 0.0
    for n in range(first, last):
        image = at(x, n * places * groups * in_channels, one)
        if in_channels == 1:
            for k in range(places * groups):
                source[k] = one - one
            add_squares(places * groups, image, source)
        else:
            squares_of_image(places, groups, in_channels, image, one, source)
        squares = sum_over_windows(not transposed, groups, geometry, source, one)
        all_norms += norms(all_windows, squares, one, norm, reciprocal)
        for k in range(all_windows):
            by_input[k] = one - one
        for start in range(0, windows * vectors, span):
            end = start + span if windows * vectors - start > span else windows * vectors
            for here in range(start, end, STRIP):
                count, pair, of_tile = (
                    STRIP if end - here > STRIP else end - here,
                    n * windows * vectors + here,
                    here - start,
                )
                if channels == 1:  # every pair has its own window
                    x_norm, x_inverse, of_x = at(norm, here, one), at(reciprocal, here, one), at(by_input, here, one)
                else:
                    x_norm, x_inverse, of_x = spread, at(spread, STRIP, one), at(spread, 2 * STRIP, one)
                    _spread(here, count, channels, norm, reciprocal, one, spread)
                all_added += _split_strip(
                    count,
                    program,
                    registers,
                    one,
                    at(output, pair, one),
                    addend,
                    pair,
                    at(gradient, pair, one),
                    at(tile, of_tile, one),
                    span,
                    x_norm,
                    x_inverse,
                    at(partial, of_tile, one),
                    of_x,
                    at(for_weight, pair, one),
                    at(for_input, pair, one),
                )
                if plan[INPUT_HALF + HAS_SUMS] and channels > 1:
                    _gather(here, count, channels, of_x, one, by_input)
            blocks += 1
            if blocks == BLOCK or (n == last - 1 and end == windows * vectors):
                blocks = 0
                for k in range(span):
                    totals[k % vectors] += partial[k]
                    partial[k] = one - one
        turn(all_windows, by_input, reciprocal, source)
        result = sum_over_windows(transposed, groups, geometry, source, one)
        target = at(coefficients, n * places * groups, one)
        copy(places * groups, result, target)
    at(total_norm, share, 1.0)[0] = all_norms
    if addend:
        at(added, share, 1.0)[0] = all_added


@range_pass(7)
def add_along_last(first: int, last: int, share: int, given: Any) -> None:
    """total += x·coefficient·longest, for images with channels last."""
    one = one_of(given)
    groups, channels, places, x, coefficients, longest, total = integers(given)
    for row in range(first * places, last * places):
        factor, coefficient = at(longest, 0, one), at(coefficients, row * groups, one)
        here = row * groups * channels
        if channels == 1:
            from_here, to_there = at(x, here, one), at(total, here, one)
            for k in range(groups):
                to_there[k] += from_here[k] * coefficient[k] * factor[k]
        else:
            for g in range(groups):
                multiple = coefficient[g] * factor[g]
                from_here, to_there = at(x, here + g * channels, one), at(total, here + g * channels, one)
                for k in range(channels):
                    to_there[k] += from_here[k] * multiple
