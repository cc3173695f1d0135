"""Words that passes are written with, for what Python has no word for, and what each of them means to LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from prproduct.kernels.compiler.numbers import (
    ADDRESS,
    BYTES,
    INT32,
    INT64,
    Given,
    Integers,
    Pointer,
    converted,
    integer,
    load,
    place_of,
)


class Word:
    """A function that passes call, by what it emits."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self.emit, self.__doc__, self.__name__ = emit, emit.__doc__, emit.__name__

    def __call__(self, *arguments: Any) -> Any:
        """For those who read: passes are never run by Python."""
        raise TypeError(f"{self.__name__} means something in compiled passes only")


@Word
def integers(builder: ir.IRBuilder, given: Given) -> Integers:
    """All that a pass is given."""
    return Integers(given.value, given.count)


@Word
def one_of(builder: ir.IRBuilder, given: Given) -> Any:
    """The number one in the type that the pass works on."""
    return ir.Constant(given.one, 1.0)


@Word
def behind(builder: ir.IRBuilder, given: Given) -> Any:
    """The address behind its integers."""
    return builder.add(builder.ptrtoint(given.value, INT64), INT64(8 * given.count))


@Word
def at(builder: ir.IRBuilder, memory: Any, place: Any, one: Any) -> Pointer:
    """A pointer to the place-th of the numbers behind an address or a pointer; they are of one's type."""
    start = memory.value if isinstance(memory, Pointer) else builder.inttoptr(integer(builder, memory), ADDRESS)
    return Pointer(place_of(builder, Pointer(start, one.type), place), one.type)


@Word
def each(builder: ir.IRBuilder, value: Any, k: Any) -> Any:
    """The kth behind a pointer, or the one number that holds for all of a strip."""
    return load(builder, value, k) if isinstance(value, Pointer) else value


@Word
def rounded_to(builder: ir.IRBuilder, one: Any, value: Any) -> Any:
    """A number in the type of one."""
    return converted(builder, value, one.type)


@Word
def fill_eight(builder: ir.IRBuilder, pointer: Pointer, value: Any) -> None:
    """The same number to eight places: loops of so few take longer than all else that is done with them."""
    if value.type != pointer.element:
        raise TypeError(f"{value.type} behind a pointer to {pointer.element}")
    filled = ir.Constant(ir.VectorType(value.type, 8), ir.Undefined)
    for k in range(8):
        filled = builder.insert_element(filled, value, INT32(k))
    builder.store(filled, pointer.value, align=BYTES[value.type])


@Word
def copy_eight(builder: ir.IRBuilder, target: Pointer, source: Pointer) -> None:
    """Eight numbers from one place to another, for the same reason."""
    if source.element != target.element:
        raise TypeError(f"{source.element} behind a pointer to {target.element}")
    align = BYTES[source.element]
    eight = builder.load(source.value, typ=ir.VectorType(source.element, 8), align=align)
    builder.store(eight, target.value, align=align)


@Word
def transpose_square(
    builder: ir.IRBuilder, size: Any, source: Pointer, source_step: Any, target: Pointer, target_step: Any
) -> None:
    """So many rows of as many numbers, a power of two, which become columns; steps go from row to row.

    Rows are paired with their neighbours and exchange every other number, then with those two further on and exchange
    every other two, and so on.
    """
    if source.element != target.element:
        raise TypeError(f"{source.element} behind a pointer to {target.element}")
    count, align = size.constant, BYTES[source.element]

    def row(pointer: Pointer, step: Any, k: int) -> Any:
        return place_of(builder, pointer, builder.mul(integer(builder, step), INT64(k)))

    of_rows, of_places = ir.VectorType(source.element, count), ir.VectorType(INT32, count)
    rows = [builder.load(row(source, source_step, k), typ=of_rows, align=align) for k in range(count)]
    run = 1
    while run < count:
        for upper in (k for k in range(count) if not k & run):
            pair = rows[upper], rows[upper + run]
            for lower in (0, 1):
                places = [(k & ~run) + run * lower + (count if k & run else 0) for k in range(count)]
                rows[upper + run * lower] = builder.shuffle_vector(
                    *pair, ir.Constant(of_places, list(map(INT32, places)))
                )
        run *= 2
    for k in range(count):
        builder.store(rows[k], row(target, target_step, k), align=align)


@Word
def room(builder: ir.IRBuilder, count: Any) -> Pointer:
    """Memory for so many integers, until the function returns."""
    return Pointer(builder.alloca(INT64, count), INT64)


@Word
def ask(builder: ir.IRBuilder, address: Any) -> Any:
    """Call the function at an address, which takes nothing and returns an int of C's (or nothing: then do not look)."""
    return builder.sext(_called(builder, address, INT32, []), INT64)


@Word
def call(builder: ir.IRBuilder, address: Any, first: Any, last: Any, share: Any, given: Any) -> None:
    """Run the pass at an address; a pointer may stand for its share, and for the address of its integers."""
    numbers = (first, last, share, given)
    integers = [builder.ptrtoint(n.value, INT64) if isinstance(n, Pointer) else n for n in numbers]
    _called(builder, address, ir.VoidType(), integers)


@Word
def multiply(
    builder: ir.IRBuilder,
    gemm: Any,
    rows: Any,
    columns: Any,
    inner: Any,
    a: Pointer,
    a_step: Any,
    a_across: Any,
    b: Pointer,
    b_step: Any,
    b_across: Any,
    c: Pointer,
    c_step: Any,
    adds: Any,
) -> None:
    """C = A·B, or C += A·B, by BLAS's gemm at an address, with steps from row to row; A and B may be stored across.

    BLAS goes by columns, and so computes Cᵀ = Bᵀ·Aᵀ. It takes all by address: integers of 32 bits, or of 64, are read
    off the same place.
    """
    one, zero = ir.Constant(c.element, 1.0), ir.Constant(c.element, 0.0)
    counts = [_kept(builder, integer(builder, n)) for n in (columns, rows, inner, b_step, a_step, c_step)]
    m, n, k, b_leads, a_leads, c_leads = counts
    how = [_kept(builder, builder.select(_is_true(builder, across), _T, _N)) for across in (b_across, a_across)]
    before = _kept(builder, builder.select(_is_true(builder, adds), one, zero))
    matrices = (b.value, b_leads, a.value, a_leads, before, c.value, c_leads)
    _called(builder, gemm, ir.VoidType(), [*how, m, n, k, _kept(builder, one), *matrices])


def _is_true(builder: ir.IRBuilder, number: Any) -> Any:
    return builder.icmp_signed("!=", integer(builder, number), INT64(0))


_N, _T = ir.IntType(8)(ord("N")), ir.IntType(8)(ord("T"))


def _kept(builder: ir.IRBuilder, value: Any) -> Any:
    """Where a value is, until the function returns."""
    place = builder.alloca(value.type)
    builder.store(value, place)
    return place


def _called(builder: ir.IRBuilder, address: Any, result: Any, arguments: list[Any]) -> Any:
    function = ir.FunctionType(result, [value.type for value in arguments])
    return builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


class Part:
    """A function for use by passes.

    With `reassociates`, its sums may be taken in any order: several side by side, NaN and Inf as ever. With `apart`,
    whatever it writes to lies apart from all else that it is given, and loops need not look. With `inlined`, it is not
    called but written out: that is for what has many arguments and only calls others.
    """

    def __init__(
        self, function: Callable[..., Any], reassociates: bool = False, apart: bool = False, inlined: bool = False
    ) -> None:
        self.function, self.reassociates, self.apart, self.inlined = function, reassociates, apart, inlined
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        """As with words."""
        raise TypeError(f"{self.__name__} is a part of compiled passes")


def part_of_pass(
    *, reassociates: bool = False, apart: bool = False, inlined: bool = False
) -> Callable[[Callable[..., Any]], Part]:
    """Decorates a function that passes call; compiled for the types of each call."""
    return lambda function: Part(function, reassociates, apart, inlined)
