"""Numba functions that take memory by its address.

An array would cost some 4 µs to wrap for each of a backward's dozen tensors, and a second more to compile; an address
costs nothing. Numbers at an address are reached through `at`, which Numba types by one of them: float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic, overload

_ROUNDED_ALIKE = {"reassoc", "nsz", "contract"}  # several sums side by side; NaN and Inf as ever


def compiled_pass(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiled at the first call, and kept on disk for the next process where there is a place to write."""
    settings = {"nogil": True, "error_model": "numpy", **options}
    try:
        return numba.njit(function, cache=True, **settings)
    except RuntimeError:  # no such place
        return numba.njit(function, **settings)


def part_of_pass(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """For use by compiled passes alone, which need no wrapper for Python and are kept on disk with all their parts."""
    alone: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return numba.njit(function, nogil=True, error_model="numpy", **alone)


def sum_of_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """`part_of_pass` for loops that add up, in any order."""
    return part_of_pass(function, fastmath=_ROUNDED_ALIKE)


def _at(typing_context: Any, memory: Any, place: Any, one: Any) -> Any:
    """A pointer to the place-th of the numbers behind an address or a pointer; they are of one's type."""
    pointer = types.CPointer(one)
    given = memory if isinstance(memory, types.CPointer) else types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, offset, _ = arguments
        if given is types.int64:
            start = builder.inttoptr(start, context.get_value_type(pointer))
        return builder.gep(start, [offset])

    return pointer(given, types.int64, one), generate


at: Any = intrinsic(_at)


def each(value: Any, k: int) -> Any:
    """The kth behind a pointer, or the one number that holds for all of a strip."""


@overload(each, inline="always", strict=False)
def _each(value: Any, k: int) -> Callable[[Any, int], Any]:
    if isinstance(value, types.CPointer):
        return lambda value, k: value[k]
    return lambda value, k: value
