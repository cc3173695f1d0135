"""A weight's gradient along and across its weight vectors: whose it is, and of which backward."""

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_found, parts_of, rows
from torch import nn
from torch.nn.utils import parametrizations

import prproduct as pr


def test_the_parts_of_a_gradient_lie_along_and_across_each_weight_vector():
    net = nn.Sequential(
        pr.nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(inplace=True), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.Flatten()
    ).double()
    net.append(nn.Linear(150, 3).double())
    with pr.AngleProbe(net) as probe:
        net(torch.randn(5, 2, 6, 6).double()).square().sum().backward()
        net[0].weight.grad, kept = None, net[0].weight.grad  # records hold no reference to it
    by_layer = {record.layer: record for record in probe.records}
    rows_of = {
        "0": lambda t: t.flatten(1),
        "2": lambda t: t.unflatten(0, (2, 2)).transpose(1, 2).flatten(0, 1).flatten(1),
        "4": lambda t: t,
    }
    net[0].weight.grad = kept
    for name, as_rows in rows_of.items():
        weight = net[int(name)].weight
        record = by_layer[name]
        length, direction = parts_of(as_rows(weight.grad), as_rows(weight.detach()))
        assert record.length_norm == pytest.approx(length, rel=1e-9)
        assert record.direction_norm == pytest.approx(direction, rel=1e-9)
        assert record.gradient_norm == pytest.approx(weight.grad.norm().item(), rel=1e-9)
        assert record.direction_share == pytest.approx(direction**2 / (length**2 + direction**2), rel=1e-9)


def test_pr_lengthens_the_direction_part_and_leaves_the_length_part():
    x, found = torch.randn(1, 6).double(), {}
    for product in ("p", "pr"):
        torch.manual_seed(1)
        layer = pr.nn.Linear(6, 1, product=product).double()
        with pr.AngleProbe(layer) as probe:
            layer(x).sum().backward()
        (found[product],) = probe.records
    assert found["pr"].length_norm == pytest.approx(found["p"].length_norm, rel=1e-9)
    assert found["pr"].direction_norm == pytest.approx(x.norm().item(), rel=1e-9)
    assert found["p"].direction_norm == pytest.approx(x.norm().item() * found["p"].min_sin, rel=1e-9)


def test_gradients_are_those_of_one_backward_not_of_what_had_accumulated():
    layer, x = nn.Linear(4, 3).double(), torch.randn(5, 4).double()
    with pr.AngleProbe(layer) as probe:
        for _ in range(3):
            layer(x).sum().backward()  # without zero_grad
    norms = [record.gradient_norm for record in probe.records]
    assert norms == [pytest.approx(layer.weight.grad.norm().item() / 3, rel=1e-9)] * 3


def test_parts_of_attention_and_of_a_recurrent_layer_each_have_their_gradient():
    layer = nn.MultiheadAttention(4, 2).double()
    with pr.AngleProbe(layer) as probe:
        x = torch.randn(3, 2, 4).double()
        layer(x, x, x)[0].square().sum().backward()
    blocks = zip(layer.in_proj_weight.grad.chunk(3), layer.in_proj_weight.detach().chunk(3), strict=True)
    expected = [parts_of(*block) for block in blocks] + [parts_of(layer.out_proj.weight.grad, layer.out_proj.weight)]
    assert [(r.length_norm, r.direction_norm) for r in probe.records] == [pytest.approx(e, rel=1e-8) for e in expected]
    lstm = pr.nn.LSTM(3, 4, bidirectional=True).double()
    with pr.AngleProbe(lstm) as probe:
        lstm(torch.randn(5, 2, 3).double())[0].square().sum().backward()
    for record in probe.records:
        weight = getattr(lstm, record.part.replace("input", "weight_ih").replace("hidden", "weight_hh"))
        assert record.gradient_norm == pytest.approx(weight.grad.norm().item(), rel=1e-9)


def test_without_backward_or_for_a_frozen_weight_there_is_no_gradient():
    net = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1))
    with pr.AngleProbe(net) as probe:
        net(torch.ones(1, 3)).sum().backward()
        net(torch.ones(1, 3))
    has = [(record.step, record.layer, record.direction_norm is not None) for record in probe.records]
    assert has == [(0, "0", False), (0, "1", True), (1, "0", False), (1, "1", False)]
    assert probe.records[0].gradient_norm is None
    assert probe.records[0].direction_share is None


def test_a_computed_weight_is_read_once_and_its_gradient_is_summed_over_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = parametrizations.weight_norm(nn.Linear(4, 4).double())

        def forward(self, x):
            return self.layer(self.layer(x))

    net, x = Twice(), torch.randn(5, 4).double()
    with pr.AngleProbe(net) as probe:
        net(x).square().sum().backward()
    (record,) = probe.records
    weight = net.layer.weight.detach().requires_grad_()
    bias = net.layer.bias.detach()
    hidden = F.linear(x, weight, bias)
    F.linear(hidden, weight, bias).square().sum().backward()
    assert (record.calls, record.pairs) == (2, 40)
    assert_found(record, rows(weight.detach(), torch.cat([x, hidden.detach()])))
    assert (record.length_norm, record.direction_norm) == pytest.approx(parts_of(weight.grad, weight), rel=1e-8)


@pytest.mark.parametrize("wrapped", [False, True], ids=["parameter", "computed"])
def test_of_several_backwards_in_a_step_the_last_counts(wrapped):
    layer, x = nn.Linear(4, 3).double(), torch.randn(4, 5, 4).double()
    layer = parametrizations.weight_norm(layer) if wrapped else layer
    weight, bias = layer.weight.detach().requires_grad_(), layer.bias.detach()
    with pr.AngleProbe(layer, forwards_per_step=4) as probe:
        layer(x[0]).square().sum().backward()
        layer(x[1])  # without backward
        loss = layer(x[2]).square().sum() + layer(x[3]).square().sum()
        loss.backward(retain_graph=True)
        (3 * loss).backward()
    (3 * sum(F.linear(data, weight, bias).square().sum() for data in x[2:])).backward()
    (record,) = probe.records
    assert (record.length_norm, record.direction_norm) == pytest.approx(parts_of(weight.grad, weight), rel=1e-8)


def test_computed_weights_that_come_and_go_are_not_taken_for_one_another():
    layer, x = parametrizations.weight_norm(nn.Linear(4, 3).double()), torch.randn(30, 5, 4).double()
    weight, bias = layer.weight.detach().requires_grad_(), layer.bias.detach()
    with pr.AngleProbe(layer, forwards_per_step=len(x)) as probe:
        for data in x:
            layer(data).square().sum().backward()  # and the weight is gone
            expected = torch.autograd.grad(F.linear(data, weight, bias).square().sum(), weight)[0]
            (record,) = probe.records
            assert record.gradient_norm == pytest.approx(expected.norm().item(), rel=1e-8)
