"""All steps of recurrent layers by the C++ kernels: against plain torch, and torch's own layers."""

import pytest
import torch
from compare import relative_error
from op_cases import PRODUCTS, assert_equal_to_rounding, both_gradients
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import prproduct as pr
from prproduct.ops import kernels

CLOSED_FORM = [name for name in PRODUCTS if name != "r"]
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
def test_equal_plain_torch(kind, product, bias, count, set_threads):
    set_threads(count)
    layer, x, grads = case(kind, product, bidirectional=True, bias=bias)
    results, gradients = run(layer, x, grads)
    with kernels.disabled():
        expected, expected_gradients = run(layer, x, grads)
    for a, b in zip((*results, *gradients), (*expected, *expected_gradients), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_equal_plain_torch_in_float64(kind):
    layer, x, _ = case(kind, "pr")
    layer, x = layer.double(), x.detach().double().requires_grad_()
    output = layer(x)[0]
    got, expected = both_gradients(output, (x, *layer.parameters()), torch.randn_like(output))
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("product", ["pr", "pr-w"])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [4, 4, 4], [6, 6, 2, 2, 1], [1], [7, 1], [3] * 20 + [1] * 3], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_any_lengths_equal_plain_torch(kind, product, lengths, set_threads):
    set_threads(2 if lengths == [5, 3, 1] else 1)  # two threads wait for each other most of the time
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
    with kernels.disabled():
        expected = results()
    for a, b in zip(got, expected, strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 4, 3, 2), (7, 1, 2, 3), (3, 5, 4, 130)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_those_of_torchs_own_layers(kind, shape):
    layer, x, _ = case(kind, "pr", *shape, num_layers=2, bidirectional=True)
    inner = pr.revert(make(kind, *shape[2:], num_layers=2, bidirectional=True))
    inner.load_state_dict(layer.state_dict())
    states = tuple(torch.randn(4, shape[1], shape[3]) for _ in range(1 + (kind == "LSTM")))
    state = states if kind == "LSTM" else states[0]
    for a, b in zip(outputs(layer, x, state), outputs(inner, x, state), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 30.0, 1e5, torch.inf, torch.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_gates_of_any_size_have_torchs_activations(kind, scale):
    """exp is computed by a polynomial: near 0, where it saturates, beyond, and for what is no number."""
    x = (torch.randn(1, 40, 4) * scale).requires_grad_()
    layer = make(kind, 4, 6)
    inner = pr.revert(make(kind, 4, 6))
    inner.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x)[0], inner(x)[0], rtol=1e-5, atol=3e-7, equal_nan=True)


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
def test_gradients_may_be_expanded_or_strided(kind, axis):
    layer, x, grads = case(kind)
    output = layer(x)[0]
    strided = grads[0].transpose(0, 2).contiguous().transpose(0, 2) if axis else torch.ones(()).expand(output.shape)
    got, expected = both_gradients(output, (x, *layer.parameters()), strided)
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda t: torch._neg_view(-t)])
def test_a_hook_may_change_the_dtype_of_what_an_lstm_saved(change):
    layer, x = pr.nn.LSTM(6, 16).double(), torch.randn(5, 8, 6, dtype=torch.float64)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), layer.weight_hh_l0)[0]
    with saved_tensors_hooks(lambda t: t, lambda t: change(t)):
        output = layer(x)[0]
    got = torch.autograd.grad(output.square().sum(), layer.weight_hh_l0)[0]
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("shorter", range(7, 11))  # gates and states; the others are inputs, whose shapes torch knows
def test_a_hook_that_loses_rows_is_refused(shorter):
    layer, x = pr.nn.LSTM(6, 16), torch.randn(5, 8, 6)
    count = iter(range(100))
    hooks = (lambda t: (next(count), t)), (lambda kept: kept[1][:3].clone() if kept[0] == shorter else kept[1])
    with saved_tensors_hooks(*hooks):
        output, _ = layer(x)
    with pytest.raises(RuntimeError, match=r"shape|rows"):
        output.sum().backward()
