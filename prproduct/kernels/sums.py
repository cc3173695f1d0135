"""Outputs that are gone, but can be told from what others keep: sums to which they were added, what they are part of.

A residual block ends in `x + layer(…)`: the layer's output is dropped, but the next block's BatchNorm keeps the sum,
and this block's has kept x, so p = sum − x. A dense block ends in `cat([x, layer(…)])`, which the next BatchNorm keeps.
All this is in autograd's graph, whose nodes know what they were made of and which tensors they keep.

A difference is as good as p up to the rounding of the sum. The rules know of it, as they do for a bias, and compute p
again where it was drowned. Half types have no digits to spare, and take no differences.

The graph does not know what is written into a tensor under `no_grad`. So nothing is taken that has been written into
since it was made: its version, which counts such writes, has to be what it was then.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterator, Set
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

_PRECISE = (torch.float32, torch.float64)
_RAW, _SAVED = "_raw_saved_", "_saved_"


class Found(NamedTuple):
    """A layer's output; or, if there is an addend, the sum of both."""

    output: Tensor | None
    addend: Tensor | None = None
    itself: bool = False  # in its own memory, which somebody else keeps


NOTHING = Found(None)


class Lost(Protocol):
    """An output to look for."""

    shape: torch.Size
    dtype: torch.dtype
    version: int  # when it was made
    elsewhere: Found  # what there is instead
    partner: Partner | None

    @property
    def writes(self) -> int:
        """How often it has been written into."""

    def lies_in(self, tensor: Tensor) -> bool:
        """Whether this is what it has become: it is still there, in the same memory."""


AnyLost = TypeVar("AnyLost", bound=Lost)


class Partner(NamedTuple):
    """Another lost output, and the sum of both: the one that is computed again first gives the other away."""

    other: weakref.ref[Lost]
    total: Tensor

    def tell(self, output: Tensor) -> None:
        """That this is one of them."""
        other = self.other()
        if other is not None and other.partner is not None:  # it is still waiting
            other.elsewhere = Found(self.total, output)


class _Result(NamedTuple):
    """One of a node's."""

    node: Any
    place: int


class _Graph:
    """What lies before a node, as far as to the leaves."""

    def __init__(self, root: Any) -> None:
        self.takers: defaultdict[_Result, list[Any]] = defaultdict(list)  # the nodes that were given a result
        seen, todo = {root}, [root]
        while todo:
            node = todo.pop()
            for source, index in node.next_functions:
                if source is not None:
                    self.takers[_Result(source, index)].append(node)
                    if source not in seen:
                        seen.add(source)
                        todo.append(source)

    def kept(self, result: _Result) -> Tensor | None:
        """This result, if the node that made it, or one that was given it, keeps it as it was when it was made."""
        for node in (result.node, *self.takers[result]):
            for tensor in _saved(node):
                same = tensor.grad_fn is result.node and tensor.output_nr == result.place
                if same and (node is result.node or tensor._version == _first_version(result.node, tensor)):
                    return tensor.detach()
        return None


def _first_version(node: Any, tensor: Tensor) -> int:
    """Of what a node made. What it makes anew has 0; an addition in place goes on counting from what it was done to."""
    remembered: Lost | None = getattr(node, "remembered_output", None)
    if remembered is not None:
        return remembered.version
    if type(node).__name__ == "AddBackward0":
        into: Lost | None = getattr(node.next_functions[0][0], "remembered_output", None)
        if into is not None and into.lies_in(tensor):
            return into.version + 1
    return 0


def _saved(node: Any) -> Iterator[Tensor]:
    """The tensors that a node keeps; none if hooks have packed one, as unpacking may cost anything."""
    try:
        own = getattr(node, "_raw_saved_tensors", None)  # of a function written in Python
        names = _raw_names(cast(Hashable, type(node))) if own is None else ()
        raw = [getattr(node, name) for name in names] if own is None else own
        if any(getattr(one, "unpack_hook", one) is not None for one in raw):  # older versions of torch do not tell
            return
        kept = [getattr(node, name.replace(_RAW, _SAVED)) for name in names] if own is None else node.saved_tensors
    except RuntimeError:  # written into, or let go of
        return
    yield from (tensor for tensor in kept if isinstance(tensor, Tensor))


@functools.cache
def _raw_names(kind: Hashable) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_RAW))


def find_elsewhere(root: Any, lost: Set[AnyLost]) -> set[AnyLost]:
    """Tell lost outputs of nodes before this one where they can be found; those that belong to no such node.

    The nodes know them as `remembered_output`.
    """
    graph, others = _Graph(root), set(lost)
    for result in list(graph.takers):
        one = _lost_one(result.node, lost)
        if one is None:
            continue
        others.discard(one)
        if one.writes > 1:  # one may be an addition in place
            continue
        for taker in graph.takers[result]:
            kind = type(taker).__name__
            if kind == "CatBackward0" and not one.writes:
                one.elsewhere = _part(graph, taker, result, one)
            elif kind == "AddBackward0" and one.dtype in _PRECISE:
                _add(graph, taker, result, one, lost)
            if one.elsewhere is not NOTHING:
                break
    return others


def _lost_one(node: Any, lost: Set[AnyLost]) -> AnyLost | None:
    """The node's output, if it is one of these."""
    remembered: AnyLost | None = getattr(node, "remembered_output", None)
    return remembered if remembered in lost else None


def _part(graph: _Graph, cat: Any, result: _Result, one: Lost) -> Found:
    """Its part of what it was put together to with others."""
    whole, start = graph.kept(_Result(cat, 0)), 0
    if whole is None:
        return NOTHING
    axis = range(whole.dim())[(cat._saved_dim + 2**63) % 2**64 - 2**63]  # what was −1 comes back as 2⁶⁴ − 1
    for source, index in cat.next_functions:
        if source is None:  # nobody knows how long that is
            return NOTHING
        shape = source._input_metadata[index].shape
        size = shape[axis] if len(shape) == whole.dim() else 0  # nothing, of one axis, goes together with anything
        if (source, index) == result:
            part = whole.narrow(axis, start, size)
            return Found(part) if part.shape == one.shape and part.dtype == one.dtype else NOTHING
        start += size
    return NOTHING


def _add(graph: _Graph, addition: Any, result: _Result, one: Lost, lost: Set[AnyLost]) -> None:
    """The sum, and what was added to it."""
    others = [_Result(*edge) for edge in addition.next_functions if edge != result]
    total = graph.kept(_Result(addition, 0))
    if len(others) != 1 or others[0].node is None or addition._saved_alpha != 1:
        return
    if total is None or total.shape != one.shape or total.dtype != one.dtype or one.writes != one.lies_in(total):
        return  # if it was added to in place, that has to be all that was written into it
    addend, partner = graph.kept(others[0]), _lost_one(others[0].node, lost)
    if addend is not None and addend.shape == one.shape and addend.dtype == one.dtype:
        one.elsewhere = Found(total, addend)
    elif addend is None and partner is not None and partner.shape == one.shape and not partner.writes:
        one.partner = Partner(weakref.ref(partner), total)
