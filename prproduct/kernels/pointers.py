"""Numba functions that take memory by its address.

An array would cost some 4 µs to wrap for each of a backward's dozen tensors, and a second more to compile; an address
costs nothing. Numbers at an address are reached through `at`, which Numba types by one of them: float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
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


_teams: dict[Any, Callable[..., Any]] = {}


def team_of(kernel: Callable[..., Any]) -> Callable[..., Any] | None:
    """What runs a pass on a team of OpenMP's threads, if it has such a thing."""
    return _teams.get(kernel)


def team_pass(kernel: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function of (openmp, threads, first, last, arguments) that calls `in_team` for this pass."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _teams[kernel] = compiled_pass(function)
        return _teams[kernel]

    return register


def _in_team(typing_context: Any, openmp: Any, kernel: Any, threads: Any, first: Any, last: Any, arguments: Any) -> Any:
    """Run a pass in equal shares of its range on a team of OpenMP's threads.

    `openmp` holds three addresses: of GOMP_parallel, omp_get_thread_num and omp_get_num_threads. The team may be
    smaller than was asked for. What each thread of it runs is a function built here: it asks for its number, computes
    its share, and calls the pass.
    """
    number = types.int64
    called = kernel.get_call_type(typing_context, (number, number, number, *arguments.types), {})

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        parallel, *ask = cgutils.unpack_tuple(builder, values[0])
        team, shared = values[2], values[3:]
        i32, i64, nothing, pointer = ir.IntType(32), ir.IntType(64), ir.VoidType(), cgutils.voidptr_t
        struct = cgutils.pack_struct(builder, [*ask, *shared])
        memory = cgutils.alloca_once_value(builder, struct)
        share = ir.Function(builder.module, ir.FunctionType(nothing, [pointer]), f"{builder.function.name}.share")
        share.linkage = "internal"
        inside = ir.IRBuilder(share.append_basic_block())
        loaded = inside.load(inside.bitcast(share.args[0], struct.type.as_pointer()))
        *ask, first, last, packed = (inside.extract_value(loaded, index) for index in range(len(struct.type)))
        question = ir.FunctionType(i32, []).as_pointer()
        me, threads = (inside.zext(inside.call(inside.inttoptr(f, question), []), i64) for f in ask)
        count = inside.sub(last, first)
        bounds = [inside.add(first, inside.sdiv(inside.mul(count, k), threads)) for k in (me, inside.add(me, i64(1)))]
        compiled = kernel.dispatcher.get_compile_result(called)
        context.active_code_library.add_linking_library(compiled.library)
        function = context.declare_function(builder.module, compiled.fndesc)
        handed = [*bounds, me, *cgutils.unpack_tuple(inside, packed)]
        context.call_conv.call_function(inside, function, compiled.fndesc.restype, compiled.fndesc.argtypes, handed)
        inside.ret_void()
        runs = ir.FunctionType(nothing, [share.type, pointer, i32, i32]).as_pointer()
        start = [share, builder.bitcast(memory, pointer), builder.trunc(team, i32), i32(0)]
        builder.call(builder.inttoptr(parallel, runs), start)
        return context.get_dummy_value()

    return types.void(types.UniTuple(number, 3), kernel, number, number, number, arguments), generate


in_team: Any = intrinsic(_in_team)
