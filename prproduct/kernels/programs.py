"""A product's rule as a list of elementary operations, for the compiled kernel to perform.

`products.py` writes each rule once, in tensor arithmetic. Here that very code is run on symbols in place of tensors
(torch.fx), and the operations it performs are noted; `passes.py` then performs them on strips of pairs that fit into
the cache. So every product, also a user's own, runs in one compiled kernel, and nothing is compiled for it.

A rule that does more than this (a sum over pairs, a branch on values, an operation not listed below) has no program,
and plain torch computes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from prproduct.products import Gains, Pair, Product

# The codes of `passes._perform`.
ADD, SUB, MUL, DIV, POW, MIN, MAX, GREATER, WHERE, ABS, SQRT, EXP, LOG = range(13)

# What a rule may know of a pair lies in the first registers; constants and results follow.
INPUTS = ("cos", "inverse_sin", "sin", "weight_norm", "input_norm")
COS, INVERSE_SIN, SIN, WEIGHT_NORM, INPUT_NORM = range(5)


@dataclass(frozen=True)
class Half:
    """Where to find the gains of ∂/∂w, or of ∂/∂x."""

    length: int  # registers
    direction: int
    turn: float | None  # D, where it is one number for all pairs
    has_sums: bool  # whether L and D differ, so that there is a correction along the vector

    @property
    def writes(self) -> bool:
        """Whether D∘g is neither g nor zero."""
        return self.turn not in (0.0, 1.0)


@dataclass(frozen=True)
class Program:
    """Operations on registers, each a strip of numbers."""

    steps: np.ndarray[Any, Any]  # (operations, 5): code, result, and up to three operands
    constants: np.ndarray[Any, Any]  # one a register; 0 for those that are filled or computed
    asks_for_sin: bool
    asks_for_norms: bool
    weight: Half
    input: Half
    same: bool  # whether both halves are one


def program_of(product: Product) -> Program | None:
    """The program of a product's rule; None if the rule cannot be one."""
    parameters = getattr(product, "__dataclass_params__", None)
    # Any other object may be changed by its owner between two calls.
    return _remembered(product) if parameters is not None and parameters.frozen else _trace(product)


class _UnwritableError(Exception):
    """The rule does what no program can."""


class _SymbolicPair(Pair):
    sin: Any = None  # a symbol too, in place of the property


def _trace(product: Product) -> Program | None:
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    symbols: dict[str, Any] = {name: fx.Proxy(graph.placeholder(name), tracer) for name in INPUTS}
    sin = symbols.pop("sin")
    pair = _SymbolicPair(**symbols)
    object.__setattr__(pair, "sin", sin)
    try:
        weight_gains = product.gains(pair)
        return _Writer().write(weight_gains, product.input_gains(pair, weight_gains))
    except (_UnwritableError, fx.proxy.TraceError, TypeError, ValueError, AttributeError, NotImplementedError):
        return None


_remembered = functools.lru_cache(maxsize=256)(_trace)


class _Writer:
    """Turns the symbols that a rule returns into steps, one register a value."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, ...]] = []
        self.constants: list[float] = [0.0] * len(INPUTS)
        self.written: dict[fx.Node | float, int] = {}

    def write(self, weight_gains: Gains, input_gains: Gains) -> Program:
        weight = self._half(*weight_gains)
        same = input_gains is weight_gains
        input = weight if same else self._half(*input_gains)
        read = {operand for step in self.steps for operand in step[2:]}
        read |= {weight.length, weight.direction, input.length, input.direction}
        return Program(
            np.array([(*step, 0, 0)[:5] for step in self.steps], dtype=np.int64).reshape(-1, 5),
            np.array(self.constants),
            asks_for_sin=SIN in read,
            asks_for_norms=not read.isdisjoint({WEIGHT_NORM, INPUT_NORM}),
            weight=weight,
            input=input,
            same=same,
        )

    def _half(self, length: Any, direction: Any) -> Half:
        registers = self._gain(length), self._gain(direction)
        turn = None if isinstance(direction, fx.Proxy) else float(direction)
        return Half(*registers, turn, has_sums=registers[0] != registers[1])

    def _gain(self, gain: Any) -> int:
        if isinstance(gain, fx.Proxy):
            if not _depends_on_the_angle(gain.node):
                raise _UnwritableError  # its shape is a norm's, which plain torch refuses
            gain = gain.node
        return self.register(gain)

    def register(self, value: Any) -> int:
        """The register that holds a node's value or a number, once the steps so far have been performed."""
        if not isinstance(value, (fx.Node, int, float)):
            raise _UnwritableError
        if value not in self.written:
            self.written[value] = self._compute(value) if isinstance(value, fx.Node) else self._new(float(value))
        return self.written[value]

    def step(self, code: int, *operands: Any) -> int:
        """One more operation; the register of its result."""
        read = [operand if isinstance(operand, _Register) else self.register(operand) for operand in operands]
        self.steps.append((code, self._new(0.0), *read))
        return _Register(self.steps[-1][1])

    def _compute(self, node: fx.Node) -> int:
        if node.op == "placeholder":
            return INPUTS.index(str(node.target))
        name = node.target if isinstance(node.target, str) else node.target.__name__
        if name not in _WRITE:
            raise _UnwritableError
        return _WRITE[name](self, *node.args, **node.kwargs)

    def _new(self, constant: float) -> int:
        self.constants.append(constant)
        return len(self.constants) - 1


class _Register(int):
    """A register, as distinct from a number."""


def _depends_on_the_angle(node: fx.Node) -> bool:
    if node.op == "placeholder":
        return node.target in ("cos", "inverse_sin", "sin")
    return any(_depends_on_the_angle(operand) for operand in node.all_input_nodes)


def _clamp(writer: _Writer, x: Any, min: Any = None, max: Any = None) -> int:
    if min is not None:
        x = writer.step(MAX, x, min)
    return writer.step(MIN, x, max) if max is not None else x


def _power(writer: _Writer, x: Any, power: Any) -> int:
    if power == 0.5:
        return writer.step(SQRT, x)
    return writer.step(MUL, x, x) if power == 2.0 else writer.step(POW, x, power)


# By the names that operators, torch functions and tensor methods share.
_WRITE: dict[str, Callable[..., int]] = {
    "add": lambda writer, a, b: writer.step(ADD, a, b),
    "sub": lambda writer, a, b: writer.step(SUB, a, b),
    "mul": lambda writer, a, b: writer.step(MUL, a, b),
    "truediv": lambda writer, a, b: writer.step(DIV, a, b),
    "div": lambda writer, a, b: writer.step(DIV, a, b),
    "pow": _power,
    "neg": lambda writer, a: writer.step(SUB, 0.0, a),
    "abs": lambda writer, a: writer.step(ABS, a),
    "sqrt": lambda writer, a: writer.step(SQRT, a),
    "rsqrt": lambda writer, a: writer.step(DIV, 1.0, writer.step(SQRT, a)),
    "reciprocal": lambda writer, a: writer.step(DIV, 1.0, a),
    "square": lambda writer, a: writer.step(MUL, a, a),
    "exp": lambda writer, a: writer.step(EXP, a),
    "log": lambda writer, a: writer.step(LOG, a),
    "minimum": lambda writer, a, b: writer.step(MIN, a, b),
    "maximum": lambda writer, a, b: writer.step(MAX, a, b),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda writer, a, b: writer.step(MAX, a, b),
    "clamp_max": lambda writer, a, b: writer.step(MIN, a, b),
    "gt": lambda writer, a, b: writer.step(GREATER, a, b),
    "lt": lambda writer, a, b: writer.step(GREATER, b, a),
    "where": lambda writer, condition, a, b: writer.step(WHERE, condition, a, b),
}
