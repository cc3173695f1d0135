r"""The products: what each does to the two parts of a gradient.

For a weight vector w and a data vector x at the angle θ, the gradient of the inner product p = w·x for w is x itself,
and x is the sum of two orthogonal parts (the paper's Equation 3):

    ∂p/∂w = P_x + R_x        P_x = (p/‖w‖²)·w   the length gradient:     it stretches w
                             R_x = x − P_x      the direction gradient:  it turns w;  ‖R_x‖ = ‖x‖·|sin θ|

Every product of this library multiplies these two parts by two numbers that depend on the angle, its *gains*:

    ∂/∂w = length·P_x + direction·R_x            ∂/∂x likewise, with w and x exchanged

| product          | value        | length              | direction    | gains of ∂/∂x       |
| ---------------- | ------------ | ------------------- | ------------ | ------------------- |
| `p`              | p            | 1                   | 1            | same gains          |
| `pr` (paper)     | p            | 1                   | 1/\|sin θ\|  | same gains          |
| `r`              | p·length     | \|cos θ\|/(1+\|sin θ\|) | \|cos θ\|/\|sin θ\| | same gains   |
| `tempered:γ`     | p            | 1                   | 1/\|sin θ\|^γ | same gains         |
| `no-length`      | p            | 0                   | 1            | as `p`              |
| `no-direction`   | p            | 1                   | 0            | same gains          |
| `no-direction-w` | p            | 1                   | 0            | as `p`              |
| `pr-w`           | p            | 1                   | 1/\|sin θ\|  | as `p`              |

At the edges, the same holds for every product: a zero vector counts as orthogonal to everything (cos θ = 0), and where
the angle is too small to be resolved in the number format, `inverse_sin` is 1, so that `pr` does what `p` does.

A product of your own is one class:

    >>> from dataclasses import dataclass
    >>> from prproduct.products import Gains, Pair, Product
    >>> @dataclass(frozen=True)
    ... class Capped(Product):
    ...     "PR whose direction gradient grows at most `limit` times."
    ...     limit: float = 3.0
    ...     name = "capped"
    ...
    ...     def gains(self, pair: Pair) -> Gains:
    ...         return Gains(length=1.0, direction=pair.inverse_sin.clamp(max=self.limit))
    >>> import prproduct as pr
    >>> pr.nn.Linear(4, 2, product=Capped(2.0))
    Linear(in_features=4, out_features=2, bias=True, product=capped)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "BUILT_IN",
    "PR",
    "PRW",
    "Gains",
    "NoDirection",
    "NoDirectionW",
    "NoLength",
    "P",
    "Pair",
    "Product",
    "R",
    "Tempered",
    "resolve",
]


@dataclass(frozen=True)
class Pair:
    """What gains may depend on; one tensor element is one pair of a weight vector and a data vector.

    `cos`, `sin` (= |sin θ|) and `inverse_sin` have the shape of the layer's output; with several groups, that is
    (batch, groups, channels of a group, *spatial). The two norms broadcast against it. `inverse_sin` is 1/|sin θ|, or 1
    where the angle cannot be resolved.
    """

    cos: Tensor
    inverse_sin: Tensor
    weight_norm: Tensor
    input_norm: Tensor

    @property
    def sin(self) -> Tensor:
        """|sin θ|, or eps where its square is no more than rounding error: there sqrt has a finite derivative."""
        square = (1.0 - self.cos) * (1.0 + self.cos)
        eps = torch.finfo(square.dtype).eps
        return torch.where(square > 4.0 * eps, square, eps**2).sqrt()


class Gains(NamedTuple):
    """Multiples of the inner product's own length and direction gradient: numbers, or tensors shaped like `cos`."""

    length: Tensor | float
    direction: Tensor | float


class Product:
    """Base of all products: subclass it, give it a `name` and define `gains`.

    Override `input_gains` to treat x differently from w, and `value` for a forward other than the inner product, which
    sets `has_native_forward` to False.
    """

    name: ClassVar[str]
    has_native_forward: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        cls.has_native_forward = cls.value is Product.value

    def gains(self, pair: Pair) -> Gains:
        """The gains of ∂/∂w."""
        raise TypeError(f"{type(self).__name__} defines no gains(self, pair): see prproduct.products")

    def input_gains(self, pair: Pair, weight_gains: Gains) -> Gains:
        """The gains of ∂/∂x; those of ∂/∂w unless overridden."""
        return weight_gains

    def value(self, pair: Pair) -> Tensor | float:
        """The forward, as a multiple of the inner product. Unless overridden, the forward is the native op's."""
        return 1.0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class P(Product):
    """The inner product itself: the native op, forward and backward."""

    name = "p"

    def gains(self, pair: Pair) -> Gains:
        return Gains(length=1.0, direction=1.0)


@dataclass(frozen=True)
class PR(Product):
    """The paper's product (Equation 7): the direction gradient has the length ‖x‖ at every angle (Equation 11)."""

    name = "pr"

    def gains(self, pair: Pair) -> Gains:
        return Gains(length=1.0, direction=pair.inverse_sin)


@dataclass(frozen=True)
class R(Product):
    """Rejection only: sign(cos θ)‖w‖(‖x‖ − ‖R_x‖), computed as p·|cos θ|/(1 + |sin θ|), where nothing cancels."""

    name = "r"

    def gains(self, pair: Pair) -> Gains:
        return Gains(length=self.value(pair), direction=abs(pair.cos) * pair.inverse_sin)

    def value(self, pair: Pair) -> Tensor:
        return abs(pair.cos) / (1.0 + pair.sin)


@dataclass(frozen=True)
class Tempered(Product):
    """Between P (power 0) and PR (power 1): a direction gradient of length ‖x‖·|sin θ|^(1 − power).

    >>> import prproduct as pr
    >>> pr.nn.Linear(4, 2, product=pr.products.Tempered(0.5))
    Linear(in_features=4, out_features=2, bias=True, product=tempered:0.5)
    """

    name = "tempered"
    power: float = 0.5
    # For torch.compile: a float becomes a constant of its code, and at a second power a symbol, which backwards may
    # refuse. Each object has its own; as a ClassVar it is no field, which torch.fx would pass to __init__.
    _power: ClassVar[Tensor]

    def __post_init__(self) -> None:
        if not isinstance(self.power, (int, float)) or not 0.0 <= self.power <= 1.0:
            raise ValueError(f"the power of tempered must be a number from 0 (p) to 1 (pr), not {self.power!r}")
        object.__setattr__(self, "_power", torch.tensor(self.power, dtype=torch.float64, device="cpu"))

    def gains(self, pair: Pair) -> Gains:
        power = self._power if torch.compiler.is_compiling() else self.power
        return Gains(length=1.0, direction=pair.inverse_sin**power)

    def __str__(self) -> str:
        return f"{self.name}:{self.power}"


@dataclass(frozen=True)
class NoLength(Product):
    """The paper's §1 study: w is turned but never stretched; ∂/∂x is the inner product's."""

    name = "no-length"

    def gains(self, pair: Pair) -> Gains:
        return Gains(length=0.0, direction=1.0)

    def input_gains(self, pair: Pair, weight_gains: Gains) -> Gains:
        return Gains(length=1.0, direction=1.0)


@dataclass(frozen=True)
class NoDirection(Product):
    """The paper's §1 study: neither w nor x is turned, as if cos θ were a constant."""

    name = "no-direction"

    def gains(self, pair: Pair) -> Gains:
        return Gains(length=1.0, direction=0.0)


@dataclass(frozen=True)
class NoDirectionW(NoDirection):
    """`NoDirection` for w alone; ∂/∂x is the inner product's."""

    name = "no-direction-w"

    def input_gains(self, pair: Pair, weight_gains: Gains) -> Gains:
        return Gains(length=1.0, direction=1.0)


@dataclass(frozen=True)
class PRW(PR):
    """`PR` for w alone, the one gradient the paper derives; ∂/∂x is the inner product's."""

    name = "pr-w"

    def input_gains(self, pair: Pair, weight_gains: Gains) -> Gains:
        return Gains(length=1.0, direction=1.0)


# The products with a name and, but for `p`, with kernels (CONTRIBUTING.md, "How to add a product", lists the files).
BUILT_IN: tuple[type[Product], ...] = (P, PR, R, Tempered, NoLength, NoDirection, NoDirectionW, PRW)
_BY_NAME = {product.name: product for product in BUILT_IN}


def resolve(product: str | Product) -> Product:
    """The product with this name; a `Product` is returned as it is.

    >>> resolve("pr")
    PR()
    >>> resolve("tempered:0.25")
    Tempered(power=0.25)
    """
    if isinstance(product, Product):
        return product
    if not isinstance(product, str):
        raise TypeError(f"product must be a name or a Product object such as products.PR(), not {product!r}")
    name, _, power = product.partition(":")
    if product in _BY_NAME:
        return _BY_NAME[product]()
    if name == Tempered.name and _is_number(power):
        return Tempered(float(power))
    names = ", ".join(_BY_NAME)
    raise ValueError(
        f"unknown product {product!r}: choose one of {names} (tempered:0.5 sets its power), or pass a Product"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
