"""Recurrent layers and cells against torch's own, against the paper's PR-LSTM and a literal PR-GRU, step by step."""

import copy
import pickle

import pytest
import torch
from compare import NATIVE_FORWARD, PRODUCTS, Through, assert_close, relative_error
from recurrent_twins import KINDS, build, first_state, run, sequence, tensors
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prproduct as pr
from prproduct import reference
from prproduct.ops.recurrence import Recurrence

pytestmark = pytest.mark.usefixtures("device")

OPTIONS = [
    {},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True},
    {"bidirectional": True, "batch_first": True, "bias": False},
]


def literal_lstm(x, state, w_ih, w_hh, b_ih, b_hh, product):
    return reference.lstm_cell(x, state, w_ih, w_hh, b_ih, b_hh, product=product)


def literal_gru(x, state, w_ih, w_hh, b_ih, b_hh, product):
    (h,) = state
    of_input = [reference.linear(x, w, b, product=product) for w, b in zip(w_ih.chunk(3), b_ih.chunk(3), strict=True)]
    of_hidden = [reference.linear(h, w, b, product=product) for w, b in zip(w_hh.chunk(3), b_hh.chunk(3), strict=True)]
    r, z = ((i + j).sigmoid() for i, j in zip(of_input[:2], of_hidden[:2], strict=True))
    n = (of_input[2] + r * of_hidden[2]).tanh()
    return ((1 - z) * n + z * h,)


def literal_rnn(x, state, w_ih, w_hh, b_ih, b_hh, product):
    gates = reference.linear(x, w_ih, b_ih, product=product) + reference.linear(state[0], w_hh, b_hh, product=product)
    return (gates.tanh(),)


LITERAL = {"LSTM": literal_lstm, "GRU": literal_gru, "RNN": literal_rnn}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_the_literal_equations_step_by_step(kind, product):
    """Every gate's input product and hidden product is a PR-FC, the biases outside."""
    _, ours = build(kind, product)
    x = sequence({})

    class Literal(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(p.detach().clone() for p in ours.parameters())

        def forward(self, x, hx):
            state = tuple(s[0] for s in (hx if isinstance(hx, tuple) else (hx,)))
            outputs = []
            for step in x:
                state = LITERAL[kind](step, state, *self.weights, product)
                outputs.append(state[0])
            last = tuple(s[None] for s in state)
            return torch.stack(outputs), last

    state = first_state(ours, (3,))
    assert_close(run(ours, x, state), run(Literal(), x, state), 1e-11)


@pytest.mark.parametrize("product", [*PRODUCTS, Through()], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_closed_form_equals_autograd_step_by_step(kind, options, product, monkeypatch):
    native, ours = build(kind, product, **options)
    x, state = sequence(options), first_state(ours, (3,))
    got = run(ours, x, state)
    if str(product) != "r":
        count = 3 if kind == "LSTM" else 2
        assert_close(got[:count], run(native, x, state)[:count], 1e-12)
    if str(product) in ("p", "through"):
        assert_close(got, run(native, x, state), 1e-12)
    monkeypatch.setattr(Recurrence, "__call__", Recurrence.unrolled)
    assert_close(got, run(ours, x, state), 1e-12)


@pytest.mark.parametrize("lengths", [[5, 3, 2], [2, 5, 4], [1, 1, 1], [5, 5, 5]], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("product", ["pr", "r", Through()], ids=str)
def test_packed_sequences(kind, options, lengths, product, monkeypatch):
    """Sorted and unsorted, with and without a state; torch's own result for p, and step by step for the rest."""
    native, ours = build(kind, product, **options)

    def wrap(x):
        first = options.get("batch_first", False)
        return pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=lengths == sorted(lengths)[::-1])

    x = sequence(options)
    for state in (None, first_state(ours, (3,))):
        got = run(ours, x, state, wrap)
        if str(product) == "through":
            assert_close(got, run(native, x, state, wrap), 1e-12)
        with monkeypatch.context() as patch:
            patch.setattr(Recurrence, "__call__", Recurrence.unrolled)
            assert_close(got, run(ours, x, state, wrap), 1e-12)
    output, _ = ours(wrap(x))
    assert torch.equal(pad_packed_sequence(output)[1], torch.tensor(lengths))


def test_each_packed_sequence_is_as_if_it_came_alone():
    _, ours = build("LSTM", num_layers=2, bidirectional=True)
    x, lengths = sequence({}), [2, 5, 4]
    output, (h, c) = ours(pack_padded_sequence(x, lengths, enforce_sorted=False))
    padded, _ = pad_packed_sequence(output)
    for number, length in enumerate(lengths):
        alone, (h_alone, c_alone) = ours(x[:length, number])
        torch.testing.assert_close(padded[:length, number], alone)
        torch.testing.assert_close(h[:, number], h_alone)
        torch.testing.assert_close(c[:, number], c_alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_unbatched_default_state_and_empty_batch(kind, options):
    native, ours = build(kind, Through(), **options)
    single = torch.randn(5, 3).double()
    assert_close(run(ours, single), run(native, single), 1e-12)
    state = first_state(ours, ())
    assert_close(run(ours, single, state), run(native, single, state), 1e-12)
    x = sequence(options)
    assert_close(run(ours, x), run(native, x), 1e-12)
    empty = sequence(options, batch=0)
    got = run(ours, empty)
    assert got[0].shape == native(empty)[0].shape
    assert all(t.isfinite().all() for t in got)


def test_projections_are_under_the_product_too():
    for options in ({"proj_size": 2}, {"proj_size": 2, "num_layers": 2, "bidirectional": True}):
        native, ours = build("LSTM", Through(), **options)
        x, state = sequence({}), first_state(native, (3,))
        assert_close(run(ours, x, state), run(native, x, state), 1e-12)
        _, changed = build("LSTM", "pr", **options)
        plain, other = run(ours, x, state), run(changed, x, state)
        assert_close(other[:3], plain[:3], 1e-12)
        projections = [number for number, (name, _) in enumerate(ours.named_parameters()) if "weight_hr" in name]
        for number in projections:
            position = len(plain) - len(list(ours.parameters())) + number
            assert not torch.allclose(plain[position], other[position])


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_draws_torchs_masks(kind):
    options = {"num_layers": 3, "dropout": 0.4}
    native, ours = build(kind, Through(), **options)
    x = sequence(options)
    results = []
    for layer in (ours, native):
        torch.manual_seed(7)
        results.append(run(layer, x))
    assert_close(*results, 1e-12)
    assert_close(run(ours.eval(), x), run(native.eval(), x), 1e-12)


@pytest.mark.parametrize("product", NATIVE_FORWARD)
@pytest.mark.parametrize("kind", [*KINDS, "LSTMCell", "GRUCell", "RNNCell"])
def test_forward_is_torchs_and_without_gradients_it_is_the_native_layer(kind, product):
    native, ours = build(kind, product)
    native, ours = native.float(), ours.float()
    x = torch.randn(2, 3) if "Cell" in kind else torch.randn(6, 2, 3)
    assert_close(tensors(ours(x)), tensors(native(x)), 1e-6)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert all(torch.equal(a, b) for a, b in zip(tensors(ours(x)), tensors(native(x)), strict=True))


@pytest.mark.parametrize("kind", [*KINDS, "LSTMCell", "GRUCell", "RNNCell"])
def test_is_the_torch_layer_with_a_product(kind):
    native, ours = build(kind)
    assert isinstance(ours, type(native))
    assert list(ours.state_dict()) == list(native.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), native.parameters(), strict=True))
    assert not any(ours.load_state_dict(native.state_dict(), strict=True))
    assert not any(native.load_state_dict(ours.state_dict(), strict=True))
    assert repr(ours) == f"{repr(native)[:-1]}, product=pr)"
    x = torch.randn(2, 3).double()
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert twin.product == ours.product
        assert_close(tensors(twin(x)), tensors(ours(x)), 0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("product", ["p", "pr", "r", Through()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_one_step_of_its_layer(kind, product, bias):
    native, cell = build(f"{kind}Cell", product, bias=bias)
    _, layer = build(kind, product, bias=bias)
    layer.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    x = torch.randn(2, 3).double()
    state = tuple(torch.randn(2, 4).double() for _ in range(2)) if kind == "LSTM" else torch.randn(2, 4).double()
    wide = tuple(s[None] for s in state) if kind == "LSTM" else state[None]
    of_cell, of_layer = run(cell, x, state), run(layer, x[None], wide)
    states = len(tensors(state))
    # A layer's outputs are its hidden states and then the last state; a cell's are the last state alone.
    assert_close(of_cell[:states], [t[0] for t in of_layer[1 : 1 + states]], 1e-13)
    with torch.no_grad():
        assert_close(tensors(cell(x[0])), [t[0] for t in tensors(cell(x[:1]))], 1e-13)
    if str(product) in ("p", "through"):
        assert_close(of_cell, run(native, x, state), 1e-12)
        assert_close(run(cell, x[0]), run(native, x[0]), 1e-12)
        assert_close(run(cell, x[:0]), run(native, x[:0]), 1e-12)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", KINDS)
def test_cells_equal_the_literal_equations(kind, product):
    _, cell = build(f"{kind}Cell", product)
    state = tuple(torch.randn(2, 4).double() for _ in range(2)) if kind == "LSTM" else torch.randn(2, 4).double()

    class Literal(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(p.detach().clone() for p in cell.parameters())

        def forward(self, x, hx):
            return LITERAL[kind](x, hx if isinstance(hx, tuple) else (hx,), *self.weights, product)

    x = torch.randn(2, 3).double()
    assert_close(run(cell, x, state), run(Literal(), x, state), 1e-11)


def test_relu_rnns():
    native, ours = build("RNN", Through(), nonlinearity="relu", num_layers=2)
    x = sequence({})
    assert_close(run(ours, x), run(native, x), 1e-12)
    native, ours = build("RNNCell", Through(), nonlinearity="relu")
    assert_close(run(ours, x[0]), run(native, x[0]), 1e-12)


BAD = [
    ("LSTM", torch.ones(5, 3, 7), None),
    ("LSTM", torch.ones(5), None),
    ("LSTM", torch.ones(2, 5, 3, 3), None),
    ("LSTM", torch.ones(0, 2, 3), None),
    ("LSTM", torch.ones(5, 2, 3), (torch.ones(1, 3, 4), torch.ones(1, 2, 4))),
    ("LSTM", torch.ones(5, 2, 3), (torch.ones(1, 2, 4), torch.ones(1, 1, 4))),
    ("LSTM", torch.ones(5, 2, 3), (torch.ones(2, 4), torch.ones(2, 4))),
    ("LSTM", torch.ones(5, 3), (torch.ones(1, 1, 4), torch.ones(1, 1, 4))),
    ("GRU", torch.ones(5, 2, 3), torch.ones(1, 1, 4)),
    ("GRU", torch.ones(5, 2, 4), None),
    ("RNN", torch.ones(5, 2, 3), torch.ones(2, 2, 4)),
    ("RNN", torch.ones(5, 2, 3, dtype=torch.float64), None),
    ("LSTMCell", torch.ones(2, 4), None),
    ("LSTMCell", torch.ones(2, 3), (torch.ones(1, 4), torch.ones(1, 4))),
    ("GRUCell", torch.ones(2, 3), torch.ones(1, 4)),
    ("GRUCell", torch.ones(2, 2, 3), None),
    ("RNNCell", torch.ones(2, 3), torch.ones(2, 5)),
    ("LSTM", torch.ones(5, 2, 3), (torch.ones(1, 2, 4),) * 3),
    ("LSTM", torch.ones(5, 2, 3), torch.ones(1, 2, 4)),
    ("GRU", torch.ones(5, 2, 3), (torch.ones(1, 2, 4),)),
    ("GRU", torch.ones(5, 2, 3), [torch.ones(1, 2, 4)] * 2),
    ("LSTMCell", torch.ones(2, 3), (torch.ones(2, 4),) * 3),
    ("LSTMCell", torch.ones(2, 3), (torch.ones(2, 4),)),
    ("GRUCell", torch.ones(2, 3), (torch.ones(2, 4),)),
]


@pytest.mark.parametrize(("kind", "x", "state"), BAD)
@pytest.mark.parametrize("product", ["pr", "r"])
def test_bad_input_gets_torchs_own_error(kind, x, state, product):
    native, ours = (layer.float() for layer in build(kind, product))
    with pytest.raises((RuntimeError, ValueError, TypeError, AttributeError, IndexError, AssertionError)) as expected:
        native(x, state)
    with pytest.raises(expected.type) as got:
        ours(x, state)
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("product", ["r", "pr"])
def test_unbatched_cells_without_gradients(product):
    cell = pr.nn.LSTMCell(3, 4, product=product)
    x = torch.randn(3)
    with torch.no_grad():
        h, c = cell(x)
    expected = cell(x.unsqueeze(0))
    assert relative_error(h, expected[0][0]) <= 1e-6
    assert relative_error(c, expected[1][0]) <= 1e-6


@pytest.mark.parametrize(("rows", "sizes"), [(3001, [1, 3000]), (4, [2000] * 6), (10, [2, 2])], ids=str)
def test_batch_sizes_that_do_not_fit_are_refused(rows, sizes):
    packed = torch.nn.utils.rnn.PackedSequence(torch.randn(rows, 5), torch.tensor(sizes))
    with pytest.raises(ValueError, match=r"batch sizes \[.* do not fit: they must not grow"):
        pr.nn.LSTM(5, 64)(packed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
def test_parameters_of_other_shapes_are_refused(kind, name):
    layer = getattr(pr.nn, kind)(5, 64)
    setattr(layer, name, torch.nn.Parameter(getattr(layer, name).detach()[:10]))
    with pytest.raises(ValueError, match=r"the (input|hidden)-hidden (weight|bias) is \(10.*ask for"):
        layer(torch.randn(7, 40, 5))


def test_a_cell_of_an_unknown_nonlinearity_is_torchs_error():
    with pytest.raises(RuntimeError, match="Unknown nonlinearity: sigmoid"):
        pr.convert(nn.RNNCell(3, 4, nonlinearity="sigmoid"))(torch.ones(2, 3))
