"""The passes over memory of a backward, compiled for the CPU; `rules.py` calls them.

The main ones read the output and its gradient once and write D∘g once. All between is done on strips of pairs that fit
into the cache (`strips.py`).

    rows:    pairs[n, g, j]      linear layers; along a strip the weight vector changes
    planes:  pairs[n, g, j, s]   convolutions (`convolution_passes.py`); along a strip the window changes
    last:    pairs[n, s, g, j]   convolutions with channels last (`channels_last_passes.py`); both change

Memory is given by addresses (`compiler/`). Every pass takes a range, so that threads can share it out; only the order
in which `by_weight` is added up depends on how many there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, multiply, one_of, part_of_pass, rounded_to
from prproduct.kernels.program_passes import prepare
from prproduct.kernels.strips import split_strip, take_off
from prproduct.kernels.tables import (
    BLOCK,
    EXCESSES,
    NEGLIGIBLE,
    OFFSET,
    PRODUCTS,
    REGISTERS,
    ROUNDED,
    STRIP,
    TINY,
    WEIGHT_INVERSE,
    WEIGHT_LENGTH,
    WEIGHT_VALUE,
)


@part_of_pass(apart=True)
def add_to(count: int, x: Any, total: Any) -> None:
    """total += x"""
    for k in range(count):
        total[k] += x[k]


@range_pass(17)
def split_rows(first: int, last: int, share: int, given: Any) -> None:
    """`splitting.split` for rows. The sums for weight vectors, and the memory for work, are those of the share.

    If there is an address for them, so are the gradient's sums over the rows: behind the partial ones for weight
    vectors lie theirs. Of what was added to the output, unless there is no address, the sum is left in `added`.
    """
    one = one_of(given)
    (groups, channels, output, gradient, for_weight, for_input, table, norms, inverse_norms, by_weight, by_input) = (
        integers(given)[:11]
    )
    work, partial_sums, program, by_column, addend, added = integers(given)[11:]
    vectors = groups * channels
    registers, partial = prepare(work, share, program, one), at(partial_sums, 2 * share * vectors, one)
    columns, column_totals = at(partial, vectors, one), at(by_column, share * vectors, 1.0)
    of_program = at(program, REGISTERS, np.int64(0))[0]
    unread = at(registers, of_program * STRIP, one)
    products, excesses = at(unread, PRODUCTS * STRIP, one), at(unread, EXCESSES * STRIP, one)
    all_added = 0.0
    in_place = 1 if for_weight == gradient else 0
    norm_of, inverse_of, sum_of = at(norms, 0, one), at(inverse_norms, 0, one), at(by_input, 0, 1.0)
    totals = at(by_weight, share * vectors, 1.0)
    for k in range(vectors):
        partial[k] = columns[k] = one - one
    if by_column:
        for k in range(vectors):
            column_totals[k] = 0.0
    for n in range(first, last):
        for row in range(n * groups, (n + 1) * groups):
            total = 0.0
            for start in range(0, channels, STRIP):
                here, vector = row * channels + start, row % groups * channels + start
                count = STRIP if channels - start > STRIP else channels - start
                of_weight, p = at(table, vector, one), at(output, here, one)
                rounded = at(of_weight, ROUNDED * vectors, one)
                if addend:
                    sums, inverse = at(addend, here, one), at(of_weight, WEIGHT_INVERSE * vectors, one)
                    all_added += take_off(count, p, sums, rounded, inverse, one, products, excesses)
                    p, rounded = products, excesses
                if by_column:
                    add_to(count, at(gradient, here, one), at(columns, vector, one))
                _, of_input = split_strip(
                    count,
                    program,
                    registers,
                    one,
                    p,
                    at(gradient, here, one),
                    at(of_weight, OFFSET * vectors, one),
                    rounded,
                    at(of_weight, WEIGHT_VALUE * vectors, one),
                    at(of_weight, WEIGHT_INVERSE * vectors, one),
                    norm_of[row],
                    inverse_of[row],
                    norm_of[row],
                    at(of_weight, WEIGHT_LENGTH * vectors, one),
                    at(partial, vector, one),
                    unread,
                    at(for_weight, here, one),
                    at(for_input, here, one),
                    in_place,
                )
                total += of_input
            sum_of[row] = total
        if (n - first) % BLOCK == BLOCK - 1 or n == last - 1:
            for k in range(vectors):
                totals[k] += partial[k]
                partial[k] = one - one
            if by_column:
                for k in range(vectors):
                    column_totals[k] += columns[k]
                    columns[k] = one - one
    if addend:
        at(added, share, 1.0)[0] = all_added


@part_of_pass(reassociates=True, apart=True)
def square_sum(count: int, x: Any, one: Any) -> Any:
    """Σ x²"""
    total = one - one
    for k in range(count):
        total += x[k] * x[k]
    return total


@range_pass(10)
def norms_of_vectors(first: int, last: int, share: int, given: Any) -> None:
    """`pairs.Norms.of`, with the squares added up strip by strip into float64, and the sum of each share's norms.

    The vectors lie in pieces of a length, in steps from one group, channel and piece to the next.
    """
    one = one_of(given)
    channels, pieces, length, group_step, channel_step, piece_step, x, value, inverse, total = integers(given)
    values, inverses, norms = at(value, 0, one), at(inverse, 0, one), 0.0
    for vector in range(first, last):
        square = 0.0
        for piece in range(pieces):
            place = vector // channels * group_step + vector % channels * channel_step + piece * piece_step
            for start in range(0, length, STRIP):
                square += square_sum(
                    STRIP if length - start > STRIP else length - start, at(x, place + start, one), one
                )
        norm = np.sqrt(rounded_to(one, square))
        positive = norm > 0.0 and norm < np.inf
        values[vector] = norm if positive else one - one
        inverses[vector] = one / norm if positive else one - one
        norms += values[vector]
    if total:
        at(total, share, 1.0)[0] = norms


@part_of_pass()
def describe(vector: int, vectors: int, table: int, offset: int, offset_step: int, limits: Any, one: Any) -> None:
    """What follows from a weight vector's norm, and from its offset, if there are any at that address."""
    of_vector = at(table, vector, one)
    of_vector[OFFSET * vectors] = at(offset, vector * offset_step, one)[0] if offset else one - one
    excess = (abs(of_vector[OFFSET * vectors]) + limits[TINY]) * of_vector[WEIGHT_INVERSE * vectors]
    of_vector[ROUNDED * vectors] = excess if excess > limits[NEGLIGIBLE] else one - one


@range_pass(8)
def tabulate_rows(first: int, last: int, share: int, given: Any) -> None:
    """What follows from the norms of a linear layer's weight vectors. Their sums start at zero."""
    one = one_of(given)
    vectors, limit, offset, offset_step, table, by_weight, shares, drowned = integers(given)
    lengths, values = at(table, WEIGHT_LENGTH * vectors, one), at(table, WEIGHT_VALUE * vectors, one)
    for k in range(first, last):
        describe(k, vectors, table, offset, offset_step, at(limit, 0, one), one)
        lengths[k] = values[k]
        for thread in range(shares):
            at(by_weight, thread * vectors + k, 1.0)[0] = 0.0
    if first == 0 and last > 0:
        at(drowned, 0, 1.0)[0] = 0.0


@range_pass(9)
def tabulate(first: int, last: int, share: int, given: Any) -> None:
    """The same of a convolution's, for all groups, whose lengths are to be shares of the group's longest."""
    if first == last:
        return
    one = one_of(given)
    channels, limit, offset, offset_step, table, longest, by_weight, shares, drowned = integers(given)
    vectors, limits = last * channels, at(limit, 0, one)
    lengths, values = at(table, WEIGHT_LENGTH * vectors, one), at(table, WEIGHT_VALUE * vectors, one)
    longest_of = at(longest, 0, one)
    for g in range(last):
        most = limits[TINY]
        for k in range(g * channels, (g + 1) * channels):
            most = values[k] if values[k] > most else most
        longest_of[g] = most
        for k in range(g * channels, (g + 1) * channels):
            describe(k, vectors, table, offset, offset_step, limits, one)
            lengths[k] = values[k] / most
    for k in range(shares * vectors):
        at(by_weight, k, 1.0)[0] = 0.0
    at(drowned, 0, 1.0)[0] = 0.0


@range_pass(7)
def find_drowned(first: int, last: int, share: int, given: Any) -> None:
    """Whether the bias is so large that output − bias has lost p, and has to be computed again (`plain_rule._drowns`).

    Or what else was added. The sums of this, if it has an address, and of the data vectors' norms are there in shares.
    """
    if first == last:
        return
    one = one_of(given)
    vectors, data_vectors, table, total_norm, added, shares, drowned = integers(given)
    offsets, norms = at(table, OFFSET * vectors, one), at(table, WEIGHT_VALUE * vectors, one)
    all_offsets = all_norms = all_data = all_added = 0.0
    for k in range(vectors):
        all_offsets += abs(offsets[k])
        all_norms += norms[k]
    for thread in range(shares):
        all_data += at(total_norm, thread, 1.0)[0]
        if added:
            all_added += at(added, thread, 1.0)[0]
    all_added += all_offsets * data_vectors
    at(drowned, 0, 1.0)[0] = 0.0 if all_added <= 2.0 * all_norms * all_data else 1.0  # 1, too, if that is no number


@range_pass(4)
def sum_shares(first: int, last: int, share: int, given: Any) -> None:
    """Numbers that were added up in shares, in float64, as many in each."""
    one = one_of(given)
    vectors, shares, sums, result = integers(given)
    for k in range(first, last):
        total = 0.0
        for thread in range(shares):
            total += at(sums, thread * vectors + k, 1.0)[0]
        at(result, k, one)[0] = rounded_to(one, total)


@range_pass(13)
def add_along(first: int, last: int, share: int, given: Any) -> None:
    """total += sum·x/‖x‖, for each of the vectors x, which lie as for `norms_of_vectors`; or with `fresh` just =.

    The sums, in float64, were added up in shares, with a stride from those of one to those of the next.
    """
    one = one_of(given)
    channels, pieces, length, group_step, channel_step, piece_step = integers(given)[:6]
    x, inverse, sum, shares, stride, total, fresh = integers(given)[6:]
    inverses, sums = at(inverse, 0, one), at(sum, 0, 1.0)
    for vector in range(first, last):
        factor = 0.0
        for thread in range(shares):
            factor += sums[thread * stride + vector]
        multiple = inverses[vector] * rounded_to(one, factor)
        for piece in range(pieces):
            place = vector // channels * group_step + vector % channels * channel_step + piece * piece_step
            from_here, to_there = at(x, place, one), at(total, place, one)
            if fresh:
                for k in range(length):
                    to_there[k] = from_here[k] * multiple
            else:
                for k in range(length):
                    to_there[k] += from_here[k] * multiple


@range_pass(9)
def add_products(first: int, last: int, share: int, given: Any) -> None:
    """dX += D∘g · W and dW += (D∘g)ᵀ · X, of a range of their columns: those of dX, and behind them those of dW.

    A column of either costs as much. `gemm` is BLAS's.
    """
    one = one_of(given)
    gemm, rows, channels, columns, turned, w, x, dx, dw = integers(given)
    middle, grad = min(max(first, columns), last), at(turned, 0, one)
    if first < middle:
        to, of = at(dx, first, one), at(w, first, one)
        multiply(gemm, rows, middle - first, channels, grad, channels, 0, of, columns, 0, to, columns, 1)
    if middle < last:
        to, of = at(dw, middle - columns, one), at(x, middle - columns, one)
        multiply(gemm, channels, last - middle, rows, grad, channels, 1, of, columns, 0, to, columns, 1)


@range_pass(11)
def multiply_rows(first: int, last: int, share: int, given: Any) -> None:
    """C = A·B or C += A·B, of some rows of A and C: a range of their columns. B may be stored across."""
    one = one_of(given)
    gemm, start, stop, inner, a, b, b_step, across, c, c_step, adds = integers(given)
    if first < last and start < stop:
        of = at(b, first * b_step if across else first, one)
        rows, to = at(a, start * inner, one), at(c, start * c_step + first, one)
        multiply(gemm, stop - start, last - first, inner, rows, inner, 0, of, b_step, across, to, c_step, adds)
