"""A product's rule as a list of elementary operations, for the compiled kernel to perform.

`products.py` writes each rule once, in tensor arithmetic. Here that very code is run on symbols in place of tensors
(torch.fx), and the operations it performs are noted; `program_passes.py` then performs them on strips of pairs that fit
into the cache. So all products run in one compiled kernel, and nothing is compiled for them.

A user's rule may do more than this (sum over pairs, branch on values, read what changes), and plain torch computes it,
unless its class says `elementwise = True`. Then a rule that is none is refused, and every program is compared with what
it was made from before it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from prproduct.products import Gains, Pair, Product

# The codes of `program_passes._perform`.
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

    @functools.cached_property
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

    @functools.cached_property
    def is_pr(self) -> bool:
        """Whether D = 1/|sin θ| and L is one number, as with the PR product: loops may do all at once."""
        half = self.weight
        constant = half.length >= len(INPUTS) and not len(self.steps)
        return constant and self.same and half.direction == INVERSE_SIN and half.has_sums

    @functools.cached_property
    def plans(self) -> dict[Any, np.ndarray[Any, Any]]:
        """The program as passes take it (`rules.plan_of`)."""
        return {}

    @functools.cached_property
    def passes(self) -> dict[Any, Any]:
        """Those of layers, for each shape (`rules.WrittenPasses`)."""
        return {}

    @functools.cached_property
    def small_layers(self) -> dict[Any, Any]:
        """What is known for each shape (`small_linear.py`)."""
        return {}

    @functools.cached_property
    def usual_convolutions(self) -> dict[Any, Any]:
        """What is known for each shape (`usual_convolution.py`)."""
        return {}


def program_of(product: Product) -> Program | None:
    """The program of a product's rule; None if the product does not say that it is elementwise."""
    known = _known.get(id(product))
    if known is not None and known[0] is product:
        return known[1]
    if not product.elementwise:
        return None
    if not _is_told_by_its_fields(product.product if isinstance(product, Forward) else product):
        return _write(product)
    program = _remembered(product)
    if len(_known) >= _MOST:
        _known.clear()
    _known[id(product)] = (product, program)
    return program


def _is_told_by_its_fields(product: Product) -> bool:
    """Whether equal products do the same: others' owners may change them between two calls.

    A subclass that is no dataclass itself inherits a comparison that knows nothing of what it adds.
    """
    parameters = vars(type(product)).get("__dataclass_params__")
    return parameters is not None and parameters.frozen


@dataclass(frozen=True)
class Forward(Product):
    """Of a product with a value of its own, what turns p into it: the product whose D is that multiple of p."""

    name = "forward"
    product: Product

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return self.product.elementwise

    def gains(self, pair: Pair) -> Gains:
        factor: Any = self.product.value(pair)
        return Gains(length=factor, direction=factor)

    def __str__(self) -> str:
        return str(self.product)


class _UnwritableError(Exception):
    """The rule does what no program can."""


class _Symbol(fx.Proxy):
    """Stands for a tensor in arithmetic, and for nothing else: a rule that asks for its dtype or shape is refused."""

    def __getattr__(self, name: str) -> Any:
        if name not in _WRITE:
            raise _UnwritableError(f"it uses .{name}")
        return super().__getattr__(name)


class _Tracer(fx.proxy.GraphAppendingTracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Symbol(node, self)


class _SymbolicPair(Pair):
    sin: Any = None  # a symbol too, in place of the property


def _write(product: Product) -> Program:
    graph = fx.Graph()
    tracer = _Tracer(graph)
    symbols: dict[str, Any] = {name: tracer.proxy(graph.placeholder(name)) for name in INPUTS}
    sin = symbols.pop("sin")
    pair = _SymbolicPair(**symbols)
    object.__setattr__(pair, "sin", sin)
    try:
        weight_gains = product.gains(pair)
        input_gains = product.input_gains(pair, weight_gains)
        if not (isinstance(weight_gains, tuple) and isinstance(input_gains, tuple)):
            raise _UnwritableError("it returns no Gains")
        writer = _Writer()
        program = writer.write(weight_gains, input_gains)
        if unused := [node for node in graph.nodes if node.op != "placeholder" and node not in writer.written]:
            raise _UnwritableError(f"the result of {unused[0].target} is not used")
        _compare(program, product)
    except Exception as error:
        raise TypeError(
            f"product {product} says that it is elementwise, but is not ({error}): see docs/products.md, or leave out "
            "`elementwise`"
        ) from error
    return program


_MOST = 64
_remembered = functools.lru_cache(_MOST)(_write)
_known: dict[int, tuple[Product, Program]] = {}  # by identity, as to compare products takes longer than a small pass


def _compare(program: Program, product: Product) -> None:
    """Perform the program on some pairs, and see that it gives what the product gives."""
    cos = torch.linspace(-0.99, 0.99, 64, dtype=torch.float64)
    norms = torch.linspace(0.1, 3.0, 64, dtype=torch.float64)
    pair = Pair(cos, (1 - cos.square()).rsqrt(), norms, norms.flip(0))
    registers = [torch.full_like(cos, constant) for constant in program.constants]
    registers[: len(INPUTS)] = [getattr(pair, name) for name in INPUTS]
    for code, result, *operands in program.steps.tolist():
        registers[result] = _PERFORM[code](*(registers[operand] for operand in operands))
    weight_gains = product.gains(pair)
    gains = (*weight_gains, *product.input_gains(pair, weight_gains))
    halves = program.weight, program.input
    written = [register for half in halves for register in (half.length, half.direction)]
    for gain, register in zip(gains, written, strict=True):
        expected = torch.as_tensor(gain, dtype=cos.dtype).expand_as(cos)
        if not torch.allclose(registers[register], expected, rtol=1e-12, atol=1e-12, equal_nan=True):
            raise _UnwritableError("on symbols it does something else than on tensors")


# What `program_passes._perform` does, in torch.
_PERFORM: dict[int, Callable[..., Tensor]] = {
    ADD: lambda a, b, c: a + b,
    SUB: lambda a, b, c: a - b,
    MUL: lambda a, b, c: a * b,
    DIV: lambda a, b, c: a / b,
    POW: lambda a, b, c: a**b,
    MIN: lambda a, b, c: torch.minimum(a, b),
    MAX: lambda a, b, c: torch.maximum(a, b),
    GREATER: lambda a, b, c: (a > b).to(a.dtype),
    WHERE: lambda a, b, c: torch.where(a != 0, b, c),
    ABS: lambda a, b, c: a.abs(),
    SQRT: lambda a, b, c: a.sqrt(),
    EXP: lambda a, b, c: a.exp(),
    LOG: lambda a, b, c: a.log(),
}


class _Writer:
    """Turns the symbols that a rule returns into steps, one register a value."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, ...]] = []
        self.constants: list[float] = [0.0] * len(INPUTS)
        self.written: dict[fx.Node | float, int] = {}
        self.of_the_angle: set[fx.Node] = set()

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
        if not isinstance(gain, fx.Proxy):
            return self.register(gain)
        register = self.register(gain.node)
        if gain.node not in self.of_the_angle:
            raise _UnwritableError("a gain depends on norms alone, and has the wrong shape")
        return register

    def register(self, value: Any) -> int:
        """The register that holds a node's value or a number, once the steps so far have been performed."""
        if not isinstance(value, (fx.Node, int, float)):
            raise _UnwritableError(f"it computes with a {type(value).__name__}")
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
            register = INPUTS.index(str(node.target))
            if register in (COS, INVERSE_SIN, SIN):
                self.of_the_angle.add(node)
            return register
        name = node.target if isinstance(node.target, str) else node.target.__name__
        if name not in _WRITE:
            raise _UnwritableError(f"it uses {name}")
        arguments = node.args
        if name == "where" and node.op == "call_method":  # x.where(condition, y)
            arguments = (node.args[1], node.args[0], *node.args[2:])
        register = _WRITE[name](self, *arguments, **node.kwargs)
        if not self.of_the_angle.isdisjoint(node.all_input_nodes):
            self.of_the_angle.add(node)
        return register

    def _new(self, constant: float) -> int:
        self.constants.append(constant)
        return len(self.constants) - 1


class _Register(int):
    """A register, as distinct from a number."""


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
