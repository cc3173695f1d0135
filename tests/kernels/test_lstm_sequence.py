"""All steps of an LSTM at once: against steps on their own, plain torch, and torch's own LSTM."""

import pytest
import torch
from compare import relative_error
from kernel_cases import PRODUCTS, assert_equal_to_rounding, both_gradients
from torch import nn

import prproduct as pr
from prproduct import recurrence
from prproduct.kernels import compiled, lstm_sequence

CLOSED_FORM = [name for name in PRODUCTS if name != "r"]


@pytest.fixture
def unrolled(monkeypatch):
    """How often all steps were taken at once, and back."""
    calls = {"unroll": 0, "roll_up": 0}
    for name in calls:

        def counted(*arguments, name=name):
            calls[name] += 1
            return getattr(lstm_sequence, name)(*arguments)

        monkeypatch.setattr(recurrence, name, counted)
    return calls


def run(layer, x, grads):
    output, state = layer(x)
    return [output, *state], torch.autograd.grad((output, *state), (x, *layer.parameters()), grads)


def case(product="pr", steps=5, rows=3, columns=4, size=6, **options):
    torch.manual_seed(0)
    layer = pr.nn.LSTM(columns, size, product=product, **options)
    x = torch.randn(steps, rows, columns, requires_grad=True)
    output, state = layer(x)
    return layer, x, [torch.randn_like(t) for t in (output, *state)]


@pytest.mark.parametrize("product", CLOSED_FORM)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_equals_steps_on_their_own(product, bidirectional, count, unrolled, set_threads, monkeypatch):
    set_threads(count)
    layer, x, grads = case(product, bidirectional=bidirectional)
    unrolled.update(unroll=0, roll_up=0)
    results, gradients = run(layer, x, grads)
    assert unrolled == dict.fromkeys(unrolled, 1 + bidirectional)
    monkeypatch.setattr(recurrence, "serves_lstm", lambda *tensors: False)
    expected, expected_gradients = run(layer, x, grads)
    assert unrolled == dict.fromkeys(unrolled, 1 + bidirectional)
    for a, b in zip((*results, *gradients), (*expected, *expected_gradients), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("product", ["pr", "pr-w"])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [4, 4, 4], [6, 6, 2, 2, 1], [1], [7, 1]], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_sequences_of_any_lengths_equal_steps_on_their_own(product, lengths, count, unrolled, set_threads, monkeypatch):
    set_threads(count)
    torch.manual_seed(0)
    layer = pr.nn.LSTM(4, 6, num_layers=2, bidirectional=True, product=product)
    x = torch.randn(max(lengths), len(lengths), 4, requires_grad=True)
    first = tuple(torch.randn(4, len(lengths), 6, requires_grad=True) for _ in range(2))

    def results():
        output, state = layer(nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths)), first)
        loss = output.data.square().sum() + sum((k + 1.5) * s.pow(3).sum() for k, s in enumerate(state))
        return [output.data, *state, *torch.autograd.grad(loss, (x, *first, *layer.parameters()))]

    got = results()
    assert unrolled == {"unroll": 4, "roll_up": 4}
    monkeypatch.setattr(recurrence, "serves_lstm", lambda *tensors: False)
    for a, b in zip(got, results(), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("product", CLOSED_FORM)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_way_back_in_plain_torch_takes_what_was_left(product, bidirectional, unrolled):
    layer, x, grads = case(product, bidirectional=bidirectional)
    unrolled.update(unroll=0, roll_up=0)
    output = layer(x)[0]
    got, expected = both_gradients(output, (x, *layer.parameters()), grads[0])
    assert unrolled == {"unroll": 1 + bidirectional, "roll_up": 1 + bidirectional}
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("large", [0, 2**20])  # which factor comes first in steps' products
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 4, 3, 2), (7, 1, 2, 3), (3, 5, 4, 130)])
def test_the_states_are_those_of_torchs_lstm(shape, large, unrolled, monkeypatch):
    monkeypatch.setattr(lstm_sequence, "_LARGE", large)
    layer, x, _ = case("pr", *shape, num_layers=2, bidirectional=True)
    native = nn.LSTM(shape[2], shape[3], num_layers=2, bidirectional=True)
    native.load_state_dict(layer.state_dict())
    state = tuple(torch.randn(4, shape[1], shape[3]) for _ in range(2))
    unrolled.update(unroll=0)
    got, expected = layer(x, state), native(x, state)
    assert unrolled["unroll"] == 4
    for a, b in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        assert relative_error(a, b) <= 1e-5


def test_products_of_either_order_give_the_same_gradients(monkeypatch):
    layer, x, grads = case()
    one = run(layer, x, grads)[1]
    monkeypatch.setattr(lstm_sequence, "_LARGE", 0)
    other = run(layer, x, grads)[1]
    assert all(relative_error(a, b) <= 1e-5 for a, b in zip(one, other, strict=True))


def test_what_the_user_writes_into_is_the_users():
    layer, x, grads = case()
    expected = run(layer, x, grads)[1]
    output, state = layer(x)
    for t in (output.data, *(s.data for s in state)):
        t.zero_()
    got = torch.autograd.grad((output, *state), (x, *layer.parameters()), grads)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("axis", range(2))
def test_gradients_may_be_expanded_or_lie_across(axis):
    layer, x, grads = case()
    output = layer(x)[0]
    across = grads[0].transpose(0, 2).contiguous().transpose(0, 2) if axis else torch.ones(()).expand(output.shape)
    got, expected = both_gradients(output, (x, *layer.parameters()), across)
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("kind", ["double", "projection", "switched off", "GRU"])
def test_others_take_steps_on_their_own(kind, unrolled):
    layer = {"projection": pr.nn.LSTM(3, 4, proj_size=2), "GRU": pr.nn.GRU(3, 4)}.get(kind, pr.nn.LSTM(3, 4))
    x = torch.randn(5, 2, 3)
    if kind == "double":
        layer, x = layer.double(), x.double()
    if kind == "switched off":
        with compiled.switched_off():
            layer(x)
    else:
        layer(x)
    assert unrolled["unroll"] == 0
