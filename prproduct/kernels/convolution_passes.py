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

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, call, integers, one_of, part_of_pass
from prproduct.kernels.program_passes import prepare
from prproduct.kernels.strips import copy, split_plane, turn
from prproduct.kernels.tables import ASIDE, STRIP, WIDE
from prproduct.kernels.transposition import transpose

# The integers by which passes know where a convolution's windows lie (`convolution_rule._geometry`), the first six for
# each of the axes: places, windows, kernel, stride, padding, dilation; how many axes are not trivial; how far apart the
# two pieces of memory are, to and fro between which sums go; and the address of `over_windows`.
AXES = 3
SIZES, COUNTS, KERNELS, STRIDES, PADDINGS, DILATIONS = range(0, 6 * AXES, AXES)
MOVES, HALF, OVER_WINDOWS, GEOMETRY = range(6 * AXES, 6 * AXES + 4)


# Loops that LLVM vectorizes only in functions of their own.
@part_of_pass(apart=True)
def _add(count: int, x: Any, total: Any) -> None:
    for k in range(count):
        total[k] += x[k]


@part_of_pass(apart=True)
def add_squares(count: int, x: Any, total: Any) -> None:
    """total += x²"""
    for k in range(count):
        total[k] += x[k] * x[k]


@part_of_pass(apart=True)
def add_multiples(count: int, x: Any, coefficient: Any, factor: Any, total: Any) -> None:
    """total += x·coefficient·factor"""
    for k in range(count):
        total[k] += x[k] * coefficient[k] * factor


@part_of_pass(reassociates=True, apart=True)
def norms(count: int, square: Any, one: Any, value: Any, inverse: Any) -> Any:
    """`pairs.Norms.of`, and the sum of the norms."""
    zero, total = one - one, one - one
    for k in range(count):
        root = np.sqrt(square[k])
        positive = root > zero and root < np.inf
        value[k] = root if positive else zero
        inverse[k] = one / root if positive else zero
        total += root if positive else zero
    return total


@part_of_pass(apart=True)
def _add_three(count: int, apart: int, source: Any, target: Any) -> None:
    for k in range(apart, count - apart):
        target[k] = source[k - apart] + source[k] + source[k + apart]


@part_of_pass()
def _add_neighbours(outer: int, size: int, inner: int, source: Any, one: Any, target: Any) -> None:
    """The sums of three neighbours along an axis: windows of three with one place of padding. It is its own transpose.

    All in one run, as rows may be short; then both ends of the axis, which have one neighbour.
    """
    _add_three(outer * size * inner, inner, source, target)
    for block in range(outer):
        start, end = block * size * inner, ((block + 1) * size - 1) * inner
        for k in range(inner):
            target[start + k] = source[start + k] + source[start + inner + k]
            target[end + k] = source[end + k] + source[end - inner + k]


@range_pass(GEOMETRY)
def over_windows(first: int, inner_most: int, memory: int, geometry: Any) -> None:
    """`windows.gather`, or `windows.scatter` if the first argument is 0, of so many numbers in every place.

    Axis by axis, from one piece of memory to the other: the result is in the second if the moves are odd.
    """
    one, given, gather = one_of(geometry), integers(geometry), first == 1
    source, spare = at(memory, 0, one), at(memory, given[HALF], one)
    for axis in range(AXES):
        size, count, kernel = given[SIZES + axis], given[COUNTS + axis], given[KERNELS + axis]
        stride, padding, dilation = given[STRIDES + axis], given[PADDINGS + axis], given[DILATIONS + axis]
        if kernel == 1 and stride == 1 and padding == 0 and size == count:
            continue
        outer, inner = 1, inner_most  # how often the axis is there, and how many numbers lie in one of its places
        for other in range(AXES):
            if other < axis:
                outer *= given[COUNTS + other] if gather else given[SIZES + other]
            elif other > axis:
                inner *= given[SIZES + other] if gather else given[COUNTS + other]
        if kernel == 3 and stride == 1 and padding == 1 and dilation == 1 and size == count > 1:
            _add_neighbours(outer, size, inner, source, one, spare)
            source, spare = spare, source
            continue
        for k in range(outer * inner * (count if gather else size)):
            spare[k] = one - one
        for block in range(outer):
            for k in range(kernel):
                shift = k * dilation - padding  # the kth place of window o is o·stride + shift
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


@part_of_pass()
def sum_over_windows(gather: bool, inner: int, geometry: int, source: Any, one: Any) -> Any:
    """The place of the result."""
    given = at(geometry, 0, np.int64(0))
    call(given[OVER_WINDOWS], 1 if gather else 0, inner, source, geometry)
    return at(source, given[HALF] if given[MOVES] % 2 else 0, one)


@part_of_pass()
def extent(geometry: int, transposed: int) -> Any:
    """The numbers of places and of windows, of which a transposed convolution has as many as the other has places."""
    given = at(geometry, 0, np.int64(0))
    sizes = given[SIZES] * given[SIZES + 1] * given[SIZES + 2]
    counts = given[COUNTS] * given[COUNTS + 1] * given[COUNTS + 2]
    return (counts, sizes) if transposed else (sizes, counts)


@range_pass(20)
def split_planes(first: int, last: int, share: int, given: Any) -> None:
    """`splitting.split` for planes, and the sums over windows before and behind it, for images and groups.

    Sums for weight vectors, in float64, and memory for work are those of the share. The coefficients are those of the
    correction along x, a number for every image, group and place. Of what was added to the output, unless there is no
    address, the sum is left in `added`.

    If there is an address for the input with channels last, it is written there, and D∘g has channels last, too: that
    is for layers of one group. D∘g is made strip by strip then, of all channels, and transposed in the cache.
    """
    one = one_of(given)
    transposed, groups, in_channels, channels, geometry, x, output, gradient, for_weight, for_input = integers(given)[
        :10
    ]
    table, by_weight, total_norm, coefficients, work, memory, program, addend, added, last_x = integers(given)[10:]
    half, vectors = at(geometry, 0, np.int64(0))[HALF], groups * channels
    places, windows = extent(geometry, transposed)
    source = at(memory, share * (2 * half + 3 * windows + (channels * ASIDE if last_x else 0)), one)
    norm = at(source, 2 * half, one)
    reciprocal, by_input, aside = at(norm, windows, one), at(norm, 2 * windows, one), at(norm, 3 * windows, one)
    totals, all_norms, all_added = at(by_weight, share * vectors, 1.0), 0.0, 0.0
    registers = prepare(work, share, program, one)
    strip = STRIP if last_x else windows
    for unit in range(first, last):
        for k in range(places):
            source[k] = one - one
        image = at(x, unit * in_channels * places, one)
        for c in range(in_channels):
            add_squares(places, at(image, c * places, one), source)
        if last_x:
            there = at(last_x, unit * in_channels * places, one)
            transpose(in_channels, places, image, places, one, there, in_channels)
        squares = sum_over_windows(not transposed, 1, geometry, source, one)
        all_norms += norms(windows, squares, one, norm, reciprocal)
        for k in range(windows):
            by_input[k] = one - one
        for start in range(0, windows, strip):
            count = strip if windows - start > strip else windows - start
            for j in range(channels):
                vector = unit % groups * channels + j
                here = (unit * channels + j) * windows + start
                of_weight, of_sums = split_plane(
                    count,
                    vectors,
                    program,
                    registers,
                    one,
                    at(output, here, one),
                    addend,
                    here,
                    at(gradient, here, one),
                    at(table, vector, one),
                    at(norm, start, one),
                    at(reciprocal, start, one),
                    at(by_input, start, one),
                    at(aside, j * ASIDE, one) if last_x else at(for_weight, here, one),
                    at(aside, j * ASIDE, one) if last_x else at(for_input, here, one),
                )
                totals[vector] += of_weight
                all_added += of_sums
            if last_x:
                there = at(for_weight, (unit * windows + start) * channels, one)
                transpose(channels, count, aside, ASIDE, one, there, channels)
        turn(windows, by_input, reciprocal, source)
        result, target = sum_over_windows(transposed, 1, geometry, source, one), at(coefficients, unit * places, one)
        copy(places, result, target)
    at(total_norm, share, 1.0)[0] = all_norms
    if addend:
        at(added, share, 1.0)[0] = all_added


@range_pass(8)
def add_along_planes(first: int, last: int, share: int, given: Any) -> None:
    """total += x·coefficient·longest, for planes of an image and a group.

    If there is an address for a total with channels last, of a layer of one group, it is that to which this is added,
    and it gets planes.
    """
    one = one_of(given)
    groups, channels, places, x, coefficients, longest, total, last_total = integers(given)
    for unit in range(first, last):
        factor, coefficient = at(longest, unit % groups, one)[0], at(coefficients, unit * places, one)
        here = unit * channels * places
        for start in range(0, channels, WIDE):
            count = WIDE if channels - start > WIDE else channels - start
            if last_total:
                source, planes = at(last_total, here + start, one), at(total, here + start * places, one)
                transpose(places, count, source, channels, one, planes, places)
            for c in range(start, start + count):
                plane, target = at(x, here + c * places, one), at(total, here + c * places, one)
                add_multiples(places, plane, coefficient, factor, target)
