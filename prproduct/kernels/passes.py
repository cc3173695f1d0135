"""The passes over memory of a backward, compiled for the CPU; `rules.py` calls them.

The main ones read the output and its gradient once and write D∘g once. All between is done on a strip of pairs that
fits into the cache: their angles, the operations of the product's program (`programs.py`) one after the other, and the
sums from which the corrections are made.

    rows:    pairs[n, g, j]      linear layers and channels_last; along a strip the weight vector changes
    planes:  pairs[n, g, j, s]   convolutions (`convolution_passes.py`); along a strip the window changes

Memory is given by addresses (`compiler/`). Every pass takes a range, so that threads can share it out; only the order
in which `by_weight` is added up depends on how many there are.

The first backward on a machine waits for the compiler: what only some products need (`run`) is compiled by itself, and
called by its address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels import programs
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import (
    at,
    call,
    each,
    integers,
    one_of,
    part_of_pass,
    rounded_to,
)
from prproduct.kernels.programs import COS, INPUT_NORM, INVERSE_SIN, SIN, WEIGHT_NORM

STRIP = 512  # pairs: a handful of such registers stays in the first-level cache
BLOCK = 64  # rows added up in the layer's own precision before they go to a total in float64

# What is known of the weight vectors (`pairs.WeightVectors`), one field after the other.
OFFSET, WEIGHT_INVERSE, ROUNDED, WEIGHT_VALUE, WEIGHT_LENGTH, FIELDS = range(6)

# The integers by which passes know a product's program (`rules.plan_of`).
REGISTERS, OPERATIONS, STEPS, CONSTANTS, LIMITS, RUN, ASKS_FOR_SIN, SAME, IS_PR = range(9)
PER_HALF = 4
WEIGHT_HALF, INPUT_HALF, PLAN = 9, 9 + PER_HALF, 9 + 2 * PER_HALF
SPARE_REGISTERS = 4  # for the passes themselves
LENGTH, DIRECTION, WRITES, HAS_SUMS = range(4)  # of a half: registers of L and D, whether to write D∘g and to take sums

# Behind the address of the limits.
FLOOR, EPS, TINY, NEGLIGIBLE = range(4)


@part_of_pass(apart=True)
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
        c = min(max(c, -one), one) if c == c else zero
        square = (one - c) * (one + c)
        resolved = square > floor * (one + each(rounded, k) * x)
        cos[k] = c
        inverse[k] = one / np.sqrt(square if resolved else one)


@part_of_pass()
def sines(count: int, cos: Any, eps: Any, one: Any, sin: Any) -> None:
    """`products.Pair.sin`."""
    for k in range(count):
        square = (one - cos[k]) * (one + cos[k])
        sin[k] = np.sqrt(square if square > (one + one + one + one) * eps else eps * eps)


@part_of_pass()
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


@range_pass(PLAN)
def run(first: int, last: int, memory: int, plan: Any) -> None:
    """The sine, where it is asked for, and all operations of a program, for a strip of pairs."""
    one, given = one_of(plan), integers(plan)
    registers = at(memory, 0, one)
    if given[ASKS_FOR_SIN]:
        sines(
            last, at(registers, COS * STRIP, one), at(given[LIMITS], EPS, one)[0], one, at(registers, SIN * STRIP, one)
        )
    for operation in range(given[OPERATIONS]):
        step = at(given[STEPS], 5 * operation, np.int64(0))
        result, a = at(registers, step[1] * STRIP, one), at(registers, step[2] * STRIP, one)
        b, c = at(registers, step[3] * STRIP, one), at(registers, step[4] * STRIP, one)
        _perform(step[0], last, a, b, c, one, result)


@part_of_pass()
def fill(count: int, weight_norm: Any, input_norm: Any, one: Any, registers: Any) -> None:
    """What a program may ask for beside the angles."""
    weight_norms, input_norms = at(registers, WEIGHT_NORM * STRIP, one), at(registers, INPUT_NORM * STRIP, one)
    for k in range(count):
        weight_norms[k] = each(weight_norm, k)
        input_norms[k] = each(input_norm, k)


@part_of_pass(apart=True)
def copy(count: int, source: Any, target: Any) -> None:
    """As many numbers."""
    for k in range(count):
        target[k] = source[k]


@part_of_pass(apart=True)
def turn(count: int, grad: Any, direction: Any, turned: Any) -> None:
    """D∘g"""
    for k in range(count):
        turned[k] = grad[k] * direction[k]


@part_of_pass(reassociates=True, apart=True)
def turn_and_sum(
    count: int,
    grad: Any,
    length: Any,
    direction: Any,
    cos: Any,
    factor: Any,
    factors: Any,
    one: Any,
    totals: Any,
    turned: Any,
) -> Any:
    """D∘g, and the radial half (L − D)·cos θ·g: times `factor` added to the totals; times the factors, their sum."""
    total = one - one
    for k in range(count):
        radial = (length[k] - direction[k]) * cos[k] * grad[k]
        totals[k] += radial * factor
        total += radial * factors[k]
        turned[k] = grad[k] * direction[k]
    return total


@part_of_pass()
def prepare(work: int, share: int, program: int, one: Any) -> Any:
    """The registers of a share, filled with the program's constants; those behind will be written to and never read."""
    plan = at(program, 0, np.int64(0))
    registers = at(work, share * (plan[REGISTERS] + SPARE_REGISTERS) * STRIP, one)
    values = at(plan[CONSTANTS], 0, 1.0)
    for register in range(plan[REGISTERS]):
        for k in range(STRIP):
            registers[register * STRIP + k] = rounded_to(one, values[register])
    return registers


@part_of_pass()
def run_program(count: int, program: int, registers: Any, weight_norm: Any, input_norm: Any, one: Any) -> None:
    """What the program does with the angles, if it does anything."""
    address = at(program, RUN, np.int64(0))[0]
    if address:
        fill(count, weight_norm, input_norm, one, registers)
        call(address, 0, count, registers, program)


@part_of_pass(reassociates=True, apart=True)
def _split_at_once(
    count: int,
    output: Any,
    gradient: Any,
    offset: Any,
    rounded: Any,
    weight_inverse: Any,
    input_inverse: Any,
    factor: Any,
    factors: Any,
    length: Any,
    floor: Any,
    one: Any,
    totals: Any,
    turned: Any,
) -> Any:
    """`angles` and `turn_and_sum` in one loop, for D = 1/|sin θ| and one L for all.

    What is chosen between two factors keeps the compiler from multiplying the inverses of both norms first, which may
    overflow.
    """
    zero, total = one - one, one - one
    for k in range(count):
        x = each(input_inverse, k)
        c = (output[k] - each(offset, k)) * each(weight_inverse, k)
        c = (c if c == c else zero) * x
        c = min(max(c, -one), one) if c == c else zero
        square = (one - c) * (one + c)
        resolved = square > floor * (one + each(rounded, k) * x)
        direction = one / np.sqrt(square if resolved else one)
        radial = (length - direction) * c * gradient[k]
        totals[k] += radial * factor
        total += radial * factors[k]
        turned[k] = gradient[k] * direction
    return total


@part_of_pass()
def split_strip(
    count: int,
    program: int,
    registers: Any,
    one: Any,
    output: Any,
    gradient: Any,
    offset: Any,
    rounded: Any,
    weight_norm: Any,
    weight_inverse: Any,
    input_norm: Any,
    input_inverse: Any,
    factor: Any,
    factors: Any,
    weight_totals: Any,
    input_totals: Any,
    for_weight: Any,
    for_input: Any,
    in_place: int,
) -> Any:
    """`splitting.split` of a strip: two sums, of ∂/∂w and ∂/∂x, and their totals.

    What is known of vectors is a number where the strip has one of them, and else a pointer. With `in_place`,
    `for_weight` is where the gradient is.
    """
    plan = at(program, 0, np.int64(0))
    halves = at(plan, WEIGHT_HALF, np.int64(0))
    cos, inverse = at(registers, COS * STRIP, one), at(registers, INVERSE_SIN * STRIP, one)
    floor, aside = at(plan[LIMITS], FLOOR, one)[0], at(registers, (plan[REGISTERS] + 1) * STRIP, one)
    if plan[IS_PR]:
        total = _split_at_once(
            count,
            output,
            gradient,
            offset,
            rounded,
            weight_inverse,
            input_inverse,
            factor,
            factors,
            at(registers, halves[LENGTH] * STRIP, one)[0],
            floor,
            one,
            weight_totals,
            aside if in_place else for_weight,  # the compiler vectorizes no loop that writes what it reads
        )
        if in_place:
            copy(count, aside, gradient)
        return total, total
    angles(count, output, offset, weight_inverse, input_inverse, rounded, floor, one, cos, inverse)
    run_program(count, program, registers, weight_norm, input_norm, one)
    of_weight = of_input = one - one
    for half in range(1 if plan[SAME] else 2):
        of_input = one - one
        length = at(registers, halves[half * PER_HALF + LENGTH] * STRIP, one)
        direction = at(registers, halves[half * PER_HALF + DIRECTION] * STRIP, one)
        writes, sums = halves[half * PER_HALF + WRITES], halves[half * PER_HALF + HAS_SUMS]
        turned, totals = for_input if half else for_weight, input_totals if half else weight_totals
        turned = turned if writes and (half or not in_place) else aside
        if sums:
            of_input = turn_and_sum(count, gradient, length, direction, cos, factor, factors, one, totals, turned)
        elif writes:
            turn(count, gradient, direction, turned)
        if not half:
            of_weight = of_input
            if writes and in_place:
                copy(count, aside, gradient)
    return of_weight, of_input


@range_pass(14)
def split_rows(first: int, last: int, share: int, given: Any) -> None:
    """`splitting.split` for rows. The sums for weight vectors, and the memory for work, are those of the share."""
    one = one_of(given)
    (groups, channels, output, gradient, for_weight, for_input, table, norms, inverse_norms, by_weight, by_input) = (
        integers(given)[:11]
    )
    work, partial_sums, program = integers(given)[11:]
    vectors = groups * channels
    registers, partial = prepare(work, share, program, one), at(partial_sums, share * vectors, one)
    unread = at(registers, at(program, REGISTERS, np.int64(0))[0] * STRIP, one)
    in_place = 1 if for_weight == gradient else 0
    norm_of, inverse_of, sum_of = at(norms, 0, one), at(inverse_norms, 0, one), at(by_input, 0, 1.0)
    totals = at(by_weight, share * vectors, 1.0)
    for k in range(vectors):
        partial[k] = one - one
    for n in range(first, last):
        for row in range(n * groups, (n + 1) * groups):
            total = 0.0
            for start in range(0, channels, STRIP):
                here, vector = row * channels + start, row % groups * channels + start
                of_weight = at(table, vector, one)
                _, of_input = split_strip(
                    STRIP if channels - start > STRIP else channels - start,
                    program,
                    registers,
                    one,
                    at(output, here, one),
                    at(gradient, here, one),
                    at(of_weight, OFFSET * vectors, one),
                    at(of_weight, ROUNDED * vectors, one),
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


@range_pass(10)
def tabulate(first: int, last: int, share: int, given: Any) -> None:
    """What follows from the norms in the table, for all groups. Sums for weight vectors start at zero.

    With `relative`, lengths are to be shares of the group's longest.
    """
    if first == last:
        return
    one = one_of(given)
    channels, relative, limit, offset, offset_step, table, longest, by_weight, shares, drowned = integers(given)
    vectors, limits = last * channels, at(limit, 0, one)
    tiny, negligible = limits[TINY], limits[NEGLIGIBLE]
    values, inverses = at(table, WEIGHT_VALUE * vectors, one), at(table, WEIGHT_INVERSE * vectors, one)
    offsets, rounded = at(table, OFFSET * vectors, one), at(table, ROUNDED * vectors, one)
    lengths, longest_of = at(table, WEIGHT_LENGTH * vectors, one), at(longest, 0, one)
    for g in range(last):
        most = tiny
        for k in range(g * channels, (g + 1) * channels):
            most = values[k] if values[k] > most else most
        longest_of[g] = most
        for k in range(g * channels, (g + 1) * channels):
            offsets[k] = at(offset, k * offset_step, one)[0] if offset else one - one
            excess = (abs(offsets[k]) + tiny) * inverses[k]
            rounded[k] = excess if excess > negligible else one - one
            lengths[k] = values[k] / most if relative else values[k]
    for k in range(shares * vectors):
        at(by_weight, k, 1.0)[0] = 0.0
    at(drowned, 0, 1.0)[0] = 0.0


@range_pass(6)
def find_drowned(first: int, last: int, share: int, given: Any) -> None:
    """Whether the bias is so large that output − bias has lost p, and has to be computed again (`plain_rule._drowns`).

    The sum of the data vectors' norms is there in shares.
    """
    if first == last:
        return
    one = one_of(given)
    vectors, data_vectors, table, total_norm, shares, drowned = integers(given)
    offsets, norms = at(table, OFFSET * vectors, one), at(table, WEIGHT_VALUE * vectors, one)
    all_offsets = all_norms = all_data = 0.0
    for k in range(vectors):
        all_offsets += abs(offsets[k])
        all_norms += norms[k]
    for thread in range(shares):
        all_data += at(total_norm, thread, 1.0)[0]
    at(drowned, 0, 1.0)[0] = 1.0 if all_offsets * data_vectors > 2.0 * all_norms * all_data else 0.0


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
