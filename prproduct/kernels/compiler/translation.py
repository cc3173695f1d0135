"""Passes, which are written in a small part of Python, as LLVM's intermediate code.

That part has numbers, pointers and tuples; assignments, `if`, `for` over a range of positive steps, `continue`,
`break` and `return`; arithmetic, comparisons and conditional expressions; and calls of words (`words.py`), of parts and
of a few functions of Python and numpy (`arithmetic.py`). All types follow from the arguments, by three rules: a
variable keeps the type of what it got first, a literal takes the type of the number that it meets, and nothing is
rounded unless it is stored behind a pointer or `rounded_to` says so. (A literal that is assigned or returned has met
none: it is an int64 or a float64.) What breaks them is refused, with its place in the source. Not refused, but not
Python's either: `and` and `or` give a bool, and a variable that was not assigned is anything.

Numba knows far more of Python, and takes 4 to 7 s for the passes of a first backward; this takes about one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from prproduct.kernels.compiler.expressions import Expressions, Variable
from prproduct.kernels.compiler.numbers import (
    ADDRESS,
    INT64,
    Given,
    Integers,
    as_type,
    converted,
    fits,
    integer,
    is_literal,
    load,
    raw,
    raw_type,
    store,
    type_of,
    typed,
)
from prproduct.kernels.compiler.words import Part


class TranslationError(TypeError):
    """What passes cannot be written in."""


def translate(function: Callable[..., Any], name: str, integers: int, one: Any, ranges: bool = True) -> str:
    """The code of a C function of a range, a share and the address of so many integers; or of that address alone.

    `one` is the type of the numbers it works on.
    """
    types = [*[INT64] * (3 if ranges else 0), ADDRESS]
    into = ir.Function(ir.Module(name), ir.FunctionType(ir.VoidType(), types), name)
    *numbers, address = into.args
    _Translator(Part(function), into, [*numbers, Given(address, integers, one)], {})
    return str(into.module)


@functools.cache
def _source(function: Callable[..., Any]) -> ast.FunctionDef:
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    ast.increment_lineno(tree, first - 1)
    place = f"{inspect.getsourcefile(function)}:{first}"
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        raise TranslationError(f"{place}: not the source of {function.__name__}; has it changed since it was imported?")
    plain = ast.arguments(posonlyargs=[], args=tree.args.args, kwonlyargs=[], kw_defaults=[], defaults=[])
    if ast.dump(tree.args) != ast.dump(plain):
        raise TranslationError(f"{place}: {tree.name} may have plain arguments only")
    return tree


class _Translator(Expressions):
    """Of one function, for arguments of given types."""

    def __init__(self, part: Part, into: ir.Function, arguments: Sequence[Any], parts: dict[Any, Any]) -> None:
        super().__init__(part, into)
        self.parts = parts
        self.loops: list[tuple[ir.Block, ir.Block]] = []  # where to continue, and where to go on behind
        self.returned: Any = None  # its type
        source, body = _source(part.function), self.builder.block
        for argument, value in zip(source.args.args, arguments, strict=True):
            self.assign(ast.Name(argument.arg), value)
        self.statements(source.body)
        if not self.builder.block.is_terminated:
            if self.returned is not None:
                raise self.refusal(source.body[-1], f"{part.__name__} has to end with what it returns")
            self.builder.ret_void()
        self.declarations.branch(body)

    def refusal(self, node: ast.stmt, why: object) -> TranslationError:
        return TranslationError(f"{inspect.getsourcefile(self.part.function)}:{node.lineno}: {why}")

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            if self.builder.block.is_terminated:
                return
            try:
                self.statement(node)
            except TranslationError:
                raise
            except Exception as error:  # whatever the translation of a statement stumbled over
                raise self.refusal(node, error) from error

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets, value):
                result = self.expression(value)
                for target in targets:
                    self.assign(target, result)
            case ast.AugAssign(ast.Subscript(memory, index), sign, value):
                pointer, place = self.expression(memory), self.expression(index)
                before = load(self.builder, pointer, place)
                store(self.builder, self.compute.binary(sign, before, self.expression(value)), pointer, place)
            case ast.AugAssign(ast.Name(name) as target, sign, value):
                self.assign(target, self.compute.binary(sign, self.named(name), self.expression(value)))
            case ast.Pass():
                pass
            case ast.Expr(value):
                self.expression(value)
            case ast.If(test, body, otherwise):
                self.either(test, body, otherwise)
            case ast.For(target, ast.Call(ast.Name("range"), bounds), body, []):
                self.loop(target, [self.expression(bound) for bound in bounds], body)
            case ast.Continue():
                self.builder.branch(self.loops[-1][0])
            case ast.Break():
                self.builder.branch(self.loops[-1][1])
            case ast.Return(value):
                self.give_back(None if value is None else self.expression(value))
            case _:
                raise TypeError(f"passes have no {type(node).__name__}")

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Tuple(targets):
                for each, number in zip(targets, self.unpacked(value), strict=True):
                    self.assign(each, number)
            case ast.Subscript(memory, index):
                store(self.builder, value, self.expression(memory), self.expression(index))
            case ast.Name("_"):
                pass
            case ast.Name(name) if name in self.tuples:
                raise TypeError(f"{name} is a tuple, and stays as it is")
            case ast.Name(name) if isinstance(value, tuple | Integers | Given) and name not in self.variables:
                self.tuples[name] = value
            case ast.Name(name):
                if name not in self.variables:
                    kind = type_of(typed(value))
                    self.variables[name] = Variable(self.declarations.alloca(raw_type(kind), name=name), kind)
                memory, kind = self.variables[name]
                if not fits(value, kind):
                    raise TypeError(f"{name} was {kind}, and cannot become {type_of(typed(value))}")
                self.builder.store(raw(converted(self.builder, value, kind)), memory)
            case _:
                raise TypeError(f"{ast.unparse(target)} cannot become this")

    def unpacked(self, value: Any) -> Sequence[Any]:
        if isinstance(value, Integers):
            return [value.load(self.builder, k) for k in range(value.count)]
        if not isinstance(value, tuple):
            raise TypeError("neither a tuple nor integers")
        return value

    def either(self, test: ast.expr, body: Sequence[ast.stmt], otherwise: Sequence[ast.stmt]) -> None:
        condition = self.compute.truth(self.expression(test))
        if isinstance(condition, bool):
            self.statements(body if condition else otherwise)
            return
        first, second, end = self.block(), self.block(), self.block()
        self.builder.cbranch(condition, first, second)
        reached = False
        for block, statements in ((first, body), (second, otherwise)):
            self.builder.position_at_end(block)
            self.statements(statements)
            reached |= not self.builder.block.is_terminated
            self.leave_for(end)
        self.builder.position_at_end(end)
        if not reached:
            self.builder.unreachable()

    def loop(self, target: ast.expr, bounds: Sequence[Any], body: Sequence[ast.stmt]) -> None:
        start, stop, step = ((0, *bounds, 1), (*bounds, 1), bounds)[len(bounds) - 1]
        if is_literal(step) and step <= 0:
            raise TypeError("passes have no range that goes down")
        start, stop, step = (integer(self.builder, bound) for bound in (start, stop, step))
        before, head, inside, latch, end = self.builder.block, self.block(), self.block(), self.block(), self.block()
        self.builder.branch(head)
        self.builder.position_at_end(head)
        place = self.builder.phi(INT64)
        place.add_incoming(start, before)
        self.builder.cbranch(self.builder.icmp_signed("<", place, stop), inside, end)
        self.builder.position_at_end(inside)
        self.assign(target, place)
        self.loops.append((latch, end))
        self.statements(body)
        self.loops.pop()
        self.leave_for(latch)
        self.builder.position_at_end(latch)
        place.add_incoming(self.builder.add(place, step, flags=("nsw",)), latch)
        self.builder.branch(head)
        self.builder.position_at_end(end)

    def give_back(self, value: Any) -> None:
        if value is None and isinstance(self.into.ftype.return_type, ir.VoidType):
            self.builder.ret_void()
            return
        result = tuple(map(typed, value)) if isinstance(value, tuple) else typed(value)
        if self.returned not in (None, type_of(result)):
            raise TypeError(f"{self.part.__name__} returned {self.returned} before")
        self.returned = type_of(result)
        if isinstance(self.into.ftype.return_type, ir.VoidType):
            self.builder.ret_void()
        elif isinstance(result, tuple):
            packed = ir.Constant(raw_type(self.returned), ir.Undefined)
            for place, number in enumerate(result):
                packed = self.builder.insert_value(packed, raw(number), place)
            self.builder.ret(packed)
        else:
            self.builder.ret(raw(result))

    def leave_for(self, block: ir.Block) -> None:
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def call_part(self, part: Part, arguments: list[Any]) -> Any:
        key = part, type_of(tuple(arguments))
        if key not in self.parts:
            self.parts[key] = None
            function, returned = self.function_of(*key, None)
            if returned is not None:  # the first translation has told its type; LLVM drops it
                function, _ = self.function_of(*key, returned)
            self.parts[key] = function, returned
        if self.parts[key] is None:
            raise TypeError(f"{part.__name__} calls itself")
        function, returned = self.parts[key]
        result = self.builder.call(function, [raw(argument) for argument in arguments])
        if isinstance(returned, tuple):
            return tuple(as_type(kind, self.builder.extract_value(result, k)) for k, kind in enumerate(returned))
        return None if returned is None else as_type(returned, result)

    def function_of(self, part: Part, types: tuple[Any, ...], returned: Any) -> tuple[ir.Function, Any]:
        """A part for such arguments, and what it returns. By itself: there LLVM vectorizes loops, and not in others."""
        module, result = self.builder.module, ir.VoidType() if returned is None else raw_type(returned)
        signature = ir.FunctionType(result, [raw_type(kind) for kind in types])
        into = ir.Function(module, signature, module.get_unique_name(part.__name__))
        into.linkage = "internal"
        into.attributes.add("alwaysinline" if part.inlined else "noinline")
        for argument in into.args:
            if part.apart and argument.type == ADDRESS:
                argument.add_attribute("noalias")
        arguments = [as_type(kind, argument) for kind, argument in zip(types, into.args, strict=True)]
        return into, _Translator(part, into, arguments, self.parts).returned
