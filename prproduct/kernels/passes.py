"""The passes over memory of a backward, compiled by Numba for the CPU; `rules.py` calls them.

The main ones read the output and its gradient once and write D∘g once. All between is done on a strip of pairs that
fits into the cache: their angles, the operations of the product's program (`programs.py`) one after the other, and the
sums from which the corrections are made.

    rows:    pairs[n, g, j]      linear layers and channels_last; along a strip the weight vector changes
    planes:  pairs[n, g, j, s]   convolutions (`convolution_passes.py`); along a strip the window changes

Memory is given by addresses (`pointers.py`). Every pass takes a range, so that threads can share it out; only the order
in which `by_weight` is added up depends on how many there are.

The first backward on a machine waits for the compiler, so passes are flat: Numba optimizes a function again with
everything that calls it. What a product does not need is passed as None, and not compiled at all. For the same reason
rows and planes each write out what they do with a strip.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels import programs
from prproduct.kernels.pointers import at, compiled_pass, each, in_team, part_of_pass, sum_of_pass, team_pass
from prproduct.kernels.programs import COS, INVERSE_SIN, SIN, WEIGHT_NORM

STRIP = 512  # pairs: a handful of such registers stays in the first-level cache
BLOCK = 64  # rows added up in the layer's own precision before they go to a total in float64

# What is known of the weight vectors (`pairs.WeightVectors`), one field after the other.
OFFSET, WEIGHT_INVERSE, ROUNDED, WEIGHT_VALUE, WEIGHT_LENGTH, FIELDS = range(6)


@part_of_pass
def angles(
    count: int,
    output: Any,
    offset: Any,
    weight_inverse: Any,
    input_inverse: Any,
    rounded: Any,
    floor: Any,
    one: Any,
    cos: Any,
    inverse: Any,
) -> None:
    """`pairs.measure`."""
    zero = one - one
    for k in range(count):
        x = each(input_inverse, k)
        c = (output[k] - each(offset, k)) * x * each(weight_inverse, k)
        c = (one if c > one else -one if c < -one else c) if c == c else zero
        square = (one - c) * (one + c)
        resolved = square > floor * (one + each(rounded, k) * x)
        cos[k] = c
        inverse[k] = one / np.sqrt(square if resolved else one)


@part_of_pass
def sines(count: int, cos: Any, eps: Any, one: Any, sin: Any) -> None:
    """`products.Pair.sin`."""
    for k in range(count):
        square = (one - cos[k]) * (one + cos[k])
        sin[k] = np.sqrt(square if square > (one + one + one + one) * eps else eps * eps)


@part_of_pass
def _perform(code: int, count: int, a: Any, b: Any, c: Any, one: Any, result: Any) -> None:
    """One operation of a program."""
    zero = one - one
    if code == programs.ADD:
        for k in range(count):
            result[k] = a[k] + b[k]
    elif code == programs.SUB:
        for k in range(count):
            result[k] = a[k] - b[k]
    elif code == programs.MUL:
        for k in range(count):
            result[k] = a[k] * b[k]
    elif code == programs.DIV:
        for k in range(count):
            result[k] = a[k] / b[k]
    elif code == programs.POW:
        for k in range(count):
            result[k] = a[k] ** b[k]
    elif code == programs.MIN:
        for k in range(count):
            result[k] = b[k] if b[k] < a[k] or b[k] != b[k] else a[k]
    elif code == programs.MAX:
        for k in range(count):
            result[k] = b[k] if b[k] > a[k] or b[k] != b[k] else a[k]
    elif code == programs.GREATER:
        for k in range(count):
            result[k] = one if a[k] > b[k] else zero
    elif code == programs.WHERE:
        for k in range(count):
            result[k] = b[k] if a[k] != zero else c[k]
    elif code == programs.ABS:
        for k in range(count):
            result[k] = abs(a[k])
    elif code == programs.SQRT:
        for k in range(count):
            result[k] = np.sqrt(a[k])
    elif code == programs.EXP:
        for k in range(count):
            result[k] = np.exp(a[k])
    elif code == programs.LOG:
        for k in range(count):
            result[k] = np.log(a[k])


@part_of_pass
def run(count: int, operations: int, steps: int, weight_norm: Any, input_norm: Any, registers: Any, one: Any) -> None:
    """All operations of a program."""
    norms = at(registers, WEIGHT_NORM * STRIP, one)
    for k in range(count):
        norms[k] = each(weight_norm, k)
        norms[k + STRIP] = each(input_norm, k)
    for operation in range(operations):
        step = at(steps, 5 * operation, np.int64(0))
        result, a = at(registers, step[1] * STRIP, one), at(registers, step[2] * STRIP, one)
        b, c = at(registers, step[3] * STRIP, one), at(registers, step[4] * STRIP, one)
        _perform(step[0], count, a, b, c, one, result)


@part_of_pass
def turn(count: int, grad: Any, direction: Any, turned: Any) -> None:
    """D∘g"""
    for k in range(count):
        turned[k] = grad[k] * direction[k]


@sum_of_pass
def sums(
    count: int, grad: Any, length: Any, direction: Any, cos: Any, factor: Any, factors: Any, one: Any, totals: Any
) -> Any:
    """The radial half (L − D)·cos θ·g: times `factor` added to the totals; times the factors, their sum."""
    total = one - one
    for k in range(count):
        radial = (length[k] - direction[k]) * cos[k] * grad[k]
        totals[k] += radial * factor
        total += radial * factors[k]
    return total


@part_of_pass
def prepare(registers: Any, count: int, constants: int, one: Any) -> None:
    """Fill the registers with the program's constants; the one behind them will be written to and never read."""
    values = at(constants, 0, 1.0)
    for register in range(count):
        for k in range(STRIP):
            registers[register * STRIP + k] = one * values[register]


@compiled_pass
def split_rows(
    first: int,
    last: int,
    share: int,  # which of by_weight and of the memory for work is this thread's
    groups: int,
    channels: int,
    pairs: Any,  # addresses: output, grad, D∘g for ∂/∂w, D∘g for ∂/∂x
    table: int,
    input_norms: Any,  # addresses: ‖x‖, 1/‖x‖
    by_weight: int,  # float64, added to
    by_input: int,  # float64
    work: Any,  # addresses: registers, sums for the weight vectors over a few rows
    plan: Any,  # how many registers and operations there are
    weight_half: Any,  # registers of L and D, whether to write D∘g, whether to take sums
    input_half: Any,  # None where it is the same
    steps: Any,  # address; None without operations
    constants: int,
    floor: Any,
    eps: Any,  # None where nobody asks for the sine
    one: Any,
) -> None:
    """`splitting.split` for rows."""
    vectors = groups * channels
    registers, partial = at(work[0], share * (plan[0] + 1) * STRIP, one), at(work[1], share * vectors, one)
    prepare(registers, plan[0], constants, one)
    cos, inverse = at(registers, COS * STRIP, one), at(registers, INVERSE_SIN * STRIP, one)
    length, direction = at(registers, weight_half[0] * STRIP, one), at(registers, weight_half[1] * STRIP, one)
    norm_of, inverse_of, sum_of = at(input_norms[0], 0, one), at(input_norms[1], 0, one), at(by_input, 0, 1.0)
    totals = at(by_weight, share * vectors, 1.0)
    for k in range(vectors):
        partial[k] = one - one
    for n in range(first, last):
        for row in range(n * groups, (n + 1) * groups):
            x_norm, x_inverse, total = norm_of[row], inverse_of[row], 0.0
            for start in range(0, channels, STRIP):
                count = STRIP if channels - start > STRIP else channels - start
                here, vector = row * channels + start, row % groups * channels + start
                of_weight = at(table, vector, one)
                offset, lengths = at(of_weight, OFFSET * vectors, one), at(of_weight, WEIGHT_LENGTH * vectors, one)
                w_inverse, rounded = at(of_weight, WEIGHT_INVERSE * vectors, one), at(of_weight, ROUNDED * vectors, one)
                grad = at(pairs[1], here, one)
                angles(count, at(pairs[0], here, one), offset, w_inverse, x_inverse, rounded, floor, one, cos, inverse)
                if eps is not None:
                    sines(count, cos, eps, one, at(registers, SIN * STRIP, one))
                if steps is not None:
                    run(count, plan[1], steps, at(of_weight, WEIGHT_VALUE * vectors, one), x_norm, registers, one)
                if weight_half[3]:
                    sum_of_strip = sums(
                        count, grad, length, direction, cos, x_norm, lengths, one, at(partial, vector, one)
                    )
                    if input_half is None:
                        total += sum_of_strip
                if input_half is not None:
                    x_length, x_direction = (
                        at(registers, input_half[0] * STRIP, one),
                        at(registers, input_half[1] * STRIP, one),
                    )
                    if input_half[3]:
                        unread = at(registers, plan[0] * STRIP, one)
                        total += sums(count, grad, x_length, x_direction, cos, x_norm, lengths, one, unread)
                    if input_half[2]:
                        turn(count, grad, x_direction, at(pairs[3], here, one))
                if weight_half[2]:
                    turn(count, grad, direction, at(pairs[2], here, one))
            sum_of[row] = total
        if (n - first) % BLOCK == BLOCK - 1 or n == last - 1:
            for k in range(vectors):
                totals[k] += partial[k]
                partial[k] = one - one


@sum_of_pass
def square_sum(count: int, x: Any, one: Any) -> Any:
    """Σ x²"""
    total = one - one
    for k in range(count):
        total += x[k] * x[k]
    return total


@compiled_pass
def norms_of_vectors(
    first: int,
    last: int,
    share: int,
    channels: int,  # of a group
    pieces: int,  # of which each vector consists, and
    length: int,  # theirs
    steps: Any,  # from one group, channel and piece to the next
    x: int,
    value: int,
    inverse: int,
    total: int,  # float64, for each share: the sum of its norms; or 0
    one: Any,
) -> None:
    """`pairs.Norms.of`, with the squares added up strip by strip into float64."""
    values, inverses, norms = at(value, 0, one), at(inverse, 0, one), 0.0
    for vector in range(first, last):
        square = 0.0
        for piece in range(pieces):
            place = vector // channels * steps[0] + vector % channels * steps[1] + piece * steps[2]
            for start in range(0, length, STRIP):
                square += square_sum(
                    STRIP if length - start > STRIP else length - start, at(x, place + start, one), one
                )
        norm = np.sqrt(one * square)
        positive = norm > 0.0 and norm < np.inf
        values[vector] = norm if positive else one - one
        inverses[vector] = one / norm if positive else one - one
        norms += values[vector]
    if total:
        at(total, share, 1.0)[0] = norms


@compiled_pass
def tabulate(
    groups: int,
    channels: int,
    relative: bool,  # whether lengths are to be shares of the group's longest
    tiny: Any,
    negligible: Any,
    offset: int,  # address of the bias, or 0
    offset_step: int,
    table: int,
    longest: int,
    by_weight: int,
    total_norm: int,  # of the data vectors, for each share, and
    shares: int,
    data_vectors: int,  # how many there are
    one: Any,
) -> bool:
    """What follows from the norms in the table; whether the bias has drowned p. Sums for weight vectors start at zero.

    It has where it is so large that output − bias has lost p, and p is worth computing again (`autograd._drowns`).
    """
    vectors = groups * channels
    values, inverses = at(table, WEIGHT_VALUE * vectors, one), at(table, WEIGHT_INVERSE * vectors, one)
    offsets, rounded = at(table, OFFSET * vectors, one), at(table, ROUNDED * vectors, one)
    lengths, longest_of = at(table, WEIGHT_LENGTH * vectors, one), at(longest, 0, one)
    all_offsets = all_norms = all_data = 0.0
    for g in range(groups):
        most = tiny
        for k in range(g * channels, (g + 1) * channels):
            most = values[k] if values[k] > most else most
        longest_of[g] = most
        for k in range(g * channels, (g + 1) * channels):
            offsets[k] = at(offset, k * offset_step, one)[0] if offset else one - one
            excess = (abs(offsets[k]) + tiny) * inverses[k]
            rounded[k] = excess if excess > negligible else one - one
            lengths[k] = values[k] / most if relative else values[k]
            all_offsets += abs(offsets[k])
            all_norms += values[k]
    for k in range(shares * vectors):
        at(by_weight, k, 1.0)[0] = 0.0
    if offset == 0:
        return False
    for share in range(shares):
        all_data += at(total_norm, share, 1.0)[0]
    return all_offsets * data_vectors > 2.0 * all_norms * all_data


@compiled_pass
def add_along(
    first: int,
    last: int,
    share: int,
    channels: int,  # how the vectors lie: as for `norms_of_vectors`
    pieces: int,
    length: int,
    steps: Any,
    x: int,
    inverse: int,
    sum: int,  # float64
    shares: int,  # among which the sums were added up, and
    stride: int,  # from those of one share to those of the next
    total: int,
    one: Any,
) -> None:
    """total += sum·x/‖x‖, for each of the vectors x."""
    inverses, sums = at(inverse, 0, one), at(sum, 0, 1.0)
    for vector in range(first, last):
        factor = 0.0
        for thread in range(shares):
            factor += sums[thread * stride + vector]
        multiple = inverses[vector] * (one * factor)
        for piece in range(pieces):
            place = vector // channels * steps[0] + vector % channels * steps[1] + piece * steps[2]
            from_here, to_there = at(x, place, one), at(total, place, one)
            for k in range(length):
                to_there[k] += from_here[k] * multiple


@team_pass(split_rows)
def split_rows_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`split_rows` on OpenMP's threads."""
    in_team(openmp, split_rows, threads, first, last, arguments)


@team_pass(norms_of_vectors)
def norms_of_vectors_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`norms_of_vectors` on OpenMP's threads."""
    in_team(openmp, norms_of_vectors, threads, first, last, arguments)


@team_pass(add_along)
def add_along_in_team(openmp: Any, threads: int, first: int, last: int, arguments: Any) -> None:
    """`add_along` on OpenMP's threads."""
    in_team(openmp, add_along, threads, first, last, arguments)
