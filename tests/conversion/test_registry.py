"""Layer types of a user's own."""

import copy
import pickle

import pytest
import torch
from torch import nn

import prproduct as pr
from prproduct.conversion import registry


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(registry, "_BY_TYPE", dict(registry._BY_TYPE))
    monkeypatch.setattr(registry, "_BY_NAME", dict(registry._BY_NAME))


class Folded(nn.Module):
    """No relative of torch's layers: a weight of (heads, in, out)."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(2, 6, 3, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([x @ head for head in self.kernel])


class FoldedUnderProduct(pr.nn.ProductLayer):
    def forward(self, x):
        return torch.stack([pr.functional.linear(x, head.T, product=self.product) for head in self.kernel])


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * nn.functional.linear(x, self.weight, self.bias)


class DoubledUnderProduct(pr.nn.ProductLayer, Doubled):
    def forward(self, x):
        return 2 * pr.functional.linear(x, self.weight, self.bias, product=self.product)


class NamedDoubled(Doubled):
    """A subclass of a registered type."""


@pytest.mark.parametrize("key", [Folded, f"{Folded.__module__}.Folded"], ids=["class", "name"])
def test_a_layer_of_ones_own_is_converted_and_reverted(key):
    layer, x = Folded(), torch.randn(4, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="no layer type that prproduct knows"):
        pr.convert(layer)
    pr.register(key)(FoldedUnderProduct)
    expected = layer(x)
    pr.convert(layer, "pr-w")
    assert repr(layer) == "Folded(product=pr-w)"
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    reference = layer.kernel.detach().clone().requires_grad_()
    sum(pr.reference.linear(x, head.T, product="pr-w").sum() for head in reference).backward()
    torch.testing.assert_close(layer.kernel.grad, reference.grad)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is type(layer)
    assert type(pr.revert(layer)) is Folded


def test_a_rule_may_derive_from_the_layer():
    pr.register(Doubled)(DoubledUnderProduct)
    layer = pr.convert(Doubled(3, 2))
    assert type(layer) is DoubledUnderProduct
    assert type(pr.revert(layer)) is Doubled


def test_a_rule_serves_subclasses_that_keep_the_forward():
    pr.register(Doubled)(DoubledUnderProduct)
    layer, x = NamedDoubled(3, 2), torch.randn(4, 3)
    expected = layer(x)
    pr.convert(layer)
    assert isinstance(layer, NamedDoubled)
    assert torch.equal(layer(x), expected)
    assert type(pr.revert(layer)) is NamedDoubled


def test_what_cannot_be_registered_is_refused_at_once():
    with pytest.raises(TypeError, match="register takes a torch"):
        pr.register(nn.Linear(2, 2))
    for known in (nn.Linear, "torch.nn.modules.conv.Conv2d"):
        with pytest.raises(ValueError, match=r"has a class for .* already"):
            pr.register(known)
    with pytest.raises(ValueError, match=r"a full name such as 'package\.module\.Folded'"):
        pr.register("Folded")
    with pytest.raises(TypeError, match=r"must derive from prproduct\.nn\.ProductLayer"):
        pr.register(Folded)(nn.Linear)

    class NoForward(pr.nn.ProductLayer):
        pass

    with pytest.raises(TypeError, match="define forward"):
        pr.register(Folded)(NoForward)


def test_loading_a_pickle_without_its_registered_class_says_so():
    pr.register(Folded)(FoldedUnderProduct)
    saved = pickle.dumps(pr.convert(Folded()))
    del registry._BY_TYPE[Folded]
    with pytest.raises(TypeError, match=r"Folded was converted by a class that is not registered here"):
        pickle.loads(saved)
