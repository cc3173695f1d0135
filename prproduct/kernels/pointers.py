"""Compiled functions that take memory by its address, and one way to call them all.

A pass does a part of a range, on one thread; what it needs beside are integers, most of them addresses, behind one
address of their own:

    pass(first, last, share, given)

So Python calls a pass as it calls C, for 2 µs instead of the 5 to 10 that Numba takes to unpack two dozen arguments,
and one small function runs any pass on a team of OpenMP's threads: a pass is compiled once. (An array would cost 4 µs
for each of a backward's dozen tensors, and a second more to compile.)

Numbers at an address are reached through `at`, which Numba types by one of them: float32 or float64.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import numba
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
        self.pack = struct.Struct(f"{arguments[-1].count}q").pack


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
rounded_to: Any = intrinsic(_rounded_to)


def _ask(typing_context: Any, address: Any) -> Any:
    """What the function at an address returns, an int of C's."""

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


def _share(team: Any) -> None:
    """What each thread of a team runs. The team may be smaller than was asked for."""
    number, count, kernel, first, last = integers(team)
    me, threads, size = ask(number), ask(count), last - first
    call(kernel, first + size * me // threads, first + size * (me + 1) // threads, me, behind(team))


@functools.cache
def share_of_team() -> Entry:
    """What a team runs, for any pass: it is given whom to ask for the thread's number and count, pass and range."""
    return Entry(_share, Given(types.int64, 5))
