"""The elementwise part of every layer: from p and the norms to the angle, and what a product makes of it.

One element is one (weight vector, data vector) pair. All tensors here are in the working dtype: the layer's own, but
float32 for half types, whose squares would overflow and whose norms would lose small angles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.products import Gains, Pair, Product

# Up to sin² θ = multiple·eps, with the eps of the dtype in which p was stored, the angle is rounding noise and counts
# as unresolved. In the sweep of docs/numerics.md no direction gradient of `pr` was then longer than 1.2 times x.
_FLOOR_IN_EPS = {torch.float64: 128.0, torch.float32: 32.0, torch.bfloat16: 4.0, torch.float16: 4.0}
_FLOOR_OF_TF32 = 4.0 * 2.0**-10  # as for half types: one rounding to 10 bits


# Constants, or torch.compile(dynamic=True) makes symbolic numbers of them and fails.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def floor_of_sin_square(stored: torch.dtype, device_type: str, convolution: bool) -> float:
    """Up to which sin² θ an angle counts as unresolved, by how exactly p was computed and stored."""
    if device_type == "cuda" and stored == torch.float32 and _allows_tf32(convolution):
        return _FLOOR_OF_TF32
    return _FLOOR_IN_EPS[stored] * torch.finfo(stored).eps


def negligible_excess(dtype: torch.dtype) -> float:
    """What does not count in `WeightVectors.rounded`, whatever the other vector, unless its square underflows.

    Times 1/‖x‖ it would be a subnormal number, and CPUs take three times as long for these.
    """
    return math.sqrt(torch.finfo(dtype).smallest_normal) / 1024


def _allows_tf32(convolution: bool) -> bool:
    return torch.backends.cudnn.allow_tf32 if convolution else torch.get_float32_matmul_precision() != "highest"


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms, angles and gains are computed for layers of `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Norms(NamedTuple):
    """The lengths of some vectors and their inverses, both 0 for a zero vector and for one whose square overflows."""

    value: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, square: Tensor) -> Norms:
        """The norms whose squares these are, with finite derivatives also at 0."""
        positive = (square > 0) & (square < math.inf)
        norm = torch.where(positive, square, 1.0).sqrt()
        value, inverse = torch.where(positive, norm, 0.0), torch.where(positive, norm.reciprocal(), 0.0)
        return cls(in_memory(value), in_memory(inverse))


def in_memory(t: Tensor) -> Tensor:
    """The same; under torch.compile, computed once for every vector, and not again for each of its pairs.

    Inductor computes what is broadcast wherever it is used, here a square root and a division for every pair, unless
    somebody asks how it lies in memory.
    """
    return t.as_strided(t.shape, t.stride()) if torch.compiler.is_compiling() else t


@dataclass(frozen=True)
class WeightVectors:
    """What the pairs of a layer share: the lengths of its weight vectors, and how p was stored."""

    norms: Norms
    stored: torch.dtype  # what the output was rounded to
    convolution: bool
    offset: Tensor | None = None  # the bias, which was added to p before that rounding

    @property
    def floor(self) -> float:
        """Up to which sin² θ an angle is unresolved."""
        return floor_of_sin_square(self.stored, self.norms.value.device.type, self.convolution)

    @property
    def rounded(self) -> Tensor:
        """By how much this floor rises, times 1/‖x‖.

        p was rounded together with the bias, and in steps that shrink no further below the smallest normal number.
        """
        tiny = torch.finfo(self.stored).smallest_normal
        excess = (tiny if self.offset is None else abs(self.offset) + tiny) * self.norms.inverse
        return in_memory(torch.where(excess > negligible_excess(excess.dtype), excess, 0.0))

    @property
    def length(self) -> Tensor:
        """What stands for ‖w‖ in sums over weight vectors.

        A convolution divides these sums by ‖x‖, as windows overlap and x is not to be divided by the norms of all of
        them: ‖w‖/‖x‖ could overflow, a share of the longest ‖w‖ cannot.
        """
        return in_memory(self.norms.value / self.longest) if self.convolution else self.norms.value

    @property
    def longest(self) -> Tensor:
        """The length of each group's longest weight vector."""
        longest = self.norms.value.amax(1, keepdim=True).clamp_min(torch.finfo(self.norms.value.dtype).tiny)
        return in_memory(longest)


@dataclass(frozen=True)
class Pairs:
    """All pairs of a layer, as their output (p, and the offset) and the lengths of their vectors tell them."""

    output: Tensor
    weight: WeightVectors
    input: Norms

    def rows(self, rows: slice) -> Pairs:
        """Those of some rows of a linear layer's input."""
        return Pairs(self.output[rows], self.weight, Norms(*(norm[rows] for norm in self.input)))


def measure(pairs: Pairs) -> Pair:
    """The angle of each pair, from p and the norms."""
    weight, input = pairs.weight, pairs.input
    p = pairs.output if weight.offset is None else pairs.output - weight.offset
    # Dividing by one norm after the other keeps norms of 1e±19 finite in float32, where their product is not.
    # A NaN among the data has no angle; as `p`, it spoils no more of the gradient than it does in the native layer.
    rough = p * input.inverse * weight.norms.inverse
    cos = _without_nan(rough).clamp(-1.0, 1.0)
    # Nothing but a cosine between −1 and 1 is resolved below. Inductor's code waits for what comes before the root.
    base = rough if torch.compiler.is_compiling() else cos
    sin_square = (1.0 - base) * (1.0 + base)
    resolved = sin_square > weight.floor * (1.0 + weight.rounded * input.inverse)
    return Pair(cos, torch.where(resolved, sin_square, 1.0).rsqrt(), weight.norms.value, input.value)


def _without_nan(t: Tensor) -> Tensor:
    """0 in place of NaN. Inductor's nan_to_num asks every number by itself, which takes longer than all the rest."""
    return torch.where(t == t, t, 0.0) if torch.compiler.is_compiling() else t.nan_to_num(nan=0.0)


def weight_and_input_gains(product: Product, pair: Pair) -> tuple[Gains, Gains]:
    """The product's gains for ∂/∂w and ∂/∂x, checked; the very same object twice when the product treats both alike."""
    weight_gains = _checked(product, "gains", product.gains(pair), pair)
    input_gains = product.input_gains(pair, weight_gains)
    if input_gains is not weight_gains:
        input_gains = _checked(product, "input_gains", input_gains, pair)
    return weight_gains, input_gains


def forward_factor(product: Product, pair: Pair) -> Tensor | float:
    """The product's value as a multiple of p, checked."""
    factor = product.value(pair)
    _check_shape(product, "value", "a factor", factor, pair)
    return factor


def overflow_scale(turned: Tensor, grad: Tensor) -> Tensor:
    """The power of two that brings D∘grad back to the size of grad, so that it overflows no sooner in what follows.

    1 while D∘grad is below 2⁻⁸: no overflow threatens there, but division would push small gradients into subnormals.
    """
    if grad.numel() == 0:
        return turned.new_ones(())
    harmless = abs(grad).amax().to(turned.dtype).clamp_min(2.0**-8)
    growth = abs(turned).amax() / harmless
    growth = torch.where(growth.isfinite(), growth, 1.0)  # one Inf in the gradient must not spoil the rest
    return growth.clamp(1.0, 2.0**16).log2().ceil().exp2()


def _checked(product: Product, method: str, gains: Gains, pair: Pair) -> Gains:
    if not (isinstance(gains, tuple) and len(gains) == 2):
        raise TypeError(
            f"product {product}: {method}() must return Gains(length, direction), not {type(gains).__name__}"
        )
    _check_shape(product, method, "a length gain", gains[0], pair)
    _check_shape(product, method, "a direction gain", gains[1], pair)
    return gains


def _check_shape(product: Product, method: str, what: str, factor: Tensor | float, pair: Pair) -> None:
    if isinstance(factor, Tensor):
        if factor.shape not in (pair.cos.shape, ()):
            raise ValueError(
                f"product {product}: {method}() returned {what} of shape {tuple(factor.shape)}, "
                f"expected a number or the shape of pair.cos, {tuple(pair.cos.shape)}"
            )
    elif not isinstance(factor, (int, float)):
        raise TypeError(
            f"product {product}: {method}() returned {what} of type {type(factor).__name__}, expected tensor or number"
        )
