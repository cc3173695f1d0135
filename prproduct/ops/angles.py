"""The angle of each pair from p = w·x and the norms of w and x, and the gains that a product gives for it.

One tensor element is one pair of a weight vector and a data vector. All tensors here are in the working dtype: the
layer's own, but float32 for half types, whose squares would overflow and whose norms would lose small angles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prproduct.products import Gains, Pair, Product


def floor_of_sin_square(stored: torch.dtype, device_type: str, convolution: bool) -> float:
    """The value of sin² θ up to which an angle counts as unresolved, for p stored in the dtype `stored`.

    It is a multiple of the eps of that dtype, or of TF32 or bfloat16 where torch may compute float32 in it: below, the
    angle is rounding error. With these multiples the direction gradient of `pr` is rarely longer than 1.1·‖x‖
    (docs/numerics.md; longest seen: 1.28).
    """
    # Literals: torch.compile(dynamic=True) makes symbolic numbers of what it finds in a table, and fails.
    if stored == torch.float64:
        return 128.0 * 2.0**-52
    precision = _float32_precision(device_type, convolution) if stored == torch.float32 else ""
    if stored == torch.bfloat16 or precision == "bf16":
        return 4.0 * 2.0**-7
    if stored == torch.float16 or precision == "tf32":
        return 4.0 * 2.0**-10  # TF32 rounds to 10 bits, too
    return 32.0 * 2.0**-23


def _float32_precision(device_type: str, convolution: bool) -> str:
    """What torch may compute float32 in, by its settings: "tf32", "bf16", or another word for float32 itself."""
    if device_type == "cuda":
        settings: Any = torch.backends.cudnn.conv if convolution else torch.backends.cuda.matmul  # type: ignore[attr-defined]
    elif device_type == "cpu":
        settings = torch.backends.mkldnn.conv if convolution else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    else:
        return ""
    return settings.fp32_precision  # also after `allow_tf32`, which raises once this one was set


# What torch.compiler.assume_constant_result does, whose call would import Dynamo: it cannot trace this getter.
_float32_precision._dynamo_marked_constant = True  # type: ignore[attr-defined]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms, angles and gains are computed for layers of `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Norms(NamedTuple):
    """The lengths of some vectors and their inverses, both 0 for a zero vector and for one whose square overflows."""

    value: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, square: Tensor) -> Norms:
        """The norms of vectors with these squared norms; their derivatives are finite at 0, too."""
        positive = (square > 0) & (square < math.inf)
        norm = torch.where(positive, square, 1.0).sqrt()
        value, inverse = torch.where(positive, norm, 0.0), torch.where(positive, norm.reciprocal(), 0.0)
        return cls(materialized(value), materialized(inverse))


def materialized(t: Tensor) -> Tensor:
    """t itself; under torch.compile, a tensor that Inductor writes to memory instead of computing it at every use.

    Inductor recomputes what is broadcast, here a square root and a division for every pair. `as_strided` prevents it.
    """
    return t.as_strided(t.shape, t.stride()) if torch.compiler.is_compiling() else t


@dataclass(frozen=True)
class WeightVectors:
    """What `measure` knows of a layer's weight vectors: their norms and biases, and how their p was stored."""

    norms: Norms
    stored: torch.dtype  # of the output that p is taken from
    convolution: bool
    bias: Tensor | None = None  # added to p before the output was rounded

    @property
    def floor(self) -> float:
        """The value of sin² θ up to which an angle is unresolved."""
        return floor_of_sin_square(self.stored, self.norms.value.device.type, self.convolution)

    @property
    def excess(self) -> Tensor:
        """`measure` takes floor·(1 + excess/‖x‖) for the floor.

        p was rounded together with the bias, and its rounding error is not smaller than the smallest normal number's.
        """
        tiny = torch.finfo(self.stored).smallest_normal
        excess = (tiny if self.bias is None else abs(self.bias) + tiny) * self.norms.inverse
        # What is negligible beside any ‖x‖ becomes 0: CPUs take several times as long for subnormal products.
        negligible = math.sqrt(torch.finfo(excess.dtype).smallest_normal) / 1024
        return materialized(torch.where(excess > negligible, excess, 0.0))


@dataclass(frozen=True)
class Pairs:
    """All pairs of a layer: their output (p plus bias) and the norms of their vectors, which broadcast against it."""

    output: Tensor
    weight: WeightVectors
    input: Norms


def measure(pairs: Pairs) -> Pair:
    """The angle of each pair, from p and the norms."""
    weight, input = pairs.weight, pairs.input
    p = pairs.output if weight.bias is None else pairs.output - weight.bias
    # Dividing by one norm after the other keeps norms of 1e±19 finite in float32, where their product is not.
    # A NaN has no angle. With cos θ = 0 it reaches no more of the gradient than in the native layer.
    rough = p * input.inverse * weight.norms.inverse
    cos = _without_nan(rough).clamp(-1.0, 1.0)
    # Inductor's code would wait for the clamp. Without it, inverse_sin is the same: outside of [−1, 1], and for NaN,
    # sin² is not above the floor, and inverse_sin is 1.
    base = rough if torch.compiler.is_compiling() else cos
    sin_square = (1.0 - base) * (1.0 + base)
    resolved = sin_square > weight.floor * (1.0 + weight.excess * input.inverse)
    return Pair(cos, torch.where(resolved, sin_square, 1.0).rsqrt(), weight.norms.value, input.value)


def _without_nan(t: Tensor) -> Tensor:
    """0 in place of NaN. Inductor does not vectorize nan_to_num, which then takes longer than all the rest."""
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


def _checked(product: Product, method: str, gains: Gains, pair: Pair) -> Gains:
    if not isinstance(gains, Gains):
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
