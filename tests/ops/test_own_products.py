"""Products of a user's own run the rule in plain torch, in every layer, and may change from step to step."""

from dataclasses import dataclass

import pytest
import torch
from compare import relative_error
from op_cases import operands

import prproduct as pr
from prproduct.products import Gains, Pair, Product


class Doubled(pr.products.PR):
    """A subclass of a built-in product that is none itself, and equal to all others of its kind."""

    def __init__(self, factor):
        object.__setattr__(self, "factor", factor)

    def gains(self, pair):
        return Gains(length=self.factor, direction=self.factor * pair.inverse_sin)


@pytest.mark.parametrize("name", ["linear", "conv2d, groups", "conv2d, depthwise", "conv_transpose2d"])
def test_a_subclass_of_a_built_in_product_has_its_own_gains(name):
    op, x, w, bias, options = operands(name, torch.float64)
    assert Doubled(1.0) == Doubled(4.0)
    plain = torch.autograd.grad(op(x, w, bias, **options).square().sum(), (x, w))
    for factor in (1.0, 4.0):
        got = torch.autograd.grad(op(x, w, bias, **options, product=Doubled(factor)).square().sum(), (x, w))
        assert all(relative_error(a, factor * b) <= 1e-13 for a, b in zip(got, plain, strict=True))


def test_in_recurrent_layers_too():
    layer = pr.nn.LSTM(3, 4, product="pr")
    x = torch.randn(1, 2, 3)
    plain = torch.autograd.grad(layer(x)[0].sum(), layer.weight_ih_l0)[0]
    layer.product = Doubled(4.0)
    assert relative_error(torch.autograd.grad(layer(x)[0].sum(), layer.weight_ih_l0)[0], 4 * plain) <= 1e-6


class Changing(Product):
    def __init__(self, limit):
        self.limit = limit

    def gains(self, pair):
        direction = torch.where(pair.cos > 0, pair.inverse_sin.clamp(1.1, self.limit), -pair.sin / 2)
        return Gains(length=1 / (1 + pair.cos.square()).rsqrt(), direction=direction * pair.weight_norm.sqrt())

    def input_gains(self, pair, weight_gains):
        return Gains(length=0.5, direction=torch.maximum(pair.cos.abs(), pair.input_norm.exp().log()))


@pytest.mark.parametrize("name", ["linear", "conv2d, groups"])
def test_a_product_may_change_between_two_backwards(name):
    op, x, w, bias, options = operands(name, torch.float64)
    product = Changing(1.5)
    y = op(x, w, bias, **options, product=product)
    grad = torch.randn_like(y)
    first = torch.autograd.grad(y, (x, w), grad, retain_graph=True)
    product.limit = 1.2
    second = torch.autograd.grad(y, (x, w), grad)
    assert relative_error(second[1], first[1]) > 1e-3


@dataclass(frozen=True)
class OwnValue(Product):
    """A part of p where the angle is acute."""

    factor: float = 0.5

    def gains(self, pair: Pair) -> Gains:
        return Gains(1.0, pair.inverse_sin)

    def value(self, pair: Pair) -> torch.Tensor:
        return torch.where(pair.cos > 0.0, self.factor, 1.0)


def test_a_users_forward():
    x, w = torch.randn(5, 3), torch.randn(4, 3)
    p = x @ w.T
    assert torch.allclose(pr.functional.linear(x, w, product=OwnValue(0.25)), torch.where(p > 0, p / 4, p))


class Centred(Product):
    """Gains that depend on all pairs."""

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin / pair.inverse_sin.mean())


class Branching(Product):
    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin if pair.cos.max() > 0 else 1.0)


@pytest.mark.parametrize(("product", "same_as_pr"), [(Branching(), True), (Centred(), False)])
def test_gains_may_be_any_code(product, same_as_pr):
    op, x, w, bias, _ = operands("linear", torch.float64)
    got, pr_gradient = (torch.autograd.grad(op(x, w, bias, product=p).sum(), w)[0] for p in (product, "pr"))
    assert torch.isfinite(got).all()
    assert (relative_error(got, pr_gradient) <= 1e-13) == same_as_pr
