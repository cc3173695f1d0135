"""Products of a user's own run the rule in plain torch, in every layer, and may change from step to step."""

import pytest
import torch
from compare import relative_error
from op_cases import operands

import prproduct as pr
from prproduct.products import Gains, Product


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
