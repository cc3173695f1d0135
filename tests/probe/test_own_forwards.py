"""Layers with a forward of their own are named and not measured; outputs that are p + bias are not computed again."""

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_found, pixels, probed, rows
from torch import nn
from torch.nn.utils import parametrizations

import prproduct as pr


@pytest.mark.parametrize("product", ["r", "pr"])
def test_the_output_stands_for_p_only_where_it_is_p(product):
    layer, x = pr.nn.Linear(6, 4, product=product).double(), torch.randn(5, 6).double()
    assert_found(probed(layer, x)["Linear"], rows(layer.weight, x))


def test_a_plain_layer_is_not_computed_again(monkeypatch):
    def refuse(*_):
        raise AssertionError("computed again")

    layer, x = nn.Linear(6, 4).double(), torch.randn(5, 6).double()
    monkeypatch.setattr("prproduct.ops.contractions.Linear.native", refuse)
    assert_found(probed(layer, x)["Linear"], rows(layer.weight, x))


def test_where_forward_was_replaced_on_the_instance_the_output_is_not_taken_for_p():
    x, image = torch.randn(5, 4).double(), torch.randn(2, 4, 3, 3).double()
    layer, conv = nn.Linear(4, 3).double(), nn.Conv2d(4, 3, 1).double()
    layer.forward = lambda x: 0.3 * F.linear(x, layer.weight)
    assert_found(probed(nn.Sequential(layer), x)["0"], rows(layer.weight, x))
    conv.forward = lambda x: 3 * F.conv2d(x, conv.weight)
    assert_found(probed(nn.Sequential(conv), image)["0"], pixels(conv.weight, image))


class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(-1, keepdim=True))


class Last(nn.LSTM):
    def forward(self, x):
        return super().forward(x.flip(0))[0]


class Named(nn.Linear):
    """Keeps torch's forward."""


class CentredProduct(Centred, pr.nn.Linear):
    """Its super().forward is the product's."""


class LastProduct(Last, pr.nn.LSTM):
    """Likewise."""


@pytest.mark.parametrize(("centred", "last"), [(Centred, Last), (CentredProduct, LastProduct)])
def test_a_layer_with_a_forward_of_its_own_is_left_out_and_named_and_computes_the_same(centred, last):
    layers = centred(4, 4), parametrizations.weight_norm(centred(4, 3)), Named(3, 3), last(3, 2), nn.LazyLinear(2)
    net = nn.Sequential(*layers, parametrizations.weight_norm(Named(2, 2))).double()
    x = torch.randn(50, 4).double()
    net(x)
    classes, expected = [type(layer) for layer in net], net(x)
    with pr.AngleProbe(net) as probe:
        output = net(x)
        output.sum().backward()
    assert torch.equal(output, expected)
    assert [type(layer) for layer in net] == classes
    assert [record.layer for record in probe.records] == ["2", "4", "5"]
    assert probe.skipped == {
        "0": f"{centred.__name__} has a forward of its own",
        "1": f"Parametrized{centred.__name__} has a forward of its own",
        "3": f"{last.__name__} has a forward of its own",
    }


def test_a_lazy_layer_is_measured_in_its_first_forward():
    for lazy in (nn.LazyLinear(2), pr.nn.LazyLinear(2)):
        assert probed(nn.Sequential(lazy.double()), torch.randn(5, 4).double()).keys() == {"0"}


def test_a_model_that_is_such_a_layer_is_named_in_a_warning():
    with pytest.warns(UserWarning, match=r"probe\.skipped\['Centred'\]: Centred has a forward of its own"):
        probed(Centred(4, 4), torch.randn(5, 4))


def test_the_output_projection_is_read_where_a_subclass_calls_it():
    class Own(nn.MultiheadAttention):
        def forward(self, x):
            q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            return self.out_proj((q @ k.mT).softmax(-1) @ v)

    net = nn.Sequential(Own(4, 2), nn.Linear(4, 4))
    with pr.AngleProbe(net) as probe:
        net(torch.randn(2, 3, 4))
    assert [record.layer for record in probe.records] == ["0.out_proj", "1"]
    assert probe.skipped == {"0": "Own has a forward of its own"}


@pytest.mark.parametrize(("arguments", "kind"), [((), "NoneType"), (([torch.ones(2, 4)],), "list")])
def test_a_replaced_forward_without_a_tensor_is_skipped_and_the_model_runs(arguments, kind):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].forward = lambda *arguments: torch.ones(2, 3)
    model.forward = lambda: model[1](model[0](*arguments))
    with pr.AngleProbe(model) as probe:
        model()
    assert [record.layer for record in probe.records] == ["1"]
    assert probe.skipped == {"0": f"an argument of type {kind} is not measured"}
