"""The whole backward of a convolution of single places, in planes: a matrix product for a strip of places.

A strip of all channels stays in the cache: its squares, angles, D∘g, both products by torch's own BLAS, and the
correction along the input. So every number is read once and written once, and nothing is brought into another order.
"""

from __future__ import annotations

from typing import Any

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, multiply, one_of, part_of_pass, rounded_to
from prproduct.kernels.convolution_passes import add_multiples, add_squares, norms
from prproduct.kernels.program_passes import prepare
from prproduct.kernels.strips import fill, split_plane, turn
from prproduct.kernels.tables import ASIDE, STRIP, STRIP_ROWS


@part_of_pass()
def _multiply(
    gemm: int,
    rows: int,
    columns: int,
    inner: int,
    a: Any,
    a_step: int,
    a_across: int,
    b: Any,
    b_step: int,
    b_across: int,
    c: Any,
    c_step: int,
    adds: int,
) -> None:
    """In a function of its own, which gives back what it needs of the stack with every call."""
    multiply(gemm, rows, columns, inner, a, a_step, a_across, b, b_step, b_across, c, c_step, adds)


@range_pass(19)
def pointwise_planes(first: int, last: int, share: int, given: Any) -> None:
    """dX of some strips, and what they add to dW and to the sums for weight vectors; if there are addresses for them.

    As in `convolution_passes.split_planes`.
    """
    one = one_of(given)
    gemm, in_channels, channels, places, x, weight, output, gradient, dx, partial = integers(given)[:10]
    table, by_weight, total_norm, longest, work, memory, program, addend, added = integers(given)[10:]
    square = at(memory, share * (STRIP_ROWS + channels) * ASIDE, one)
    norm, reciprocal, by_input = at(square, ASIDE, one), at(square, 2 * ASIDE, one), at(square, 3 * ASIDE, one)
    turned, factor = at(square, STRIP_ROWS * ASIDE, one), at(longest, 0, one)[0]
    totals, all_norms, all_added = at(by_weight, share * channels, 1.0), 0.0, 0.0
    sums = at(partial, share * channels * in_channels, one)
    registers, strips = prepare(work, share, program, one), (places + STRIP - 1) // STRIP
    for unit in range(first, last):
        image, start = unit // strips, unit % strips * STRIP
        count = STRIP if places - start > STRIP else places - start
        planes = at(x, image * in_channels * places + start, one)
        fill(count, one - one, square)
        fill(count, one - one, by_input)
        for c in range(in_channels):
            add_squares(count, at(planes, c * places, one), square)
        all_norms += norms(count, square, one, norm, reciprocal)
        for j in range(channels):
            here, strip = (image * channels + j) * places + start, at(turned, j * ASIDE, one)
            of_weight, of_sums = split_plane(
                count,
                channels,
                program,
                registers,
                one,
                at(output, here, one),
                addend,
                here,
                at(gradient, here, one),
                at(table, j, one),
                norm,
                reciprocal,
                by_input,
                strip,
                strip,
            )
            totals[j] += of_weight
            all_added += of_sums
        if dx:
            target, w = at(dx, image * in_channels * places + start, one), at(weight, 0, one)
            _multiply(gemm, in_channels, count, channels, w, in_channels, 1, turned, ASIDE, 0, target, places, 0)
            turn(count, by_input, reciprocal, square)
            for c in range(in_channels):
                add_multiples(count, at(planes, c * places, one), square, factor, at(target, c * places, one))
        if partial:
            adds = 1 if unit > first else 0
            _multiply(gemm, channels, in_channels, count, turned, ASIDE, 0, planes, places, 1, sums, in_channels, adds)
    at(total_norm, share, 1.0)[0] = all_norms
    if addend:
        at(added, share, 1.0)[0] = all_added


@range_pass(4)
def add_up_shares(first: int, last: int, share: int, given: Any) -> None:
    """Numbers of which each share has left its part."""
    one = one_of(given)
    count, shares, partial, total = integers(given)
    for k in range(first, last):
        number = 0.0
        for other in range(shares):
            number += at(partial, other * count, one)[k]
        at(total, k, one)[0] = rounded_to(one, number)
