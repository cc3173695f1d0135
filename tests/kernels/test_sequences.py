"""All steps of recurrent layers at once: against steps on their own, plain torch, and torch's own layers."""

import pytest
import torch
from compare import relative_error
from kernel_cases import PRODUCTS, assert_equal_to_rounding, both_gradients
from torch import nn

import prproduct as pr
from prproduct import recurrence
from prproduct.kernels import compiled, sequences

CLOSED_FORM = [name for name in PRODUCTS if name != "r"]


@pytest.fixture
def unrolled(monkeypatch):
    """How often all steps were taken at once, and back."""
    calls = {"unroll": 0, "roll_up": 0}
    for name in calls:

        def counted(*arguments, name=name):
            calls[name] += 1
            return getattr(sequences, name)(*arguments)

        monkeypatch.setattr(recurrence, name, counted)
    return calls


KINDS = ["LSTM", "GRU", "tanh", "relu"]


def make(kind, *sizes, **options):
    if kind in ("tanh", "relu"):
        return pr.nn.RNN(*sizes, nonlinearity=kind, **options)
    return getattr(pr.nn, kind)(*sizes, **options)


def outputs(layer, x, *state):
    output, last = layer(x, *state)
    return output, *(last if isinstance(last, tuple) else (last,))


def run(layer, x, grads):
    results = outputs(layer, x)
    return results, torch.autograd.grad(results, (x, *layer.parameters()), grads)


def case(kind="LSTM", product="pr", steps=5, rows=3, columns=4, size=6, **options):
    torch.manual_seed(0)
    layer = make(kind, columns, size, product=product, **options)
    x = torch.randn(steps, rows, columns, requires_grad=True)
    return layer, x, [torch.randn_like(t) for t in outputs(layer, x)]


@pytest.mark.parametrize("product", CLOSED_FORM)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_steps_on_their_own(kind, product, bias, count, unrolled, set_threads, monkeypatch):
    set_threads(count)
    bidirectional = True
    layer, x, grads = case(kind, product, bidirectional=bidirectional, bias=bias)
    unrolled.update(unroll=0, roll_up=0)
    results, gradients = run(layer, x, grads)
    assert unrolled == dict.fromkeys(unrolled, 1 + bidirectional)
    monkeypatch.setattr(recurrence, "serves_steps", lambda *tensors: False)
    expected, expected_gradients = run(layer, x, grads)
    assert unrolled == dict.fromkeys(unrolled, 1 + bidirectional)
    for a, b in zip((*results, *gradients), (*expected, *expected_gradients), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("product", ["pr", "no-direction", "pr-w"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_where_torchs_blas_is_not_found_torch_multiplies(kind, product, bias, unrolled, set_threads, monkeypatch):
    set_threads(2)
    layer, x, grads = case(kind, product, bidirectional=True, bias=bias)
    results, gradients = run(layer, x, grads)
    monkeypatch.setattr(sequences, "passes_multiply", lambda: False)
    expected, expected_gradients = run(layer, x, grads)
    assert unrolled["unroll"] == 6  # and one for the shapes
    for a, b in zip((*results, *gradients), (*expected, *expected_gradients), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("product", ["pr", "pr-w"])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [4, 4, 4], [6, 6, 2, 2, 1], [1], [7, 1]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_any_lengths_equal_steps_on_their_own(kind, product, lengths, unrolled, set_threads, monkeypatch):
    set_threads(2)
    torch.manual_seed(0)
    layer = make(kind, 4, 6, num_layers=2, bidirectional=True, product=product)
    x = torch.randn(max(lengths), len(lengths), 4, requires_grad=True)
    states = [torch.randn(4, len(lengths), 6, requires_grad=True) for _ in range(1 + (kind == "LSTM"))]
    first = tuple(states) if kind == "LSTM" else states[0]

    def results():
        output, *state = outputs(layer, nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths)), first)
        loss = output.data.square().sum() + sum((k + 1.5) * s.pow(3).sum() for k, s in enumerate(state))
        return [output.data, *state, *torch.autograd.grad(loss, (x, *states, *layer.parameters()))]

    got = results()
    assert unrolled == {"unroll": 4, "roll_up": 4}
    monkeypatch.setattr(recurrence, "serves_steps", lambda *tensors: False)
    for a, b in zip(got, results(), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("product", CLOSED_FORM)
@pytest.mark.parametrize("kind", KINDS)
def test_the_way_back_in_plain_torch_takes_what_was_left(kind, product, unrolled):
    layer, x, grads = case(kind, product, bidirectional=True)
    unrolled.update(unroll=0, roll_up=0)
    output = layer(x)[0]
    got, expected = both_gradients(output, (x, *layer.parameters()), grads[0])
    assert unrolled == {"unroll": 2, "roll_up": 2}
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("large", [0, 2**20])  # which factor comes first in steps' products
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 4, 3, 2), (7, 1, 2, 3), (3, 5, 4, 130)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_those_of_torchs_own_layers(kind, shape, large, unrolled, monkeypatch):
    monkeypatch.setattr(sequences, "_LARGE", large)
    layer, x, _ = case(kind, "pr", *shape, num_layers=2, bidirectional=True)
    native = pr.revert(make(kind, *shape[2:], num_layers=2, bidirectional=True))
    native.load_state_dict(layer.state_dict())
    states = tuple(torch.randn(4, shape[1], shape[3]) for _ in range(1 + (kind == "LSTM")))
    state = states if kind == "LSTM" else states[0]
    unrolled.update(unroll=0)
    got, expected = outputs(layer, x, state), outputs(native, x, state)
    assert unrolled["unroll"] == 4
    for a, b in zip(got, expected, strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_either_order_give_the_same_gradients(kind, monkeypatch):
    layer, x, grads = case(kind)
    one = run(layer, x, grads)[1]
    monkeypatch.setattr(sequences, "_LARGE", 0)
    other = run(layer, x, grads)[1]
    assert all(relative_error(a, b) <= 1e-5 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_user_writes_into_is_the_users(kind):
    layer, x, grads = case(kind)
    expected = run(layer, x, grads)[1]
    results = outputs(layer, x)
    for t in results:
        t.mul_(2.0)
    got = torch.autograd.grad(results, (x, *layer.parameters()), [grad / 2 for grad in grads])
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("axis", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_may_be_expanded_or_lie_across(kind, axis):
    layer, x, grads = case(kind)
    output = layer(x)[0]
    across = grads[0].transpose(0, 2).contiguous().transpose(0, 2) if axis else torch.ones(()).expand(output.shape)
    got, expected = both_gradients(output, (x, *layer.parameters()), across)
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("kind", ["double", "projection", "switched off"])
def test_others_take_steps_on_their_own(kind, unrolled):
    layer = pr.nn.LSTM(3, 4, proj_size=2 if kind == "projection" else 0)
    x = torch.randn(5, 2, 3)
    if kind == "double":
        layer, x = layer.double(), x.double()
    if kind == "switched off":
        with compiled.switched_off():
            layer(x)
    else:
        layer(x)
    assert unrolled["unroll"] == 0
