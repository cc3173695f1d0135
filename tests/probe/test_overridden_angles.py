"""Layers with a forward of their own: read at the product itself, whatever they do before and after it."""

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_found, pixels, probed, rows
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import prproduct as pr


@pytest.mark.parametrize("product", ["r", "pr"])
def test_the_output_stands_for_p_only_where_it_is_p(product):
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    x = torch.randn(5, 6).double()
    for layer in (pr.nn.Linear(6, 4, product=product).double(), Doubled(6, 4).double()):
        assert_found(probed(layer, x)[type(layer).__name__], rows(layer.weight, x))


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


def normalised(x: Tensor) -> Tensor:
    return F.normalize(x - x.mean(-1, keepdim=True))


class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(normalised(x))


class Scaled(Centred):
    def forward(self, x):
        return 2 * super().forward(x**2)


class Last(nn.LSTM):
    def forward(self, x):
        return super().forward(x.flip(0))[0]


@pytest.mark.parametrize("converted", [False, True])
def test_a_subclass_is_read_where_it_calls_super_forward(converted):
    net = nn.Sequential(Centred(4, 4), Scaled(4, 3), parametrizations.weight_norm(Centred(3, 3)), Last(3, 2)).double()
    net = pr.convert(net) if converted else net
    classes, x = [type(layer) for layer in net], torch.randn(50, 4).double() + 3
    expected = net(x)
    with pr.AngleProbe(net) as probe, pr.AngleProbe(net) as other:
        output = net(x)
        output.sum().backward()
    assert torch.equal(output, expected)
    assert [type(layer) for layer in net] == classes
    assert [(r.layer, r.calls) for r in probe.records] == [("0", 1), ("1", 1), ("2", 1), ("3", 1), ("3", 1)]
    assert (probe.records, probe.skipped) == (other.records, {})
    hidden = net[0](x)
    assert_found(probe.records[0], rows(net[0].weight, normalised(x)))
    assert_found(probe.records[1], rows(net[1].weight, normalised(hidden**2)))
    assert_found(probe.records[2], rows(net[2].weight, normalised(net[1](hidden))))
    assert_found(probe.records[3], rows(net[3].weight_ih_l0, net[2](net[1](hidden)).flip(0)))
    assert probe.records[0].gradient_norm == pytest.approx(net[0].weight.grad.norm().item())
    with pr.AngleProbe(net[0]) as probe:  # the layer itself is the model
        net[0](x)
    assert_found(probe.records[0], rows(net[0].weight, normalised(x)))
    assert type(net[0]) is classes[0]


def test_a_subclass_that_multiplies_by_itself_is_left_out_and_named():
    class Own(nn.Linear):
        def forward(self, x):
            return F.linear(x.abs(), self.weight)

    net = nn.Sequential(nn.Linear(3, 3), Own(3, 3))
    with pr.AngleProbe(net) as probe:
        net(torch.randn(2, 3))
    assert [record.layer for record in probe.records] == ["0"]
    assert probe.skipped == {"1": "Own.forward does not call super().forward"}


def test_the_output_projection_is_read_where_a_subclass_calls_it():
    class Own(nn.MultiheadAttention):
        def forward(self, x):
            q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            return self.out_proj((q @ k.mT).softmax(-1) @ v)

    net = nn.Sequential(Own(4, 2), nn.Linear(4, 4))
    with pr.AngleProbe(net) as probe:
        net(torch.randn(2, 3, 4))
    assert [record.layer for record in probe.records] == ["0.out_proj", "1"]
    assert probe.skipped == {"0": "Own.forward does not call super().forward"}


def test_a_subclass_has_its_class_back_after_a_forward_that_raised():
    net = nn.Sequential(Centred(4, 4))
    with pr.AngleProbe(net):
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        net(torch.ones(1, 4))
        assert type(net[0]) is Centred
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
    assert type(net[0]) is Centred
