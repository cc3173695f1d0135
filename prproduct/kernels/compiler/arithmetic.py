"""Operations on the numbers of passes, as LLVM's instructions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from prproduct.kernels.compiler.numbers import BOOL, FLOATS, INT64, common, converted, integer, is_literal, type_of

_OF_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_OF_INTEGERS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_OF_LITERALS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_INTRINSICS: dict[Any, str] = {abs: "fabs", np.sqrt: "sqrt", np.exp: "exp", np.log: "log"}
_REASSOCIATED = ("reassoc", "nsz", "contract")


class Arithmetic:
    """With a builder that may be anywhere; with `reassociates`, sums may be taken in any order."""

    def __init__(self, builder: ir.IRBuilder, reassociates: bool) -> None:
        self.builder, self.flags = builder, _REASSOCIATED if reassociates else ()

    def alike(self, a: Any, b: Any) -> tuple[Any, Any, Any]:
        """The type of two numbers together, and both in it."""
        kind = common(a, b)
        kind = INT64 if kind == BOOL else kind
        return kind, converted(self.builder, a, kind), converted(self.builder, b, kind)

    def binary(self, sign: ast.operator, a: Any, b: Any) -> Any:
        if is_literal(a) and is_literal(b):
            return _OF_LITERALS[type(sign)](a, b)
        kind, a, b = self.alike(a, b)
        if kind in FLOATS and isinstance(sign, ast.Pow):
            return self.intrinsic("pow", a, b)
        instruction = (_OF_FLOATS if kind in FLOATS else _OF_INTEGERS).get(type(sign))
        if instruction is not None:
            return getattr(self.builder, instruction)(a, b, flags=self.flags if kind in FLOATS else ("nsw",))
        match sign:
            case ast.FloorDiv() if kind not in FLOATS:
                return self.divided(a, b)[0]
            case ast.Mod() if kind not in FLOATS:
                return self.divided(a, b)[1]
            case ast.LShift() if kind not in FLOATS:
                return self.builder.shl(a, b)
        raise TypeError(f"passes have no {type(sign).__name__} of {kind}")

    def divided(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Python's quotient and remainder, which has the sign of b."""
        quotient, remainder, zero = self.builder.sdiv(a, b), self.builder.srem(a, b), a.type(0)
        crosses = self.builder.icmp_signed("<", self.builder.xor(a, b), zero)
        short = self.builder.and_(crosses, self.builder.icmp_signed("!=", remainder, zero))
        quotient = self.builder.add(quotient, self.builder.sext(short, a.type))
        return quotient, self.builder.add(remainder, self.builder.select(short, b, zero))

    def unary(self, sign: ast.unaryop, value: Any) -> Any:
        match sign:
            case ast.Not():
                truth = self.truth(value)
                return not truth if isinstance(truth, bool) else self.builder.not_(truth)
            case ast.USub():
                if is_literal(value):
                    return -value
                if type_of(value) in FLOATS:
                    return self.builder.fneg(value, self.flags)
                return self.builder.neg(integer(self.builder, value))
            case ast.Invert():
                return ~value if is_literal(value) else self.builder.not_(integer(self.builder, value))
        raise TypeError(f"passes have no {type(sign).__name__}")

    def truth(self, value: Any) -> Any:
        """Whether it is not 0: a bool of Python's, if that is known already."""
        if is_literal(value):
            return bool(value)
        if type_of(value) not in (BOOL, INT64):
            raise TypeError(f"{type_of(value)} is no condition")
        return value if value.type == BOOL else self.builder.icmp_signed("!=", value, value.type(0))

    def compared(self, sign: ast.cmpop, a: Any, b: Any) -> Any:
        kind, a, b = self.alike(a, b)
        name = _COMPARISONS[type(sign)]
        if kind not in FLOATS:
            return self.builder.icmp_signed(name, a, b)
        compare = self.builder.fcmp_unordered if name == "!=" else self.builder.fcmp_ordered
        return compare(name, a, b, flags=self.flags)

    def known_function(self, function: Any, *numbers: Any) -> Any:
        """One of Python's or numpy's."""
        if function in (min, max):  # as Python has it: a NaN in front stays
            _, first, second = self.alike(*numbers)
            takes_second = self.compared(ast.Lt() if function is min else ast.Gt(), second, first)
            return self.builder.select(takes_second, second, first)
        if function is np.isfinite:
            return self.compared(ast.Lt(), self.intrinsic("fabs", *numbers), float("inf"))
        if function in _INTRINSICS:
            return self.intrinsic(_INTRINSICS[function], *numbers)
        raise TypeError(f"passes cannot call {getattr(function, '__name__', function)}")

    def intrinsic(self, name: str, *numbers: Any) -> Any:
        """A function that LLVM knows."""
        kind = type_of(numbers[0])
        if kind not in FLOATS:
            raise TypeError(f"{name} takes no {kind}")
        signature = ir.FunctionType(kind, [kind] * len(numbers))
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [kind], signature)
        return self.builder.call(function, numbers, fastmath=self.flags)
