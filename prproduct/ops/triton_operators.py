"""The operators of `torch.ops.prproduct` by Triton's kernels: which are launched, on which views and tiles.

Same arguments and same results as the C++ operators (`csrc/library.cpp`), for tensors on a GPU in float32, bfloat16 and
float16. `triton_kernels.py` has the equations. Nothing here reads a number from the device, so no call waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prproduct.ops.contractions import Convolution
from prproduct.products import BUILT_IN, Product

_WEIGHT_ONLY = {product.name for product in BUILT_IN if product.input_gains is not Product.input_gains}
_TILE = 2048  # pairs or elements that a program reads at a time


def linear_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
    product: str,
    parameter: float,
    floor: float,
    wants_input: bool,
    wants_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """dX (rows, in) and dW (out, in) of a linear layer, or None where they are not wanted."""
    if grad.numel() == 0 or input.numel() == 0:
        return torch.zeros_like(input), torch.zeros_like(weight)
    x = _one_image(input)  # (1, 1, rows, in)
    squares = _squares(x, weight)
    split = _split(_channels_first(output), _channels_first(grad), *squares, bias, product, parameter, floor)
    scaled = split.scaled.squeeze(0).T  # (rows, out)
    grad_input = grad_weight = along_x = along_w = None
    if wants_input and product in _WEIGHT_ONLY:
        grad_input = grad @ weight
    elif wants_input:
        grad_input = scaled @ weight
        along_x = _Along(_one_image(grad_input), x, squares[0], split.along_x)
    if wants_weight:
        grad_weight = scaled.T @ input
        along_w = _Along(grad_weight, weight, squares[1], split.along_w)
    _add_along(along_x, along_w, split.largest)
    return grad_input, grad_weight


def convolution_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    product: str,
    parameter: float,
    floor: float,
    wants_input: bool,
    wants_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """dX and dW of a convolution, or None where they are not wanted."""
    if grad.numel() == 0 or input.numel() == 0:
        return torch.zeros_like(input), torch.zeros_like(weight)
    native = Convolution(tuple(stride), tuple(padding), tuple(dilation), groups, tuple(output_padding), transposed)
    frame = _Frame(input, weight, output, native)
    x, w = _places(input, groups), _kernels(weight, native)
    squares, w_squares = _squares(x, w)
    x_squares = frame.windows(squares)
    split = _split(output.flatten(2), grad.flatten(2), x_squares, w_squares, bias, product, parameter, floor)
    scaled = split.scaled.view(grad.shape)
    along_x = along_w = None
    if product in _WEIGHT_ONLY:
        grad_input = native.native_backward(grad, input, weight, True, False)[0] if wants_input else None
        grad_weight = native.native_backward(scaled, input, weight, False, True)[1] if wants_weight else None
    else:
        grad_input, grad_weight = native.native_backward(scaled, input, weight, wants_input, wants_weight)
        if grad_input is not None:
            grad_input = grad_input.flatten(2)
            along_x = frame.along(_places(grad_input, groups), x, x_squares, split.along_x)
            grad_input = grad_input.view(input.shape)
    if grad_weight is not None:
        along_w = _Along(_kernels(grad_weight, native, weight), w, w_squares, split.along_w)
    _add_along(along_x, along_w, split.largest)
    return grad_input, None if along_w is None else _as_weight(along_w.to, weight, native)


def linear_value(p: Tensor, input: Tensor, weight: Tensor, product: str, parameter: float, floor: float) -> Tensor:
    """The forward of a product that has its own, (rows, out)."""
    if p.numel() == 0:
        return torch.empty_like(p)
    x_squares, w_squares = _squares(_one_image(input), weight)
    pairs = _channels_first(p)
    return _split(pairs, pairs, x_squares, w_squares, None, product, parameter, floor, forward=True).scaled.squeeze(0).T


def convolution_value(
    p: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    product: str,
    parameter: float,
    floor: float,
) -> Tensor:
    """The forward of a product that has its own, in the shape of p."""
    if p.numel() == 0 or input.numel() == 0:
        return torch.zeros_like(p)
    native = Convolution(tuple(stride), tuple(padding), tuple(dilation), groups, tuple(output_padding), transposed)
    squares, w_squares = _squares(_places(input, groups), _kernels(weight, native))
    x_squares, pairs = _Frame(input, weight, p, native).windows(squares), p.flatten(2)
    split = _split(pairs, pairs, x_squares, w_squares, None, product, parameter, floor, forward=True)
    return split.scaled.view(p.shape)


def _one_image(t: Tensor) -> Tensor:
    """(rows, length) as (1, 1, rows, length)."""
    return t.unsqueeze(0).unsqueeze(0)


def _channels_first(t: Tensor) -> Tensor:
    """(rows, out) as (1, out, rows): rows are the places of one image."""
    return t.T.unsqueeze(0)


def _places(t: Tensor, groups: int) -> Tensor:
    """(batch, channels, …) as (batch, groups, places, channels of a group)."""
    return t.flatten(2).unflatten(1, (groups, -1)).transpose(2, 3)


def _kernels(t: Tensor, native: Convolution, like: Tensor | None = None) -> Tensor:
    """A weight or its gradient as (weight vectors, length), of the layout of `like`; a view unless transposed."""
    if native.transposed:
        return t.unflatten(0, (native.groups, -1)).transpose(1, 2).flatten(0, 1).flatten(1)
    return t.permute(_memory_order(t if like is None else like)).flatten(1)


def _as_weight(vectors: Tensor, weight: Tensor, native: Convolution) -> Tensor:
    """(weight vectors, length) in the shape of the weight: the inverse of `_kernels`."""
    if native.transposed:
        inputs, outputs, *kernel = weight.shape
        apart = vectors.view(native.groups, outputs, inputs // native.groups, *kernel)
        return apart.transpose(1, 2).reshape(weight.shape)
    order = _memory_order(weight)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return vectors.view([weight.shape[axis] for axis in order]).permute(inverse)


def _memory_order(weight: Tensor) -> list[int]:
    """The axis of the weight vectors, then all others by descending stride: flattened, they are a view."""
    strides = weight.stride()
    return [0, *sorted(range(1, weight.dim()), key=lambda axis: -strides[axis])]


class _Split(NamedTuple):
    """What `prproduct_split` computes; the sums are per tile."""

    scaled: Tensor  # (batch, channels, places), in the layout of the output
    along_x: Tensor  # (tiles of weight vectors, batch, groups, places)
    along_w: Tensor  # (weight vectors, images and tiles of places)
    largest: Tensor | None  # max |g|, for float16


class _Along(NamedTuple):
    """to += t·(1/‖t‖)·Σ sums, for every vector; with `multiples`, `scale` takes the place of 1/‖t‖."""

    to: Tensor  # (…, vectors, length)
    t: Tensor
    scale: Tensor  # ‖t‖², or the first factor of `prproduct_multiples`
    sums: Tensor  # x: (parts, …, vectors); w: (vectors, parts)
    multiples: bool = False


class _Frame:
    """Where a convolution's windows lie, with three axes whatever the number of its own."""

    def __init__(self, input: Tensor, weight: Tensor, output: Tensor, native: Convolution) -> None:
        def three(numbers: Sequence[int], missing: int) -> tuple[int, ...]:
            return (missing,) * (3 - len(numbers)) + tuple(numbers)

        self.input, self.output = three(input.shape[2:], 1), three(output.shape[2:], 1)
        self.kernel, self.stride = three(weight.shape[2:], 1), three(native.stride, 1)
        self.padding, self.dilation = three(native.padding, 0), three(native.dilation, 1)
        self.transposed = native.transposed
        self.pointwise = math.prod(self.kernel) == math.prod(self.stride) == 1 and self.input == self.output

    def _launch(self, kernel: str, to: tuple[int, ...], source: tuple[int, ...], gather: bool, *tensors: Any) -> None:
        block = min(256, _power_of_2(math.prod(to)))
        planes = tensors[0].shape[-3] * tensors[0].shape[-2]
        grid = (planes * _blocks(math.prod(to), block),)
        geometry = (*to, *source, *self.kernel, *self.stride, *self.padding, *self.dilation)
        launch(kernel, grid, *tensors, *geometry, GATHER=gather, BLOCK=block)

    def windows(self, squares: Tensor) -> Tensor:
        """‖x‖² (batch, groups, output places) of Σ x² over channels (batch, groups, input places)."""
        if self.pointwise:
            return squares
        sums = squares.new_empty(*squares.shape[:2], math.prod(self.output))
        self._launch("prproduct_windows", self.output, self.input, not self.transposed, squares, sums)
        return sums

    def along(self, grad_input: Tensor, x: Tensor, x_squares: Tensor, sums: Tensor) -> _Along:
        """The correction along x of all windows, per place of the input."""
        if self.pointwise:
            return _Along(grad_input, x, x_squares, sums)
        multiples, largest = x_squares.new_empty(2, 1, *x_squares.shape[:2], math.prod(self.input))
        parts = (sums, len(sums), x_squares.numel())
        self._launch(
            "prproduct_multiples", self.input, self.output, self.transposed, *parts, x_squares, multiples, largest
        )
        return _Along(grad_input, x, multiples, largest, multiples=True)


def _squares(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Σ x² (batch, groups, places) of x (batch, groups, places, length), and Σ w² of w (vectors, length)."""
    batch, groups, places, length = x.shape
    x_squares = x.new_empty(batch, groups, places, dtype=torch.float32)
    w_squares = w.new_empty(len(w), dtype=torch.float32)
    x_tile, w_tile = _tile(x), _tile(w)
    x_programs = batch * groups * _blocks(places, x_tile[0])
    grid = (x_programs + _blocks(len(w), w_tile[0]),)
    x_part = (x, *x.stride(), groups, places, length, x_squares)
    tiles = {"XV": x_tile[0], "XR": x_tile[1], "WV": w_tile[0], "WR": w_tile[1]}
    launch("prproduct_squares", grid, *x_part, w, *w.stride(), *w.shape, w_squares, x_programs, **tiles)
    return x_squares, w_squares


def _split(
    output: Tensor,
    grad: Tensor,
    x_squares: Tensor,
    w_squares: Tensor,
    bias: Tensor | None,
    product: str,
    parameter: float,
    floor: float,
    forward: bool = False,
) -> _Split:
    """D∘g and the sums along x and w, from output and g, both (batch, channels, places)."""
    batch, groups, places = x_squares.shape
    channels = output.shape[1] // groups
    n = min(64, _power_of_2(places))
    j = min(_TILE // n, _power_of_2(channels))
    n = min(_TILE // j, _power_of_2(places))
    n_tiles, j_tiles = _blocks(places, n), _blocks(channels, j)
    scaled = torch.empty_like(output)
    along_x = x_squares.new_empty(0 if forward else j_tiles, batch, groups, places)
    along_w = x_squares.new_empty(0 if forward else len(w_squares), batch * n_tiles)
    largest = None
    if grad.dtype == torch.float16 and not forward:
        largest = torch.linalg.vector_norm(grad, math.inf)
    tensors = (x for t in (output, grad, scaled) for x in (t, *t.stride()))
    sizes = (batch * groups, groups, channels, places)
    numbers = (floor, torch.finfo(output.dtype).smallest_normal, parameter)
    sums = (x_squares, w_squares, None if bias is None else bias.contiguous(), largest, along_x, along_w)
    grid = (batch * groups * n_tiles * j_tiles,)
    launch("prproduct_split", grid, *tensors, *sums, *sizes, *numbers, PRODUCT=product, FORWARD=forward, J=j, N=n)
    return _Split(scaled, along_x, along_w, largest)


def _add_along(x: _Along | None, w: _Along | None, largest: Tensor | None) -> None:
    """Adds the corrections along x (batch, groups, places, length) and along w (vectors, length), in one launch."""
    some = x or w
    if some is None:
        return
    # The arguments of an absent side are any pointers, which no program reads.
    x_programs = w_programs = steps = 0
    x_tile = w_tile = (1, 1)
    x_part: tuple[Any, ...] = (some.to, 0, 0, 0, 0, some.t, 0, 0, 0, 0, 1, 1, 1, some.scale, some.sums, 0, 0)
    w_part: tuple[Any, ...] = (some.to, 0, 0, some.t, 0, 0, 1, 1, some.scale, some.sums, 0)
    if x is not None:
        batch, groups, places, length = x.t.shape
        x_tile = _tile(x.to)
        x_programs, steps = batch * groups * _blocks(places, x_tile[0]), length // x_tile[1]
        sizes, parts = (groups, places, length), (x.scale, x.sums, len(x.sums), x.scale.numel())
        x_part = (x.to, *x.to.stride(), x.t, *x.t.stride(), *sizes, *parts)
    if w is not None:
        w_tile = _tile(w.to)
        w_programs, steps = _blocks(len(w.t), w_tile[0]), max(steps, w.t.shape[1] // w_tile[1])
        w_part = (w.to, *w.to.stride(), w.t, *w.t.stride(), *w.t.shape, w.scale, w.sums, w.sums.shape[1])
    grid = (x_programs + w_programs, _blocks(steps + 1, 8))
    constants = {"XV": x_tile[0], "XR": x_tile[1], "WV": w_tile[0], "WR": w_tile[1]}
    constants |= {
        "X_MULTIPLES": x is not None and x.multiples,
        "P": 1 if w is None else min(_power_of_2(w_part[-1]), max(1, _TILE // w_tile[0])),
    }
    launch("prproduct_along", grid, *x_part, *w_part, largest, x_programs, **constants)


def _tile(t: Tensor) -> tuple[int, int]:
    """How many vectors, and how many of their elements, a program reads at a time; most along the contiguous axis."""
    vectors, length = (_power_of_2(size) for size in t.shape[-2:])
    if t.stride(-1) == 1:
        along = min(length, 512)
        return min(vectors, _TILE // along), along
    across = min(vectors, 512)
    return across, min(length, _TILE // across)


def _blocks(size: int, block: int) -> int:
    """The number of blocks that cover `size`."""
    return -(-size // block)


def _power_of_2(number: int) -> int:
    """The smallest power of 2 that is at least `number`."""
    return 1 << (number - 1).bit_length()


def launch(kernel: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel of `triton_kernels` on the device of its first argument, in the current stream."""
    from prproduct.ops import triton_kernels  # here, as Triton is no requirement of this package

    function, device = getattr(triton_kernels, kernel), arguments[0].device
    if device.type == "cpu":  # Triton's interpreter
        function[grid](*arguments, **constants)
        return
    with torch.accelerator.device_index(device.index):
        function[grid](*arguments, **constants, enable_fp_fusion=False)  # rounded as the rule is


def try_on(device: torch.device) -> None:
    """Run the backward of a small layer on a device, which raises whatever error Triton has with it."""
    ones = torch.ones(8, 4, device=device)
    linear_backward(ones[:, :2], ones, ones[:2], None, ones[:, :2], "pr", 0.0, 1e-6, True, True)
