"""Expressions in passes, as values of LLVM's; `translation.py` says what passes are written in."""

from __future__ import annotations

import ast
import builtins
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from prproduct.kernels.compiler.arithmetic import Arithmetic
from prproduct.kernels.compiler.numbers import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    Integers,
    as_type,
    common,
    converted,
    load,
    raw,
    raw_type,
    typed,
)
from prproduct.kernels.compiler.words import Part, Word

_NUMPY: dict[Any, Any] = {np.int32: INT32, np.int64: INT64, np.float32: FLOAT32, np.float64: FLOAT64}


class Variable(NamedTuple):
    """In memory, of which LLVM makes a register."""

    memory: Any
    type: Any


class Expressions(ABC):
    """In the body of a part, in which it knows variables by their names."""

    def __init__(self, part: Part, into: ir.Function) -> None:
        self.part, self.into, self.globals = part, into, part.function.__globals__
        self.variables: dict[str, Variable] = {}
        self.tuples: dict[str, Any] = {}  # names for values that are known by their parts
        self.declarations = ir.IRBuilder(self.block())
        self.builder = ir.IRBuilder(self.block())
        self.compute = Arithmetic(self.builder, part.reassociates)

    def block(self) -> ir.Block:
        return self.into.append_basic_block()

    @abstractmethod
    def call_part(self, part: Part, arguments: list[Any]) -> Any:
        """What it returns for these numbers and pointers."""

    def expression(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self.named(name)
            case ast.Attribute(value, name):
                return _of_numpy(getattr(self.expression(value), name))
            case ast.Tuple(parts):
                return tuple(self.expression(part) for part in parts)
            case ast.Subscript(value, index):
                return self.subscript(self.expression(value), index)
            case ast.BinOp(left, sign, right):
                return self.compute.binary(sign, self.expression(left), self.expression(right))
            case ast.UnaryOp(sign, operand):
                return self.compute.unary(sign, self.expression(operand))
            case ast.Compare(left, signs, rights):
                return self.comparisons(self.expression(left), signs, rights)
            case ast.BoolOp(sign, values):
                return self.together(isinstance(sign, ast.And), values)
            case ast.IfExp(test, first, second):
                condition = self.compute.truth(self.expression(test))
                return self.choice(condition, lambda: self.expression(first), lambda: self.expression(second))
            case ast.Call(_, _, [_, *_]):
                raise TypeError("passes call without keywords")
            case ast.Call(function, arguments):
                return self.call(self.expression(function), [self.expression(argument) for argument in arguments])
            case _:
                raise TypeError(f"passes have no {type(node).__name__}")

    def named(self, name: str) -> Any:
        if name in self.tuples:
            return self.tuples[name]
        if name in self.variables:
            memory, kind = self.variables[name]
            return as_type(kind, self.builder.load(memory, typ=raw_type(kind)))
        for names in (self.globals, vars(builtins)):
            if name in names:
                return _of_numpy(names[name])
        raise TypeError(f"{name} is not known here")

    def subscript(self, value: Any, index: ast.expr) -> Any:
        if isinstance(index, ast.Slice):
            if index.step is not None:
                raise TypeError("passes have no slices with steps")
            bounds = slice(*(None if bound is None else self.expression(bound) for bound in (index.lower, index.upper)))
            return value.some(self.builder, bounds) if isinstance(value, Integers) else value[bounds]
        place = self.expression(index)
        if isinstance(value, tuple):
            return value[place]
        return value.load(self.builder, place) if isinstance(value, Integers) else load(self.builder, value, place)

    def comparisons(self, left: Any, signs: Sequence[ast.cmpop], rights: Sequence[ast.expr]) -> Any:
        right = self.expression(rights[0])
        holds = self.compute.compared(signs[0], left, right)
        if len(rights) == 1:
            return holds
        return self.choice(holds, lambda: self.comparisons(right, signs[1:], rights[1:]), lambda: False)

    def together(self, all_of: bool, nodes: Sequence[ast.expr]) -> Any:
        """`and` or `or`: what comes behind what decides it is not looked at."""
        first, *rest = nodes
        truth = self.compute.truth(self.expression(first))
        if not rest:
            return truth
        further = functools.partial(self.together, all_of, rest)
        return self.choice(truth, further, lambda: False) if all_of else self.choice(truth, lambda: True, further)

    def choice(self, condition: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """One of two values or tuples, of which only that one is computed."""
        if isinstance(condition, bool):
            return first() if condition else second()
        begins, end = (self.block(), self.block()), self.block()
        self.builder.cbranch(condition, *begins)
        choices, tuples = [], set()
        for begin, choose in zip(begins, (first, second), strict=True):
            self.builder.position_at_end(begin)
            value = choose()
            tuples.add(isinstance(value, tuple))
            choices.append((value if isinstance(value, tuple) else (value,), self.builder.block))
        if len(tuples) > 1:
            raise TypeError("a choice between a tuple and none")
        types = [common(a, b) for a, b in zip(choices[0][0], choices[1][0], strict=True)]
        incoming = []
        for values, block in choices:
            self.builder.position_at_end(block)
            incoming.append(
                [raw(converted(self.builder, number, kind)) for number, kind in zip(values, types, strict=True)]
            )
            self.builder.branch(end)
        self.builder.position_at_end(end)
        results = []
        for kind, *sources in zip(types, *incoming, strict=True):
            phi = self.builder.phi(raw_type(kind))
            for number, (_, block) in zip(sources, choices, strict=True):
                phi.add_incoming(number, block)
            results.append(as_type(kind, phi))
        return tuple(results) if True in tuples else results[0]

    def call(self, function: Any, arguments: list[Any]) -> Any:
        if isinstance(function, Word):
            return function.emit(self.builder, *map(typed, arguments))
        if isinstance(function, Part):
            return self.call_part(function, [typed(argument) for argument in arguments])
        if function in _NUMPY:
            (number,) = arguments
            return _of_numpy(function(number))
        return self.compute.known_function(function, *arguments)


def _of_numpy(value: Any) -> Any:
    """A number of numpy's has a type already."""
    return ir.Constant(_NUMPY[type(value)], value.item()) if isinstance(value, np.generic) else value
