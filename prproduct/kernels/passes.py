"""The passes over memory of a backward, compiled by Numba for the CPU; `compiled.py` calls them.

The main one, `split`, reads the output and its gradient once and writes D∘g once. All between is done on a strip of
pairs that fits into the cache: their angles, the operations of the product's program (`programs.py`) one after the
other, and the sums from which `autograd.py` makes the corrections.

    rows:    pairs[n, g, j]      linear layers and channels_last; along a strip the weight vector changes
    planes:  pairs[n, g, j, s]   convolutions; along a strip the window changes

What the two have in common is written out in both: in a function of its own, planes of 8×8 took a third longer.

Inner loops run over slices of one dimension, or LLVM does not vectorize them. Every pass takes a range of n, so that
threads can share them out; only the order in which `by_weight` is added up depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import overload

from prproduct.kernels import programs
from prproduct.kernels.programs import COS, INPUT_NORM, INVERSE_SIN, SIN, WEIGHT_NORM

STRIP = 512  # pairs: a handful of such registers stays in the first-level cache
BLOCK = 64  # rows added up in the layer's own precision before they go to a total in float64


def compiled_pass(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiled at the first call, and kept on disk for the next process where there is a place to write."""
    settings = {"nogil": True, "error_model": "numpy", **options}
    try:
        return numba.njit(function, cache=True, **settings)
    except RuntimeError:  # no such place
        return numba.njit(function, **settings)


def _at(value: Any, k: int) -> Any:
    """The kth of a strip, or the one number that holds for all of it."""


@overload(_at, inline="always", strict=False)
def _at_either(value: Any, k: int) -> Callable[[Any, int], Any]:
    if isinstance(value, types.Array):
        return lambda value, k: value[k]
    return lambda value, k: value


@compiled_pass
def _angles(
    output: Any, offset: Any, weight_inverse: Any, input_inverse: Any, rounded: Any, floor: Any, cos: Any, inverse: Any
) -> None:
    """`pairs.measure`."""
    zero, one = output.dtype.type(0.0), output.dtype.type(1.0)
    for k in range(len(output)):
        x = _at(input_inverse, k)
        c = (output[k] - _at(offset, k)) * x * _at(weight_inverse, k)
        c = min(max(c, -one), one) if c == c else zero
        square = (one - c) * (one + c)
        resolved = square > floor * (one + _at(rounded, k) * x)
        cos[k] = c
        inverse[k] = one / np.sqrt(square if resolved else one)


@compiled_pass
def _sines(cos: Any, eps: Any, sin: Any) -> None:
    """`products.Pair.sin`."""
    one, four = cos.dtype.type(1.0), cos.dtype.type(4.0)
    for k in range(len(sin)):
        square = (one - cos[k]) * (one + cos[k])
        sin[k] = np.sqrt(square if square > four * eps else eps * eps)


@compiled_pass
def _fill(strip: Any, value: Any) -> None:
    for k in range(len(strip)):
        strip[k] = _at(value, k)


@compiled_pass
def _perform(code: int, a: Any, b: Any, c: Any, result: Any) -> None:
    """One operation of a program."""
    zero, one = result.dtype.type(0.0), result.dtype.type(1.0)
    size = len(result)
    if code == programs.ADD:
        for k in range(size):
            result[k] = a[k] + b[k]
    elif code == programs.SUB:
        for k in range(size):
            result[k] = a[k] - b[k]
    elif code == programs.MUL:
        for k in range(size):
            result[k] = a[k] * b[k]
    elif code == programs.DIV:
        for k in range(size):
            result[k] = a[k] / b[k]
    elif code == programs.POW:
        for k in range(size):
            result[k] = a[k] ** b[k]
    elif code == programs.MIN:
        for k in range(size):
            result[k] = b[k] if b[k] < a[k] or b[k] != b[k] else a[k]
    elif code == programs.MAX:
        for k in range(size):
            result[k] = b[k] if b[k] > a[k] or b[k] != b[k] else a[k]
    elif code == programs.GREATER:
        for k in range(size):
            result[k] = one if a[k] > b[k] else zero
    elif code == programs.WHERE:
        for k in range(size):
            result[k] = b[k] if a[k] != zero else c[k]
    elif code == programs.ABS:
        for k in range(size):
            result[k] = abs(a[k])
    elif code == programs.SQRT:
        for k in range(size):
            result[k] = np.sqrt(a[k])
    elif code == programs.EXP:
        for k in range(size):
            result[k] = np.exp(a[k])
    elif code == programs.LOG:
        for k in range(size):
            result[k] = np.log(a[k])


@compiled_pass
def _run(registers: Any, size: int, steps: Any) -> None:
    for step in range(len(steps)):
        code, result, a, b, c = steps[step]
        operands = registers[a, :size], registers[b, :size], registers[c, :size]
        _perform(code, operands[0], operands[1], operands[2], registers[result, :size])


@compiled_pass
def _turn(grad: Any, direction: Any, turned: Any) -> None:
    for k in range(len(grad)):
        turned[k] = grad[k] * direction[k]


@compiled_pass
def _radial(grad: Any, length: Any, direction: Any, cos: Any, radial: Any) -> None:
    for k in range(len(grad)):
        radial[k] = (length[k] - direction[k]) * cos[k] * grad[k]


def _dot_product(a: Any, b: Any) -> Any:
    total = a.dtype.type(0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


_dot = compiled_pass(_dot_product, fastmath={"reassoc", "nsz", "contract"})  # several sums side by side


@compiled_pass
def _add_multiple(total: Any, t: Any, factor: Any) -> None:
    for k in range(len(total)):
        total[k] += t[k] * factor


@compiled_pass
def _move(partial: Any, total: Any) -> None:
    """Adds to the total, and begins anew."""
    for g in range(len(partial)):
        for j in range(partial.shape[1]):
            total[g, j] += partial[g, j]
            partial[g, j] = 0.0


@compiled_pass
def _fresh_registers(constants: Any, dtype_of: Any) -> Any:
    """All registers, constants filled in, and one more for the radial half."""
    registers = np.empty((len(constants) + 1, STRIP), dtype=dtype_of.dtype)
    for register in range(len(constants)):
        _fill(registers[register], constants[register])
    return registers


@compiled_pass
def split_rows(
    first: int,
    last: int,
    share: int,  # which row of by_weight is this thread's
    output: Any,  # (rows, groups, channels)
    grad: Any,
    of_weights: Any,  # (5, groups, channels): `WeightVectors.table`
    input_inverse: Any,  # (rows, groups)
    input_norm: Any,
    floor: Any,
    eps: Any,
    steps: Any,
    constants: Any,
    asks_for_sin: bool,
    asks_for_norms: bool,
    halves: Any,  # (1 or 2, 4), for ∂/∂w and ∂/∂x: length, direction, whether to write D∘g, whether to take sums
    weight_turned: Any,  # as output; without elements if it is not to be written
    input_turned: Any,
    by_weight: Any,  # (threads, groups, channels)
    by_input: Any,  # (rows, groups)
) -> None:
    """`splitting.split` for rows."""
    offset, weight_inverse, rounded = of_weights[0], of_weights[1], of_weights[2]
    weight_norm, weight_length = of_weights[3], of_weights[4]
    registers = _fresh_registers(constants, output)
    channels = output.shape[2]
    of_input = len(halves) - 1
    partial = np.zeros(output.shape[1:], dtype=output.dtype)
    for n in range(first, last):
        for g in range(output.shape[1]):
            for start in range(0, channels, STRIP):
                stop = min(start + STRIP, channels)
                size = stop - start
                strip_grad = grad[n, g, start:stop]
                cos, inverse, radial = registers[COS, :size], registers[INVERSE_SIN, :size], registers[-1, :size]
                _angles(
                    output[n, g, start:stop],
                    offset[g, start:stop],
                    weight_inverse[g, start:stop],
                    input_inverse[n, g],
                    rounded[g, start:stop],
                    floor,
                    cos,
                    inverse,
                )
                if asks_for_sin:
                    _sines(cos, eps, registers[SIN, :size])
                if asks_for_norms:
                    _fill(registers[WEIGHT_NORM, :size], weight_norm[g, start:stop])
                    _fill(registers[INPUT_NORM, :size], input_norm[n, g])
                if steps is not None:
                    _run(registers, size, steps)
                for half in range(len(halves)):
                    length, direction, writes, sums = halves[half]
                    if sums:
                        _radial(strip_grad, registers[length, :size], registers[direction, :size], cos, radial)
                        if half == 0:
                            _add_multiple(partial[g, start:stop], radial, input_norm[n, g])
                        if half == of_input:
                            by_input[n, g] += _dot(radial, weight_length[g, start:stop])
                    if writes:
                        turned = weight_turned if half == 0 else input_turned
                        _turn(strip_grad, registers[direction, :size], turned[n, g, start:stop])
        if (n - first) % BLOCK == BLOCK - 1 or n == last - 1:
            _move(partial, by_weight[share])


@compiled_pass
def split_planes(
    first: int,
    last: int,
    share: int,
    output: Any,  # (batch, groups, channels, positions)
    grad: Any,
    of_weights: Any,  # (5, groups, channels): `WeightVectors.table`
    input_inverse: Any,  # (batch, groups, positions)
    input_norm: Any,
    floor: Any,
    eps: Any,
    steps: Any,
    constants: Any,
    asks_for_sin: bool,
    asks_for_norms: bool,
    halves: Any,
    weight_turned: Any,
    input_turned: Any,
    by_weight: Any,  # (threads, groups, channels)
    by_input: Any,  # (batch, groups, positions)
) -> None:
    """`splitting.split` for planes."""
    offset, weight_inverse, rounded = of_weights[0], of_weights[1], of_weights[2]
    weight_norm, weight_length = of_weights[3], of_weights[4]
    registers = _fresh_registers(constants, output)
    positions = output.shape[3]
    of_input = len(halves) - 1
    for n in range(first, last):
        for g in range(output.shape[1]):
            for j in range(output.shape[2]):
                for start in range(0, positions, STRIP):
                    stop = min(start + STRIP, positions)
                    size = stop - start
                    strip_grad = grad[n, g, j, start:stop]
                    cos, inverse, radial = registers[COS, :size], registers[INVERSE_SIN, :size], registers[-1, :size]
                    _angles(
                        output[n, g, j, start:stop],
                        offset[g, j],
                        weight_inverse[g, j],
                        input_inverse[n, g, start:stop],
                        rounded[g, j],
                        floor,
                        cos,
                        inverse,
                    )
                    if asks_for_sin:
                        _sines(cos, eps, registers[SIN, :size])
                    if asks_for_norms:
                        _fill(registers[WEIGHT_NORM, :size], weight_norm[g, j])
                        _fill(registers[INPUT_NORM, :size], input_norm[n, g, start:stop])
                    if steps is not None:
                        _run(registers, size, steps)
                    for half in range(len(halves)):
                        length, direction, writes, sums = halves[half]
                        if sums:
                            _radial(strip_grad, registers[length, :size], registers[direction, :size], cos, radial)
                            if half == 0:
                                by_weight[share, g, j] += _dot(radial, input_norm[n, g, start:stop])
                            if half == of_input:
                                _add_multiple(by_input[n, g, start:stop], radial, weight_length[g, j])
                        if writes:
                            turned = weight_turned if half == 0 else input_turned
                            _turn(strip_grad, registers[direction, :size], turned[n, g, j, start:stop])


def _square_sum(x: Any) -> Any:
    total = x.dtype.type(0.0)
    for k in range(len(x)):
        total += x[k] * x[k]
    return total


_sum_of_squares = compiled_pass(_square_sum, fastmath={"reassoc", "nsz", "contract"})


@compiled_pass
def _add_squares(total: Any, x: Any) -> None:
    for k in range(len(total)):
        total[k] += x[k] * x[k]


@compiled_pass
def squares_rows(first: int, last: int, share: int, x: Any, squares: Any) -> None:
    """Σ_c x[n, c]² into squares[n]."""
    columns = x.shape[1]
    for n in range(first, last):
        total = 0.0
        for start in range(0, columns, STRIP):
            total += _sum_of_squares(x[n, start : min(start + STRIP, columns)])
        squares[n] = total


@compiled_pass
def squares_planes(first: int, last: int, share: int, x: Any, squares: Any) -> None:
    """Σ_c x[n, c, s]² into squares[n, s], which start at zero."""
    for n in range(first, last):
        for c in range(x.shape[1]):
            _add_squares(squares[n], x[n, c])


@compiled_pass
def _norms(square: Any, value: Any, inverse: Any) -> None:
    zero, one = square.dtype.type(0.0), square.dtype.type(1.0)
    for k in range(len(square)):
        positive = square[k] > zero and square[k] < np.inf
        root = np.sqrt(square[k] if positive else one)
        value[k] = root if positive else zero
        inverse[k] = one / root if positive else zero


@compiled_pass
def norms(first: int, last: int, share: int, square: Any, results: Any) -> None:
    """`pairs.Norms.of` into results[0] and results[1]."""
    _norms(square[first:last], results[0, first:last], results[1, first:last])


@compiled_pass
def _add_products(total: Any, x: Any, first: Any, second: Any) -> None:
    for k in range(len(total)):
        total[k] += x[k] * _at(first, k) * second


@compiled_pass
def add_rows(first: int, last: int, share: int, total: Any, x: Any, a: Any, b: Any) -> None:
    """total[n, i] += x[n, i]·a[n]·b[n]."""
    for n in range(first, last):
        _add_products(total[n], x[n], a[n], b[n])


@compiled_pass
def add_planes(first: int, last: int, share: int, total: Any, x: Any, a: Any, b: Any) -> None:
    """total[n, g, c, s] += x[n, g, c, s]·a[n, g, s]·b[g]."""
    for n in range(first, last):
        for g in range(total.shape[1]):
            for c in range(total.shape[2]):
                _add_products(total[n, g, c], x[n, g, c], a[n, g], b[g])
