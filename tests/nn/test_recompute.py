"""memory="recompute": the same gradients, and no output kept for backward."""

import copy

import pytest
import torch
from compare import relative_error

import prproduct as pr

pytestmark = pytest.mark.usefixtures("device")

LAYERS = {
    "Linear": (lambda **keywords: pr.nn.Linear(5, 4, **keywords), (6, 5)),
    "Conv2d": (lambda **keywords: pr.nn.Conv2d(3, 4, 3, padding=1, **keywords), (2, 3, 6, 6)),
    "ConvTranspose1d": (lambda **keywords: pr.nn.ConvTranspose1d(3, 4, 3, **keywords), (2, 3, 6)),
    "LSTMCell": (lambda **keywords: pr.nn.LSTMCell(5, 4, **keywords), (6, 5)),
    "MultiheadAttention": (lambda **keywords: pr.nn.MultiheadAttention(4, 2, **keywords), (3, 2, 4)),
}


def run(layer, x):
    output = layer(x, x, x) if isinstance(layer, torch.nn.MultiheadAttention) else layer(x)
    return output[0] if isinstance(output, tuple) else output


def kept_outputs(layer, x):
    """How many tensors forward keeps beside the input and the parameters."""
    known = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}
    kept = set()

    def pack(t):
        kept.add(t.untyped_storage().data_ptr())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = run(layer, x)
    assert output.requires_grad
    return len(kept - known)


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradients_are_the_same(name):
    make, shape = LAYERS[name]
    saving = make(memory="save").double()
    recomputing = make(memory="recompute").double()
    recomputing.load_state_dict(saving.state_dict())
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    gradients = []
    for layer in (saving, recomputing):
        output = run(layer, x)
        gradients.append(torch.autograd.grad(output, (x, *layer.parameters()), torch.ones_like(output)))
    for one, other in zip(*gradients, strict=True):
        assert relative_error(one, other) <= 1e-13


@pytest.mark.parametrize("name", LAYERS)
def test_fewer_tensors_are_kept(name):
    make, shape = LAYERS[name]
    x = torch.randn(shape, requires_grad=True)
    assert kept_outputs(make(memory="recompute"), x) < kept_outputs(make(memory="save"), x)


def test_a_linear_layer_keeps_nothing_more_than_natively():
    x = torch.randn(6, 5, requires_grad=True)
    assert kept_outputs(pr.nn.Linear(5, 4, memory="recompute"), x) == 0


def test_under_torch_compile_too():
    layer = pr.nn.Linear(5, 4, memory="recompute")
    x = torch.randn(6, 5)
    layer(x).square().sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    torch.compile(layer, backend="aot_eager", fullgraph=True)(x).square().sum().backward()
    assert relative_error(layer.weight.grad, expected) <= 1e-6


def test_convert_takes_it_shows_it_and_gives_it_back():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    before = repr(model)
    pr.convert(model, memory="recompute")
    assert repr(model[0]) == "Linear(in_features=8, out_features=16, bias=True, product=pr, memory=recompute)"
    assert repr(copy.deepcopy(model)) == repr(model)
    assert kept_outputs(model[0], torch.randn(3, 8)) == 0
    pr.convert(model, memory="save")
    assert repr(model[0]) == "Linear(in_features=8, out_features=16, bias=True, product=pr)"
    assert repr(pr.revert(pr.convert(model, memory="recompute"))) == before
    assert not vars(model[0]).keys() & {"product", "product_memory"}


@pytest.mark.parametrize(
    "use",
    [
        lambda: pr.nn.Linear(2, 2, memory="little"),
        lambda: pr.convert(torch.nn.Linear(2, 2), memory="little"),
        lambda: pr.functional.linear(torch.ones(2, 2), torch.ones(2, 2), memory="little"),
    ],
)
def test_anything_else_is_refused(use):
    with pytest.raises(ValueError, match="memory='little': use 'save' or 'recompute'"):
        use()
