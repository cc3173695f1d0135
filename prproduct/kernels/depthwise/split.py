"""From the squares of windows to D∘g and what is added along vectors, for a plane of a depthwise convolution.

`splitting.py` has the same in torch; `passes.py` calls one of the two passes here by its address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import (
    at,
    integers,
    one_of,
    part_of_pass,
    rounded_to,
)
from prproduct.kernels.convolution_passes import norms
from prproduct.kernels.depthwise.moves import (
    BY_INPUT,
    CHUNK,
    COEFFICIENTS,
    COUNTS,
    FOR_INPUT,
    FOR_WEIGHT,
    INVERSES,
    MEMORY,
    NORMS,
    WINDOWS,
)
from prproduct.kernels.program_passes import prepare
from prproduct.kernels.strips import split_plane, turn
from prproduct.kernels.tables import (
    CONSTANTS,
    FLOOR,
    LENGTH,
    LIMITS,
    OFFSET,
    REGISTERS,
    ROUNDED,
    SPARE_REGISTERS,
    STRIP,
    WEIGHT_HALF,
    WEIGHT_INVERSE,
)


@part_of_pass(reassociates=True)
def _split_at_once(
    count: int,
    square: Any,
    output: Any,
    grad: Any,
    offset: Any,
    w_inverse: Any,
    rounded: Any,
    floor: Any,
    length: Any,
    one: Any,
    turned: Any,
    coefficient: Any,
) -> Any:
    """`norms`, `angles` and `turn_and_sum` in one loop, in which the square roots hide the rest.

    The sums are those along the weight vector and of the norms. What is chosen between two factors keeps the compiler
    from multiplying the inverses of both norms first, which may overflow.
    """
    zero, along, total = one - one, one - one, one - one
    for k in range(count):
        root = np.sqrt(square[k])
        positive = root > zero and root < np.inf
        norm, inverse = root if positive else zero, one / root if positive else zero
        c = (output[k] - offset) * w_inverse
        c = (c if c == c else zero) * inverse
        c = min(max(c, -one), one) if c == c else zero
        sin_square = (one - c) * (one + c)
        resolved = sin_square > floor * (one + rounded * inverse)
        direction = one / np.sqrt(sin_square if resolved else one)
        radial = (length - direction) * c * grad[k]
        turned[k] = grad[k] * direction
        coefficient[k] = radial * inverse
        along += radial * norm
        total += norm
    return along, total


# The integers of the passes that do planes.
GIVEN = 22


@range_pass(GIVEN)
def split_at_once(output: int, gradient: int, place: int, given: Any) -> None:
    """`split_strips` for programs without operations, of one D = 1/|sin θ| and one L for all: an eighth less time.

    Only where a group has one kernel, which is its longest.
    """
    one = one_of(given)
    geometry, table = integers(given)[7], integers(given)[13]
    by_weight, total_norm, all_memory, program = (
        integers(given)[15],
        integers(given)[17],
        integers(given)[19],
        integers(given)[20],
    )
    layout, plan, vectors = at(geometry, 0, np.int64(0)), at(program, 0, np.int64(0)), integers(given)[1]
    share, vector = place // vectors, place % vectors
    if not output:
        return
    memory, of_weight = at(all_memory, share * layout[MEMORY], one), at(table, vector, one)
    length = rounded_to(one, at(plan[CONSTANTS], plan[WEIGHT_HALF + LENGTH], 1.0)[0])
    for start in range(0, layout[WINDOWS], CHUNK):
        along, all_norms = _split_at_once(
            CHUNK if layout[WINDOWS] - start > CHUNK else layout[WINDOWS] - start,
            at(memory, layout[BY_INPUT] + start, one),
            at(output, start, one),
            at(gradient, start, one),
            of_weight[OFFSET * vectors],
            of_weight[WEIGHT_INVERSE * vectors],
            of_weight[ROUNDED * vectors],
            at(plan[LIMITS], FLOOR, one)[0],
            length,
            one,
            at(memory, layout[FOR_WEIGHT] + start, one),
            at(memory, layout[COEFFICIENTS] + start, one),
        )
        at(by_weight, share * vectors + vector, 1.0)[0] += along
        at(total_norm, share, 1.0)[0] += all_norms


@range_pass(GIVEN)
def split_strips(output: int, gradient: int, place: int, given: Any) -> None:
    """`convolution_passes.split_planes` for one weight vector of a share, before a group's first the windows' norms.

    Without an output: what has to be done once for the share. Behind a group's last, the coefficients.
    """
    one = one_of(given)
    groups, channels, geometry, table = (
        integers(given)[1],
        integers(given)[2],
        integers(given)[7],
        integers(given)[13],
    )
    by_weight, _, total_norm, work, all_memory, program, _ = integers(given)[15:]
    layout, plan, vectors = at(geometry, 0, np.int64(0)), at(program, 0, np.int64(0)), groups * channels
    share, vector = place // vectors, place % vectors
    if not output:
        prepare(work, share, program, one)
        return
    registers = at(work, share * (plan[REGISTERS] + SPARE_REGISTERS) * STRIP, one)
    memory = at(all_memory, share * layout[MEMORY], one)
    norm, reciprocal = at(memory, layout[NORMS], one), at(memory, layout[INVERSES], one)
    by_input = at(memory, layout[BY_INPUT], one)
    if vector % channels == 0:
        at(total_norm, share, 1.0)[0] += norms(layout[WINDOWS], by_input, one, norm, reciprocal)
        for k in range(layout[COUNTS] * layout[COUNTS + 1] * layout[COUNTS + 2]):
            by_input[k] = one - one
    of_weight, _ = split_plane(
        layout[WINDOWS],
        vectors,
        program,
        registers,
        one,
        at(output, 0, one),
        0,
        0,
        at(gradient, 0, one),
        at(table, vector, one),
        norm,
        reciprocal,
        by_input,
        at(memory, layout[FOR_WEIGHT], one),
        at(memory, layout[FOR_INPUT], one),
    )
    at(by_weight, share * vectors + vector, 1.0)[0] += of_weight
    if vector % channels == channels - 1:
        turn(layout[WINDOWS], by_input, reciprocal, at(memory, layout[COEFFICIENTS], one))
