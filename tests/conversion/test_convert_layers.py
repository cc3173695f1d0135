"""Which layers convert takes and which it leaves: subclasses, parametrizations, lazy layers, attention, odd weights."""

import copy
import pickle
import re

import pytest
import torch
from compare import assert_close
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import prproduct as pr
from prproduct.conversion import registry
from prproduct.products import PR

pytestmark = pytest.mark.usefixtures("device")


class PlainSubclass(nn.Linear):
    """Keeps torch's forward, and has something of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.label = "mine"


class Causal(nn.Conv1d):
    """Prepares the input, and leaves the product to torch."""

    def forward(self, x):
        return super().forward(self.widen(x))

    def widen(self, x):
        return nn.functional.pad(x, (self.kernel_size[0] - 1, 0))


class CallsItsBase(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class OwnForward(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.abs(), self.bias)


def test_a_subclass_with_torchs_forward_is_converted():
    x, layer = torch.randn(4, 5), PlainSubclass(5, 3)
    expected = layer(x)
    pr.convert(layer)
    assert isinstance(layer, PlainSubclass)
    assert isinstance(layer, pr.nn.ProductLayer)
    assert "product=pr" in repr(layer)
    assert repr(layer).startswith("PlainSubclass")
    output = layer(x)
    assert torch.equal(output, expected)
    assert type(output.grad_fn).__name__ != type(expected.grad_fn).__name__  # the product's node, not torch's
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is type(layer)
        assert torch.equal(twin(x), expected)
    assert type(pr.revert(layer)) is PlainSubclass


def test_a_subclass_that_calls_the_forward_of_its_base_is_registered_without_one(monkeypatch):
    monkeypatch.setattr(registry, "_BY_TYPE", dict(registry._BY_TYPE))

    @pr.register(Causal)
    class ProductCausal(Causal, pr.nn.Conv1d):
        pass

    x, layer = torch.randn(4, 5, 6), Causal(5, 3, 2)
    expected = layer(x)
    pr.convert(layer)
    assert type(layer) is ProductCausal
    assert "product=pr" in repr(layer)
    assert torch.equal(layer(x), expected)
    pr.convert(layer, "no-direction")
    layer(x).square().mean().backward()
    widened = nn.functional.pad(x, (1, 0))
    weight = layer.weight.detach().requires_grad_()
    pr.functional.conv1d(widened, weight, layer.bias, product="no-direction").square().mean().backward()
    assert torch.equal(layer.weight.grad, weight.grad)
    assert type(pr.revert(layer)) is Causal


def test_two_layers_of_a_subclass_share_their_class():
    model = pr.convert(nn.Sequential(PlainSubclass(2, 2), PlainSubclass(2, 2)))
    assert type(model[0]) is type(model[1])


@pytest.mark.parametrize("cls", [OwnForward, CallsItsBase])
def test_a_forward_of_its_own_is_left_and_named(cls):
    model = nn.Sequential(nn.Linear(9, 9), cls(2, 2))
    pr.convert(model)
    assert type(model[1]) is cls
    assert f"{cls.__name__} has a forward of its own" in str(pr.report(model))


def test_an_inner_method_of_its_own_is_left_and_named():
    class OwnConvolution(nn.Conv1d):
        def _conv_forward(self, input, weight, bias):
            return nn.functional.conv1d(input, weight.abs(), bias)

    model = pr.convert(nn.Sequential(nn.Linear(9, 9), OwnConvolution(2, 2, 1)))
    assert type(model[1]) is OwnConvolution
    assert "OwnConvolution has a _conv_forward of its own" in str(pr.report(model))


def test_a_forward_replaced_on_the_instance_is_left():
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(2, 2))
    model[1].forward = model[1].forward
    pr.convert(model)
    assert type(model[1]) is nn.Linear
    assert "replaced on the instance" in pr.report(model).rows[1].why


def test_an_attribute_product_of_ones_own_is_left_alone():
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(2, 2))
    model[1].product = "bread"
    pr.convert(model)
    assert model[1].product == "bread"
    assert "attribute `product`" in pr.report(model).rows[1].why


NORMS = [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.__name__)
@pytest.mark.parametrize("base", [nn.Linear, PlainSubclass])
def test_parametrized_layers(norm, base):
    layer = norm(base(6, 4)).eval()
    cls, keys, x = type(layer), list(layer.state_dict()), torch.randn(3, 6)
    expected = layer(x)
    pr.convert(layer)
    assert list(layer.state_dict()) == keys
    assert isinstance(layer, base)
    assert torch.equal(layer(x), expected)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert type(pr.revert(layer)) is cls
    assert torch.equal(layer(x), expected)


def test_parametrized_gradients_are_those_of_the_product():
    layer = parametrizations.weight_norm(nn.Linear(6, 4)).double()
    x, grads = torch.randn(3, 6, dtype=torch.float64), []
    for forward in (pr.convert(layer), lambda x: pr.reference.linear(x, layer.weight, layer.bias)):
        layer.zero_grad()
        forward(x).square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    assert_close(*grads, 1e-12)


def test_parametrizations_may_come_and_go_while_converted():
    layer = pr.convert(parametrizations.weight_norm(nn.Linear(6, 4)))
    parametrize.register_parametrization(layer, "bias", nn.Tanh())
    pr.revert(layer)
    assert type_names(layer) == ["ParametrizedLinear", "Linear"]
    assert {"weight", "bias"} == set(layer.parametrizations)
    layer(torch.randn(2, 6))
    pr.convert(layer)
    for name in ("weight", "bias"):
        parametrize.remove_parametrizations(layer, name)
    assert type(layer) is pr.nn.Linear
    assert layer.product == PR()
    assert type(pr.revert(layer)) is nn.Linear


def type_names(layer):
    return [cls.__name__ for cls in type(layer).__mro__[:2]]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm], ids=["weight", "spectral"])
def test_norms_by_hooks(norm):
    layer, x = norm(nn.Conv2d(3, 4, 3)).eval(), torch.randn(2, 3, 5, 5)
    expected = layer(x)
    pr.convert(layer)
    output = layer(x)
    assert torch.equal(output, expected)
    output.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_lazy_layers_before_and_after_they_know_their_size():
    x = torch.randn(4, 7)
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3))
    model(x)
    pr.convert(model)
    assert [type(layer) for layer in model] == [pr.nn.Linear, nn.ReLU, pr.nn.Linear]
    model = pr.convert(nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3)), "pr-w")
    assert type(model[0]) is pr.nn.LazyLinear
    assert "weights" in str(pr.report(model))
    model(x)
    assert [type(layer) for layer in model] == [pr.nn.Linear, nn.ReLU, pr.nn.Linear]
    assert str(model[2].product) == "pr-w"
    assert [type(layer) for layer in pr.revert(model)] == [nn.Linear, nn.ReLU, nn.Linear]
    assert type(pr.revert(pr.convert(nn.LazyConv2d(3, 3)))) is nn.LazyConv2d


def test_attention_is_converted_whole_and_never_by_its_projection():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    x, native = torch.randn(2, 5, 8, dtype=torch.float64), copy.deepcopy(attention)
    pr.convert(attention)
    assert type(attention.out_proj) is type(native.out_proj)
    grads = []
    for m in (attention, native):
        m(x, x, x)[0].square().sum().backward()
        grads.append([p.grad for p in (m.in_proj_weight, m.out_proj.weight)])
    assert all(not torch.allclose(a, b) for a, b in zip(*grads, strict=True))


def test_a_projection_held_by_attention_cannot_be_chosen():
    with pytest.raises(ValueError, match="filter_fn selected none"):
        pr.convert(nn.MultiheadAttention(8, 2), filter_fn=lambda layer, name: name == "out_proj")


class OwnAttention(nn.MultiheadAttention):
    def forward(self, x):
        q, k, v = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        return self.out_proj(nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.mark.filterwarnings("ignore:.*of the weights in matrices stay under the inner product")
def test_attention_with_a_forward_of_its_own_leaves_its_projection_to_itself():
    for attention in (OwnAttention(8, 2), torch.ao.nn.quantizable.MultiheadAttention(8, 2)):
        rows = {row.name: row for row in pr.report(pr.convert(attention)).rows}
        assert "has a forward of its own" in rows[""].why
        assert rows["out_proj"].state == "pr"
    assert pr.check(OwnAttention(8, 2), torch.randn(2, 3, 8)).never_called == ()


def test_a_class_that_nothing_can_be_derived_from_is_left():
    class Tagged(nn.Linear):
        def __init_subclass__(cls, *, tag):
            cls.tag = tag

    class Strict(Tagged, tag="one"):
        pass

    model = pr.convert(nn.Sequential(Strict(2, 2), nn.Linear(9, 9)))
    assert type(model[0]) is Strict
    assert "missing 1 required keyword-only argument: 'tag'" in pr.report(model).left[0].why


def encoder(dtype=torch.float32):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dtype=dtype)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("product", ["pr", "r"])
@pytest.mark.parametrize("chosen", [None, lambda layer, name: "linear" in name], ids=["all", "linear only"])
def test_the_fused_inference_path_computes_what_the_layers_compute(product, chosen):
    model, x = pr.convert(encoder(torch.float64), product, filter_fn=chosen), torch.randn(3, 6, 16, dtype=torch.float64)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    for mask in (None, padding):
        expected = model(x, src_key_padding_mask=mask)
        with torch.no_grad():
            got = model(x, src_key_padding_mask=mask)
        kept = slice(None) if mask is None else ~mask
        torch.testing.assert_close(got[kept], expected[kept])


def test_encoders_under_r_go_back_and_survive_pickle():
    class Mine(nn.TransformerEncoderLayer):
        pass

    model = encoder()
    before, x = [type(m) for m in model.modules()], torch.randn(2, 3, 16)
    pr.convert(model, "r")
    twin = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
    assert [type(m) for m in pr.revert(model).modules()] == before
    mine = pr.convert(Mine(16, 2, 32, batch_first=True), "r")
    assert isinstance(mine, Mine)
    assert type(pr.revert(mine)) is Mine


def test_special_weights_are_left():
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(2, 2, dtype=torch.complex64))
    pr.convert(model)
    assert type(model[1]) is nn.Linear
    assert "complex" in pr.report(model).rows[1].why


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_sparse_weights_are_left_and_one_line_says_so(layout):
    sparse = nn.Linear(4, 4)
    sparse.weight = nn.Parameter(sparse.weight.detach().to_sparse(layout=getattr(torch, layout)))
    reason = f"sparse weights ({layout}): make them dense first"
    with pytest.raises(ValueError, match=re.escape(f"nothing to convert in Linear: 1 × Linear ({reason})") + "$"):
        pr.convert(sparse)
    model = nn.Sequential(nn.Linear(9, 9), sparse)
    assert [row.why for row in pr.report(pr.convert(model)).left] == [reason]
