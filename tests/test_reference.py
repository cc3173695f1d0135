"""The oracle itself: the literal equations against torch's forward, finite differences and torch's own LSTM."""

import pytest
import torch
import torch.nn.functional as F
from compare import NATIVE_FORWARD, assert_close, gradients

from prproduct import reference
from prproduct.products import resolve


@pytest.mark.parametrize("product", NATIVE_FORWARD)
def test_the_literal_value_is_the_inner_product(product):
    x, w, b = torch.randn(5, 6).double(), torch.randn(4, 6).double(), torch.randn(4).double()
    torch.testing.assert_close(reference.linear(x, w, b, product=product), F.linear(x, w, b))


def test_the_literal_convolutions_are_torchs():
    x = torch.randn(2, 4, 7, 6).double()
    w, flipped = torch.randn(6, 2, 3, 2).double(), torch.randn(4, 3, 3, 2).double()
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    torch.testing.assert_close(reference.conv2d(x, w, **options), F.conv2d(x, w, **options))
    options["output_padding"] = (1, 0)
    got = reference.conv_transpose2d(x, flipped, **options)
    torch.testing.assert_close(got, F.conv_transpose2d(x, flipped, **options))


def test_r_is_differentiated_honestly():
    x, w = torch.randn(3, 4).double().requires_grad_(), torch.randn(2, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: reference.linear(x, w, product="r"), (x, w))


@pytest.mark.parametrize("product", ["pr", "no-direction", "no-length", "no-direction-w"])
def test_the_surrogate_with_its_held_factors_frozen_is_differentiated_honestly(product):
    """The gradient at a point is the derivative, there, of the formula whose held factors keep that point's values."""
    x0, w0 = torch.randn(3, 4).double(), torch.randn(2, 4).double()
    lengths = x0.norm(dim=1, keepdim=True) * w0.norm(dim=1)
    cos = x0 @ w0.T / lengths
    sin = (1 - cos**2).sqrt()

    def frozen(x, w):
        now = x.norm(dim=1, keepdim=True) * w.norm(dim=1)
        unit = w / w.norm(dim=1, keepdim=True)
        held_unit = w0 / w0.norm(dim=1, keepdim=True)
        return {
            "pr": sin * (x @ w.T) + cos * (now - (now**2 - (x @ w.T) ** 2).sqrt()),
            "no-direction": now * cos,
            "no-length": x @ unit.T * w0.norm(dim=1),
            "no-direction-w": x @ held_unit.T * w.norm(dim=1),
        }[product]

    ones = torch.ones(3, 2).double()
    _, of_x, of_w = gradients(reference.linear, x0, w0, upstream=ones, product=product)
    step = 1e-6
    for tensor, gradient, call in ((x0, of_x, lambda t: frozen(t, w0)), (w0, of_w, lambda t: frozen(x0, t))):
        numeric = torch.zeros_like(tensor)
        for index in range(tensor.numel()):
            nudge = torch.zeros(tensor.numel()).double()
            nudge[index] = step
            nudge = nudge.view_as(tensor)
            numeric.view(-1)[index] = (call(tensor + nudge) - call(tensor - nudge)).sum() / (2 * step)
        torch.testing.assert_close(gradient, numeric, rtol=1e-6, atol=1e-8)


def test_the_literal_lstm_cell_is_torchs_under_p():
    cell = torch.nn.LSTMCell(3, 4).double()
    x, state = torch.randn(2, 3).double(), (torch.randn(2, 4).double(), torch.randn(2, 4).double())
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    for product in ("p", "pr"):
        for got, expected in zip(reference.lstm_cell(x, state, *weights, product=product), cell(x, state), strict=True):
            torch.testing.assert_close(got, expected)


def test_the_literal_lstm_cell_has_a_pr_fc_in_every_gate():
    x, h, c = torch.randn(2, 3).double(), torch.randn(2, 4).double(), torch.randn(2, 4).double()
    w_ih, w_hh = torch.randn(16, 3).double(), torch.randn(16, 4).double()

    def by_hand(x, h, c, w_ih, w_hh):
        pairs = zip(w_ih.chunk(4), w_hh.chunk(4), strict=True)
        gates = [reference.linear(x, of_x) + reference.linear(h, of_h) for of_x, of_h in pairs]
        i, f, g, o = gates[0].sigmoid(), gates[1].sigmoid(), gates[2].tanh(), gates[3].sigmoid()
        return o * (f * c + i * g).tanh()

    def cell(x, h, c, w_ih, w_hh):
        return reference.lstm_cell(x, (h, c), w_ih, w_hh)[0]

    tensors = (x, h, c, w_ih, w_hh)
    assert_close(gradients(cell, *tensors), gradients(by_hand, *tensors), 1e-13)


def test_tempered_has_the_power_that_it_has_without_a_number():
    x, w = torch.randn(3, 4).double(), torch.randn(2, 4).double()
    named = gradients(reference.linear, x, w, product=f"tempered:{resolve('tempered').power}")
    assert_close(gradients(reference.linear, x, w, product="tempered"), named, 0.0)


def test_an_unknown_product_is_refused():
    with pytest.raises(KeyError):
        reference.linear(torch.ones(1, 2), torch.ones(1, 2), product="q")
