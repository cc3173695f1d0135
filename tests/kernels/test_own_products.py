"""Products of a user's own: which run by the compiled passes, which in plain torch, and which promise too much."""

from dataclasses import dataclass

import pytest
import torch
from compare import relative_error
from kernel_cases import assert_equal_to_rounding, both_gradients, operands

import prproduct as pr
from prproduct.products import Gains, Pair, Product


class Own(Product):
    """A user's product, and not a frozen one."""

    elementwise = True

    def __init__(self, limit):
        self.limit = limit

    def gains(self, pair):
        turned = torch.where(pair.cos > 0, pair.inverse_sin.clamp(1.1, self.limit), -pair.sin / 2)
        return Gains(length=1 / (1 + pair.cos.square()).rsqrt(), direction=turned * pair.weight_norm.sqrt())

    def input_gains(self, pair, weight_gains):
        return Gains(length=0.5, direction=torch.maximum(pair.cos.abs(), pair.input_norm.exp().log()))


@pytest.mark.parametrize("name", ["linear", "conv2d, groups"])
def test_a_products_own_rule_runs_compiled_and_may_change(name, passes_run):
    op, x, w, bias, options = operands(name, torch.float64)
    product = Own(1.5)
    y = op(x, w, bias, **options, product=product)
    grad = torch.randn_like(y)
    first, expected = both_gradients(y, (x, w), grad)
    assert any(run.startswith("split") for run in passes_run)
    assert_equal_to_rounding(first, expected, torch.float64)
    product.limit = 1.2
    second, expected = both_gradients(y, (x, w), grad)
    assert_equal_to_rounding(second, expected, torch.float64)
    assert relative_error(second[1], first[1]) > 1e-3


class Inheriting(pr.products.PR):
    """A subclass of a frozen dataclass that is none itself, and so equal to all others of its kind."""

    elementwise = True

    def __init__(self, factor):
        object.__setattr__(self, "factor", factor)

    def gains(self, pair):
        return Gains(length=1.0, direction=self.factor * pair.inverse_sin)


def test_products_that_are_equal_for_what_they_inherit_are_not_taken_for_each_other():
    op, x, w, bias, options = operands("linear", torch.float64)
    assert Inheriting(1.0) == Inheriting(4.0)
    for factor in (1.0, 4.0):
        y = op(x, w, bias, **options, product=Inheriting(factor))
        got, expected = both_gradients(y, (x, w), torch.ones_like(y))
        assert_equal_to_rounding(got, expected, torch.float64)


@dataclass(frozen=True)
class OwnValue(Product):
    """Half of p where the angle is acute."""

    elementwise = True
    factor: float = 0.5

    def gains(self, pair: Pair) -> Gains:
        return Gains(1.0, pair.inverse_sin)

    def value(self, pair: Pair) -> torch.Tensor:
        return torch.where(pair.cos > 0.0, self.factor, 1.0)


def test_a_users_forward_runs_compiled_and_may_change_and_one_that_is_a_number_does_not(passes_run):
    x, w = torch.randn(5, 3), torch.randn(4, 3)
    p = x @ w.T
    assert torch.allclose(pr.functional.linear(x, w, product=OwnValue(0.25)), torch.where(p > 0, p / 4, p))
    assert "split_rows" in passes_run
    passes_run.clear()

    class Changing(Product):
        elementwise = True
        factor = 0.25

        def gains(self, pair: Pair) -> Gains:
            return Gains(1.0, 1.0)

        def value(self, pair: Pair) -> torch.Tensor:
            return self.factor * abs(pair.cos)

    changing = Changing()
    before = pr.functional.linear(x, w, product=changing)
    changing.factor = 0.5
    assert torch.allclose(pr.functional.linear(x, w, product=changing), 2 * before)
    passes_run.clear()

    class Doubled(Product):
        elementwise = True

        def gains(self, pair: Pair) -> Gains:
            return Gains(2.0, 2.0)

        def value(self, pair: Pair) -> float:
            return 2.0

    assert torch.allclose(pr.functional.linear(x, w, product=Doubled()), 2 * p)
    assert not passes_run


class WhereMethod(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin.where(pair.cos > 0.0, 1.0))


def test_where_as_a_method():
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias, product=WhereMethod())
    assert_equal_to_rounding(*both_gradients(y, (x, w), torch.randn_like(y)), torch.float64)


class Centred(Product):
    """What no list of elementwise operations can say."""

    elementwise = False

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin / pair.inverse_sin.mean())


class Branching(Product):
    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin if pair.cos.max() > 0 else 1.0)


class Scaled(Product):
    """By a tensor, whose value may change."""

    factor = torch.tensor(2.0, dtype=torch.float64)

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin * self.factor)


@pytest.mark.parametrize("product", [Centred(), Branching(), Scaled()])
def test_other_rules_run_in_plain_torch(product, passes_run):
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias, product=product)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert not any(run.startswith("split") for run in passes_run)
    assert_equal_to_rounding(got, expected, torch.float64)


class OnlyNorms(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.weight_norm)


class InPlace(Product):
    elementwise = True

    def gains(self, pair):
        direction = pair.inverse_sin * 1.0
        direction.clamp_(max=1.05)
        return Gains(1.0, direction)


class AsksForTheDtype(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin if pair.cos.dtype is torch.float64 else 1.0)


class AsksWhetherItIsATensor(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin if isinstance(pair.cos, torch.Tensor) else 1.0 + abs(pair.cos))


class AddsTruths(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin * ((pair.cos > -0.5) + (pair.cos > 0.0)))


@pytest.mark.parametrize(
    "kind", [Centred, Branching, Scaled, OnlyNorms, InPlace, AsksForTheDtype, AsksWhetherItIsATensor, AddsTruths]
)
def test_a_rule_that_only_says_it_is_elementwise_is_refused(kind, monkeypatch):
    monkeypatch.setattr(kind, "elementwise", True)
    op, x, w, bias, _ = operands("linear", torch.float64)
    with pytest.raises(TypeError, match="says that it is elementwise, but is not"):
        op(x, w, bias, product=kind()).sum().backward()


def test_the_promise_is_not_inherited():
    class Own(pr.products.PR):
        pass

    assert pr.products.PR.elementwise
    assert not Own.elementwise
