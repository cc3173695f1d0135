"""Compiled functions that take memory by its address, and one way to call them all.

A pass does a part of a range, on one thread; what it needs beside are integers, most of them addresses, behind one
address of their own:

    pass(first, last, share, given)

So Python calls a pass as it calls C, for 2 µs instead of the 5 to 10 that Numba takes to unpack two dozen arguments,
and one small function runs any passes one after the other on a team of OpenMP's threads: a pass is compiled once. (An
array would cost 4 µs for each of a backward's dozen tensors, and a second more to compile.)

Numbers at an address are reached through `at`, which Numba types by one of them: float32 or float64.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

_ROUNDED_ALIKE = {"reassoc", "nsz", "contract"}  # several sums side by side; NaN and Inf as ever


class Given(types.RawPointer):
    """Where the integers of a pass are, how many, and of what type the numbers are that it works on."""

    def __init__(self, one: Any, count: int) -> None:
        super().__init__(f"Given({one}, {count})")
        self.one, self.count = one, count


register_model(Given)(models.OpaqueModel)


class Entry:
    """A pass for one type of numbers: its address, what calls it, and what packs its integers."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.__name__ = function.__name__
        self.compiled = _compile(function, types.void(*arguments))
        self.address = self.compiled.address
        self.call = _C_PASS(self.address)
        self.integers = arguments[-1].count
        self.pack = struct.Struct(f"{self.integers}q").pack


_C_PASS = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, ctypes.c_char_p)  # it releases the GIL


class Pass:
    """A pass over a range, with so many integers beside; compiled when first asked for."""

    def __init__(self, function: Callable[..., Any], integers: int) -> None:
        self.function, self.integers = function, integers
        self.entries: dict[int, Entry] = {}

    def __getitem__(self, size: int) -> Entry:
        """For numbers of so many bytes."""
        if size not in self.entries:
            given = Given({4: types.float32, 8: types.float64}[size], self.integers)
            self.entries[size] = Entry(self.function, *[types.int64] * 3, given)
        return self.entries[size]


def range_pass(integers: int) -> Callable[[Callable[..., Any]], Pass]:
    """Decorates a function of (first, last, share, given)."""
    return lambda function: Pass(function, integers)


def _compile(function: Callable[..., Any], signature: Any) -> Any:
    """As a C function, kept on disk for the next process where there is a place to write."""
    try:
        return numba.cfunc(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no such place
        return numba.cfunc(signature, error_model="numpy")(function)


def compiled_pass(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """For Python to call with arrays; compiled at the first call, and kept on disk likewise."""
    settings = {"nogil": True, "error_model": "numpy", **options}
    try:
        return numba.njit(function, cache=True, **settings)
    except RuntimeError:
        return numba.njit(function, **settings)


def part_of_pass(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """For use by passes alone, which need no wrapper for Python and are kept on disk with all their parts."""
    alone: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return numba.njit(function, nogil=True, error_model="numpy", **alone)


def sum_of_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """`part_of_pass` for loops that add up, in any order."""
    return part_of_pass(function, fastmath=_ROUNDED_ALIKE)


def _integers(typing_context: Any, given: Any) -> Any:
    """All of them, as a tuple."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.bitcast(arguments[0], ir.IntType(64).as_pointer())
        places = [builder.gep(start, [ir.IntType(64)(k)]) for k in range(given.count)]
        return cgutils.pack_array(builder, [builder.load(place) for place in places])

    return types.UniTuple(types.int64, given.count)(given), generate


def _one_of(typing_context: Any, given: Any) -> Any:
    """The number one in the type that the pass works on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(given.one, 1.0)

    return given.one(given), generate


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


def _each(typing_context: Any, value: Any, k: Any) -> Any:
    """The kth behind a pointer, or the one number that holds for all of a strip."""
    many = isinstance(value, types.CPointer)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]])) if many else arguments[0]

    return (value.dtype if many else value)(value, types.int64), generate


def _fill_eight(typing_context: Any, pointer: Any, value: Any) -> Any:
    """The same number to eight places: Numba's loops of so few take longer than all else that is done with them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, number = arguments
        vector = ir.VectorType(number.type, 8)
        filled = vector(ir.Undefined)
        for k in range(8):
            filled = builder.insert_element(filled, number, ir.IntType(32)(k))
        builder.store(filled, builder.bitcast(place, vector.as_pointer()), align=value.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, value), generate


def _copy_eight(typing_context: Any, target: Any, source: Any) -> Any:
    """Eight numbers from one place to another, for the same reason."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(context.get_value_type(source.dtype), 8).as_pointer()
        to_there, from_here = (builder.bitcast(place, vector) for place in arguments)
        align = source.dtype.bitwidth // 8
        builder.store(builder.load(from_here, align=align), to_there, align=align)
        return context.get_dummy_value()

    return types.void(target, source), generate


def _rounded_to(typing_context: Any, one: Any, value: Any) -> Any:
    """A number in the type of one: between two types Numba would compute in the wider, and half as fast."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[1], value, one)

    return one(one, value), generate


integers: Any = intrinsic(_integers)
one_of: Any = intrinsic(_one_of)
at: Any = intrinsic(_at)
each: Any = intrinsic(_each)
fill_eight: Any = intrinsic(_fill_eight)
copy_eight: Any = intrinsic(_copy_eight)
rounded_to: Any = intrinsic(_rounded_to)


def _ask(typing_context: Any, address: Any) -> Any:
    """What the function at an address returns: an int of C's, or nothing of use."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.inttoptr(arguments[0], ir.FunctionType(ir.IntType(32), []).as_pointer())
        return builder.sext(builder.call(function, []), ir.IntType(64))

    return types.int64(types.int64), generate


def _behind(typing_context: Any, given: Any) -> Any:
    """The address behind its integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.ptrtoint(arguments[0], ir.IntType(64))
        return builder.add(start, ir.IntType(64)(8 * given.count))

    return types.int64(given), generate


def _call(typing_context: Any, address: Any, first: Any, last: Any, share: Any, given: Any) -> Any:
    """Run the pass at an address; a part of a pass may have a pointer in the place of its share."""
    shared = share if isinstance(share, types.CPointer) else types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [value.type for value in arguments[1:]])
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, shared, types.int64), generate


ask: Any = intrinsic(_ask)
behind: Any = intrinsic(_behind)
call: Any = intrinsic(_call)


def _conduct(team: Any) -> None:
    """What each thread of a team runs: its shares of some passes, one pass after the other.

    A pass may have to wait until all have done what comes before, and is left out with all that follow if the number at
    an address is not 0. The team may be smaller than the number of shares. Behind the team's integers are six for each
    pass (its address, its range, how far from here its own integers are, whether it waits, that address), then theirs.
    """
    number, count, barrier, shares, passes = integers(team)
    me, threads = (ask(number), ask(count)) if number else (0, 1)
    for place in range(passes):
        each_pass = at(behind(team), 6 * place, np.int64(0))
        kernel, first, size, unless = each_pass[0], each_pass[1], each_pass[2] - each_pass[1], each_pass[5]
        if each_pass[4] and threads > 1:
            ask(barrier)
        if unless and at(unless, 0, 1.0)[0] != 0.0:
            return
        for share in range(shares * me // threads, shares * (me + 1) // threads):
            start, end = first + size * share // shares, first + size * (share + 1) // shares
            call(kernel, start, end, share, behind(team) + each_pass[3])


class Conductor:
    """`_conduct`, compiled: its address, and what calls it on one thread."""

    def __init__(self) -> None:
        self.compiled = _compile(_conduct, types.void(Given(types.int64, 5)))
        self.address = self.compiled.address
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self.address)


@functools.cache
def conductor() -> Conductor:
    """The one there is."""
    return Conductor()
