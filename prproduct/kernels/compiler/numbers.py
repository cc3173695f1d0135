"""The numbers and pointers of compiled passes, and how one becomes another.

A number is a value of LLVM's, of one of the types below, or a literal of Python's that has not met one yet.

    bool        of a comparison; an int64 in arithmetic
    int64       every integer; int32 is one behind a pointer, and is widened when it is read
    float32     what a pass works on, or float64
    float64     sums
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

BOOL, INT32, INT64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
FLOAT32, FLOAT64 = ir.FloatType(), ir.DoubleType()
FLOATS = (FLOAT32, FLOAT64)
ADDRESS = ir.PointerType()
BYTES = {INT32: 4, INT64: 8, FLOAT32: 4, FLOAT64: 8}
_WIDER = {(BOOL, INT64), (BOOL, FLOAT64), (INT64, FLOAT64), (FLOAT32, FLOAT64)}


@dataclass(frozen=True)
class PointerTo:
    """The type of a pointer."""

    element: Any


@dataclass(frozen=True)
class Pointer:
    """To numbers of one type."""

    value: Any
    element: Any


@dataclass(frozen=True)
class Given:
    """Where the integers of a pass are, how many, and of what type the numbers are that it works on."""

    value: Any
    count: int
    one: Any


@dataclass(frozen=True)
class Integers:
    """Some of the integers of a pass."""

    value: Any
    count: int

    def load(self, builder: ir.IRBuilder, place: Any) -> Any:
        """One of them. Nobody changes them while the pass runs, so LLVM may read them when it likes."""
        if is_literal(place):
            place = range(self.count)[place]
        number = load(builder, Pointer(self.value, INT64), place)
        number.set_metadata("invariant.load", builder.module.add_metadata([]))
        return number

    def some(self, builder: ir.IRBuilder, which: slice) -> Integers:
        """A slice of them."""
        chosen = range(self.count)[which]
        return Integers(place_of(builder, Pointer(self.value, INT64), chosen.start), len(chosen))


def is_literal(value: Any) -> bool:
    """A number of Python's."""
    return isinstance(value, bool | int | float)


def typed(value: Any) -> Any:
    """A literal as a number of its own type; all else as it is."""
    if not is_literal(value):
        return value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TypeError(f"{value} is no int64")
    return ir.Constant(BOOL if isinstance(value, bool) else INT64 if isinstance(value, int) else FLOAT64, value)


def type_of(value: Any) -> Any:
    """Of a number, a pointer, or a tuple of them."""
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    if isinstance(value, Pointer):
        return PointerTo(value.element)
    if isinstance(value, ir.Value):
        return value.type
    raise TypeError(f"neither a number nor a pointer: {value}")


def fits(value: Any, type: Any) -> bool:
    """Whether a number can become one of this type: a wider one, or for a literal that of any float."""
    if is_literal(value):
        return type in FLOATS or (isinstance(value, int) and type == INT64) or typed(value).type == type
    return type_of(value) == type or (type_of(value), type) in _WIDER


def common(a: Any, b: Any) -> Any:
    """The type that two numbers have together: that of a literal only if it has to be."""
    own = [type_of(typed(value)) for value in sorted((a, b), key=is_literal)]
    for type in own:
        if fits(a, type) and fits(b, type):
            return type
    raise TypeError(f"{own[0]} and {own[1]} do not go together")


def converted(builder: ir.IRBuilder, value: Any, type: Any) -> Any:
    """A number in another type."""
    if is_literal(value):
        number = typed(value)  # checks its range
        return number if number.type == type else ir.Constant(type, float(value) if type in FLOATS else int(value))
    own = type_of(value)
    if own == type:
        return value
    if own == BOOL:
        return converted(builder, builder.zext(value, INT64), type)
    match own in FLOATS, type in FLOATS:
        case True, True:
            return builder.fpext(value, type) if type == FLOAT64 else builder.fptrunc(value, type)
        case False, True if own == INT64:
            return builder.sitofp(value, type)
        case False, False if (own, type) == (INT64, INT32):
            return builder.trunc(value, type)
    raise TypeError(f"{own} cannot become {type}")


def place_of(builder: ir.IRBuilder, pointer: Pointer, place: Any) -> Any:
    """The address of the place-th number."""
    if not isinstance(pointer, Pointer):
        raise TypeError("only a pointer has numbers")
    return builder.gep(pointer.value, [integer(builder, place)], source_etype=pointer.element)


def integer(builder: ir.IRBuilder, value: Any) -> Any:
    """An int64."""
    if not fits(value, INT64):
        raise TypeError(f"{type_of(typed(value))} is no integer")
    return converted(builder, value, INT64)


def load(builder: ir.IRBuilder, pointer: Pointer, place: Any) -> Any:
    """The place-th number."""
    number = builder.load(place_of(builder, pointer, place), typ=pointer.element, align=BYTES[pointer.element])
    return builder.sext(number, INT64) if pointer.element == INT32 else number


def store(builder: ir.IRBuilder, value: Any, pointer: Pointer, place: Any) -> None:
    """To the place-th number, rounded if need be."""
    number = converted(builder, value, pointer.element)
    builder.store(number, place_of(builder, pointer, place), align=BYTES[pointer.element])


# LLVM's own pointers do not say to what.


def raw(value: Any) -> Any:
    """As LLVM has it."""
    return value.value if isinstance(value, Pointer) else value


def raw_type(type: Any) -> Any:
    """As LLVM has it; a tuple is a struct."""
    if isinstance(type, tuple):
        return ir.LiteralStructType([raw_type(part) for part in type])
    return ADDRESS if isinstance(type, PointerTo) else type


def as_type(type: Any, value: Any) -> Any:
    """Back from LLVM's."""
    return Pointer(value, type.element) if isinstance(type, PointerTo) else value
