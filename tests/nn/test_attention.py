"""Attention against torch's own over all options, and its projections against the literal equations."""

import copy
import itertools
import math
import pickle
import warnings

import pytest
import torch
from compare import NATIVE_FORWARD, PRODUCTS, Through, assert_close
from torch import nn

import prproduct as pr
from prproduct import reference

pytestmark = pytest.mark.usefixtures("device")


def build(product="pr", **options) -> tuple[nn.MultiheadAttention, pr.nn.MultiheadAttention]:
    pair = []
    for library, extra in ((nn, {}), (pr.nn, {"product": product})):
        torch.manual_seed(2)
        pair.append(library.MultiheadAttention(8, 2, dtype=torch.float64, **options, **extra))
    for parameter, other in zip(pair[0].parameters(), pair[1].parameters(), strict=True):
        nn.init.normal_(parameter, std=0.5)  # torch starts the biases at 0
        other.data.copy_(parameter.data)
    return pair[0], pair[1]


def run(layer, query, key, value, **options):
    """Output, weights, and the gradients of the inputs and parameters."""
    leaves = {id(t): t.detach().clone().requires_grad_() for t in (query, key, value)}
    inputs = [leaves[id(t)] for t in (query, key, value)]
    output, weights = layer(*inputs, **options)
    loss = output.square().sum() + (0 if weights is None else weights.square().sum())
    wanted = [*leaves.values(), *layer.parameters()]
    return [output, *([] if weights is None else [weights]), *torch.autograd.grad(loss, wanted)]


def masks(kind: str | None, target: int, source: int, batch: int) -> torch.Tensor | None:
    """Masks that leave something to every query."""
    if kind is None:
        return None
    shape = {"pad": (batch, source), "two": (target, source), "three": (batch * 2, target, source)}[kind.split()[0]]
    if kind.endswith("float"):
        return torch.randn(shape).double()
    mask = torch.rand(shape) > 0.6
    mask[..., 0] = False
    return mask


OPTIONS = [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 5}]
SOURCES = [
    (source, options)
    for source in ("self", "memory", "three")
    for options in OPTIONS
    if source != "self" or "kdim" not in options  # self-attention knows one size only
]


@pytest.mark.parametrize(("source", "options"), SOURCES, ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
def test_every_option_gives_torchs_output_and_with_ps_gains_torchs_gradients(source, options, batch_first):
    native, ours = build(Through(), batch_first=batch_first, **options)
    query = torch.randn(3, 4, 8).double()
    key, value = query, query
    if source != "self":
        key = torch.randn(3, 5, options.get("kdim", 8)).double()
        alike = source == "memory" and "kdim" not in options
        value = key if alike else torch.randn(3, 5, options.get("vdim", 8)).double()
    length = key.shape[1]
    moved = {id(t): t if batch_first else t.transpose(0, 1) for t in (query, key, value)}
    batched = [moved[id(t)] for t in (query, key, value)]
    single = [t[0] for t in (query, key, value)] if source != "self" else [query[0]] * 3
    kinds = itertools.product((None, "pad", "pad float"), (None, "two", "two float", "three", "three float"))
    calls = [(batched, 3, True, True), (batched, 3, False, True), (single, 1, True, False)]
    for (padding, attention), (inputs, batch, need_weights, average) in itertools.product(kinds, calls):
        pad, mask = masks(padding, 4, length, batch), masks(attention, 4, length, batch)
        arguments = {
            "key_padding_mask": pad if pad is None or batch == 3 else pad[0],
            "attn_mask": mask,
            "need_weights": need_weights,
            "average_attn_weights": average,
        }
        with warnings.catch_warnings(action="ignore"):  # torch dislikes a bool beside a float mask
            expected = run(native, *inputs, **arguments)
        assert_close(run(ours, *inputs, **arguments), expected, 1e-11)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False, "add_zero_attn": True}, {"add_bias_kv": True}], ids=str)
def test_bits_memory_layout_and_random_numbers_are_torchs(batch_first, need_weights, options):
    query, other, third = torch.randn(5, 3, 16), torch.randn(5, 3, 16), torch.randn(5, 3, 16)
    length = 3 if batch_first else 5
    hints = [{}, {"attn_mask": nn.Transformer.generate_square_subsequent_mask(length), "is_causal": True}]
    hints.append({"key_padding_mask": torch.arange(length).expand(8 - length, -1) > 1})
    shapes = [(query,) * 3, (query, other, other), (query, query, other), (query, other, third), (query[0],) * 3]
    for inputs, hint in itertools.product(shapes, hints):
        if hint and inputs[0].dim() == 2:
            continue
        layer = nn.MultiheadAttention(16, 2, dropout=0.3, batch_first=batch_first, **options)
        results = []
        for _ in range(2):
            torch.manual_seed(1)
            results.append((*layer(*inputs, need_weights=need_weights, **hint), torch.rand(1)))
            pr.convert(layer)
        for got, expected in zip(results[1], results[0], strict=True):
            assert (got is None) == (expected is None)
            assert got is None or (torch.equal(got, expected) and got.stride() == expected.stride())


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 5}, {"bias": False}], ids=str)
def test_the_four_projections_equal_the_literal_equations(product, options):
    _, ours = build(product, batch_first=True, **options)
    query = torch.randn(2, 3, 8).double()
    key, value = torch.randn(2, 4, options.get("kdim", 8)).double(), torch.randn(2, 4, options.get("vdim", 8)).double()

    class Literal(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = copy.deepcopy(ours)

        def forward(self, query, key, value):
            layer = self.layer
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
            weights = layer.in_proj_weight.chunk(3) if weights[0] is None else weights
            biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
            q, k, v = (
                reference.linear(x, w, b, product=product).unflatten(-1, (2, 4)).transpose(1, 2)
                for x, w, b in zip((query, key, value), weights, biases, strict=True)
            )
            attention = (q @ k.mT / math.sqrt(4)).softmax(-1)
            joined = (attention @ v).transpose(1, 2).flatten(2)
            output = reference.linear(joined, layer.out_proj.weight, layer.out_proj.bias, product=product)
            return output, attention.mean(1)

    assert_close(run(ours, query, key, value), run(Literal(), query, key, value), 1e-10)


def test_self_attention_is_one_product_and_equals_three():
    _, ours = build(batch_first=True)
    x = torch.randn(2, 3, 8).double()
    joined, _ = ours(x, x, x)
    joined.square().sum().backward()
    grads = [p.grad.clone() for p in ours.parameters()]
    ours.zero_grad()
    apart, _ = ours(x, x.clone(), x.clone())
    apart.square().sum().backward()
    assert_close([joined, *grads], [apart, *(p.grad for p in ours.parameters())], 1e-12)


def test_dropout_drops_and_only_in_training():
    _, ours = build(dropout=0.5, batch_first=True)
    x = torch.randn(2, 3, 8).double()
    for need_weights in (True, False):
        assert not torch.equal(ours(x, x, x, need_weights=need_weights)[0], ours(x, x, x, need_weights=need_weights)[0])
    ours.eval()
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])


def test_a_causal_hint_needs_its_mask_and_changes_nothing():
    native, ours = build(batch_first=True)
    x = torch.randn(2, 4, 8).double()
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    for need_weights in (True, False):
        got, _ = ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)
        torch.testing.assert_close(got, native(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)[0])
    for layer in (native, ours):
        with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
            layer(x, x, x, is_causal=True)


def test_is_the_torch_layer_with_a_product():
    for options in ({}, {"kdim": 6, "vdim": 5}, {"add_bias_kv": True}):
        native, ours = build(**options)
        assert isinstance(ours, nn.MultiheadAttention)
        assert list(ours.state_dict()) == list(native.state_dict())
        assert not any(ours.load_state_dict(native.state_dict(), strict=True))
        assert not any(native.load_state_dict(ours.state_dict(), strict=True))
        assert repr(ours).startswith("MultiheadAttention(\n  product=pr\n")
        for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert twin.product == ours.product
            assert twin.__dict__["_qkv_same_embed_dim"] == native._qkv_same_embed_dim
    torch.manual_seed(0)
    native = nn.MultiheadAttention(8, 2)
    torch.manual_seed(0)
    ours = pr.nn.MultiheadAttention(8, 2)
    assert all(torch.equal(a, b) for a, b in zip(native.parameters(), ours.parameters(), strict=True))


@pytest.mark.parametrize("product", NATIVE_FORWARD)
def test_without_gradients_it_is_the_native_layer(product):
    native, ours = build(product, batch_first=True)
    x = torch.randn(2, 3, 8).double()
    native.eval(), ours.eval()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(ours(x, x, x)[0], native(x, x, x)[0])


@pytest.mark.parametrize("product", ["pr", "r"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_works_inside_a_transformer_encoder_layer(product, training):
    """The fused inference path never calls attention's forward: the same value for pr, and switched off for r."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    ours = pr.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64, product=product)
    ours.load_state_dict(block.self_attn.state_dict())
    native = copy.deepcopy(block).train(training)
    block.self_attn = ours
    block.train(training)
    x = torch.randn(2, 5, 8).double()
    with_gradients = block(x)
    with torch.no_grad():
        without = block(x)
        plain = native(x)
    torch.testing.assert_close(without, with_gradients.detach())
    assert torch.allclose(without, plain) == (product == "pr")
    with_gradients.square().sum().backward()
    assert ours.in_proj_weight.grad.isfinite().all()


def test_torch_func_compile_and_autocast():
    _, ours = build(batch_first=True)
    x = torch.randn(3, 4, 8).double()
    parameters = {name: p.detach() for name, p in ours.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(ours, parameters, (x, x, x))[0].square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    whole = torch.func.grad(loss)(parameters, x)
    assert_close([g.sum(0) for g in per_sample.values()], list(whole.values()), 1e-12)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(ours), fullgraph=True, backend="aot_eager")
    assert_close(run(compiled, x, x, x), run(ours, x, x, x), 1e-12)
    single = ours.float()
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        output, _ = single(x.float(), x.float(), x.float())
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert single.in_proj_weight.grad.dtype == torch.float32


NESTED = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
BAD = [
    ((NESTED,) * 3, {}),
    ((torch.ones(2, 3, 7), torch.ones(2, 3, 8), torch.ones(2, 3, 8)), {}),
    ((torch.ones(2, 3, 8), torch.ones(2, 4, 8), torch.ones(2, 3, 8)), {}),
    ((torch.ones(2, 3, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8)), {}),
    ((torch.ones(2, 3, 8), torch.ones(3, 8), torch.ones(3, 8)), {}),
    ((torch.ones(3, 8), torch.ones(2, 3, 8), torch.ones(2, 3, 8)), {}),
    ((torch.ones(1, 2, 3, 8),) * 3, {}),
    ((torch.ones(2, 3, 8),) * 3, {"attn_mask": torch.zeros(1, 3)}),
    ((torch.ones(2, 3, 8),) * 3, {"attn_mask": torch.zeros(2, 3, 3)}),
    ((torch.ones(2, 3, 8),) * 3, {"key_padding_mask": torch.zeros(2, 1, dtype=torch.bool)}),
    ((torch.ones(2, 3, 8),) * 3, {"attn_mask": torch.zeros(3, 3, dtype=torch.long)}),
]


@pytest.mark.parametrize(("inputs", "options"), BAD)
@pytest.mark.parametrize("product", ["pr", "r"])
def test_bad_input_gets_torchs_own_error(inputs, options, product):
    native, ours = build(product, batch_first=True)
    inputs = [t.double() for t in inputs]
    with pytest.raises((RuntimeError, ValueError, AssertionError)) as expected:
        native(*inputs, **options)
    with pytest.raises(expected.type) as got:
        ours(*inputs, **options)
    assert str(got.value) == str(expected.value)


def test_wrong_shapes_of_a_parametrized_layer_are_torchs_error():
    layer = nn.MultiheadAttention(8, 2)
    nn.utils.parametrize.register_parametrization(layer, "in_proj_weight", nn.Identity())
    pr.convert(layer)
    x = torch.ones(3, 2, 8)
    with pytest.raises(AssertionError, match="key shape"):
        layer(x, x[..., :4], x)
