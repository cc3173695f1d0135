"""What passes do with a strip of pairs, which fits into the cache: their angles, D∘g, and the sums for the corrections.

Along a strip one of the two vectors changes, or both; what is known of it is a number or many (`words.each`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.words import at, each, part_of_pass
from prproduct.kernels.program_passes import run_program
from prproduct.kernels.programs import COS, INVERSE_SIN
from prproduct.kernels.tables import (
    DIRECTION,
    EXCESSES,
    FLOOR,
    HAS_SUMS,
    IS_PR,
    LENGTH,
    LIMITS,
    OFFSET,
    PER_HALF,
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


@part_of_pass(reassociates=True, apart=True)
def take_off(
    count: int,
    output: Any,
    addend: Any,
    rounded: Any,
    weight_inverse: Any,
    one: Any,
    products: Any,
    excesses: Any,
) -> Any:
    """What was added to a layer's output, and its rounding (`pairs.WeightVectors.rounded`); Σ |sum|"""
    total = one - one
    for k in range(count):
        size = abs(output[k])
        products[k] = output[k] - addend[k]
        excesses[k] = each(rounded, k) + size * each(weight_inverse, k)
        total += size
    return total


@part_of_pass(apart=True)
def fill(count: int, number: Any, target: Any) -> None:
    """The same number everywhere."""
    for k in range(count):
        target[k] = number


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


@part_of_pass(inlined=True)
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
        of_half = one - one
        length = at(registers, halves[half * PER_HALF + LENGTH] * STRIP, one)
        direction = at(registers, halves[half * PER_HALF + DIRECTION] * STRIP, one)
        writes, sums = halves[half * PER_HALF + WRITES], halves[half * PER_HALF + HAS_SUMS]
        turned, totals = for_input if half else for_weight, input_totals if half else weight_totals
        turned = turned if writes and (half or not in_place) else aside
        if sums:
            of_half = turn_and_sum(count, gradient, length, direction, cos, factor, factors, one, totals, turned)
        elif writes:
            turn(count, gradient, direction, turned)
        of_input = of_half
        if not half:
            of_weight = of_half
            if writes and in_place:
                copy(count, aside, gradient)
    return of_weight, of_input


@part_of_pass(inlined=True)
def split_plane(
    windows: int,
    vectors: int,
    program: int,
    registers: Any,
    one: Any,
    output: Any,
    addend: int,
    first: int,
    gradient: Any,
    of_vector: Any,
    norm: Any,
    inverse: Any,
    by_input: Any,
    for_weight: Any,
    for_input: Any,
) -> Any:
    """`split_strip` for all windows of one weight vector, of which the table of so many says `of_vector`.

    Unless its address is 0, the addend was added to the output: the plane's begins with its `first`. The sums of ∂/∂w
    and of what p was rounded in, in float64; those of ∂/∂x are added to each window's.
    """
    plan, total, added = at(program, 0, np.int64(0)), 0.0, 0.0
    unread = at(registers, plan[REGISTERS] * STRIP, one)
    products = at(registers, (plan[REGISTERS] + PRODUCTS) * STRIP, one)
    excesses = at(registers, (plan[REGISTERS] + EXCESSES) * STRIP, one)
    fill(STRIP if windows > STRIP else windows, of_vector[ROUNDED * vectors], excesses)
    for start in range(0, windows, STRIP):
        of_windows, input_norm = at(by_input, start, one), at(norm, start, one)
        count, p = STRIP if windows - start > STRIP else windows - start, at(output, start, one)
        if addend:
            rounded, inverse_norm = of_vector[ROUNDED * vectors], of_vector[WEIGHT_INVERSE * vectors]
            added += take_off(count, p, at(addend, first + start, one), rounded, inverse_norm, one, products, excesses)
            p = products
        of_weight, _ = split_strip(
            count,
            program,
            registers,
            one,
            p,
            at(gradient, start, one),
            of_vector[OFFSET * vectors],
            excesses,
            of_vector[WEIGHT_VALUE * vectors],
            of_vector[WEIGHT_INVERSE * vectors],
            input_norm,
            at(inverse, start, one),
            of_vector[WEIGHT_LENGTH * vectors],
            input_norm,
            of_windows if plan[SAME] else unread,
            of_windows,
            at(for_weight, start, one),
            at(for_input, start, one),
            0,
        )
        total += of_weight
    return total, added
