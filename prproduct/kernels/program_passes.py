"""A product's program (`programs.py`), performed on strips of pairs.

Each register is a strip of numbers: the angles, what else a product may ask for, constants and results. The first
backward waits for the compiler, so `run`, which only some products need, is compiled by itself and called by its
address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels import programs
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, call, each, integers, one_of, part_of_pass, rounded_to
from prproduct.kernels.programs import COS, INPUT_NORM, SIN, WEIGHT_NORM
from prproduct.kernels.tables import (
    ASKS_FOR_SIN,
    CONSTANTS,
    EPS,
    LIMITS,
    OPERATIONS,
    PLAN,
    REGISTERS,
    RUN,
    SPARE_REGISTERS,
    STEPS,
    STRIP,
)


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
