"""The drop-in layers against the torch layers that they replace."""

import copy
import inspect
import io
import pickle
import warnings

import pytest
import torch
from compare import PRODUCTS, assert_close
from torch import nn

import prproduct as pr
from prproduct.products import PR, Tempered

pytestmark = pytest.mark.usefixtures("device")

LAYERS = [
    ("Linear", (7, 5), {}, (3, 7)),
    ("Linear", (7, 5), {"bias": False}, (2, 3, 7)),
    ("Conv1d", (4, 6, 3), {"padding": 1, "groups": 2}, (2, 4, 9)),
    ("Conv1d", (4, 4, 3), {"padding": "same", "padding_mode": "circular"}, (2, 4, 9)),
    ("Conv2d", (4, 6, 3), {"stride": 2, "padding": 1}, (2, 4, 8, 8)),
    ("Conv2d", (4, 4, 3), {"groups": 4, "bias": False, "dilation": 2}, (2, 4, 8, 8)),
    ("Conv2d", (4, 6, (3, 2)), {"padding": "same"}, (2, 4, 8, 8)),
    ("Conv2d", (4, 6, 3), {"padding": "valid"}, (2, 4, 8, 8)),
    ("Conv2d", (4, 6, 3), {"padding": (1, 2), "padding_mode": "reflect"}, (2, 4, 8, 8)),
    ("Conv2d", (4, 6, 3), {"padding": 2, "padding_mode": "replicate"}, (2, 4, 8, 8)),
    ("Conv2d", (4, 6, 3), {"padding": 2, "padding_mode": "circular"}, (2, 4, 8, 8)),
    ("Conv3d", (2, 4, 2), {"stride": 2}, (2, 2, 4, 4, 4)),
    ("Conv3d", (2, 4, 3), {"padding": 1, "padding_mode": "replicate"}, (1, 2, 4, 4, 4)),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1, "groups": 2}, (2, 4, 5)),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 5, 5)),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "bias": False, "dilation": 2}, (2, 4, 5, 5)),
    ("ConvTranspose3d", (2, 3, 2), {"stride": 2}, (1, 2, 3, 3, 3)),
]
NAMES = ["Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


@pytest.fixture(params=LAYERS, ids=[f"{name}-{number}" for number, (name, *_) in enumerate(LAYERS)], name="twins")
def _twins(request):
    """A torch layer, ours from the same seed, and an input."""
    name, args, kwargs, shape = request.param
    pair = []
    for library in (nn, pr.nn):
        torch.manual_seed(3)
        with warnings.catch_warnings(action="ignore"):
            pair.append(getattr(library, name)(*args, **kwargs))
    return *pair, torch.randn(shape)


def call(layer: nn.Module, x: torch.Tensor, **kwargs) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch warns that padding='same' may copy
        return layer(x, **kwargs)


def test_is_the_torch_layer_from_the_same_seed(twins):
    native, ours, x = twins
    assert isinstance(ours, type(native))
    assert ours.product == PR()
    assert list(ours.state_dict()) == list(native.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), native.parameters(), strict=True))
    assert torch.equal(call(ours, x), call(native, x))
    assert torch.equal(call(ours.eval(), x), call(native.eval(), x))


def test_state_dicts_load_strictly_both_ways(twins):
    native, ours, x = twins
    for target, source in ((ours, native), (native, ours)):
        for parameter in source.parameters():
            nn.init.normal_(parameter)
        assert not any(target.load_state_dict(source.state_dict(), strict=True))
        assert torch.equal(call(ours, x), call(native, x))


def test_p_gives_torchs_own_gradients(twins):
    native, ours, x = twins
    ours.product = pr.products.P()
    for layer in (native, ours):
        call(layer, x).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), native.parameters(), strict=True))


@pytest.mark.parametrize("product", PRODUCTS)
def test_layer_and_literal_equations_agree_for_every_option(twins, product):
    """The layer's forward, with the literal op in place of ours, gives the same output and gradients."""
    _, ours, x = twins
    ours, x = ours.double(), x.double().requires_grad_()
    ours.product = pr.products.resolve(product)
    literal = copy.deepcopy(ours)
    y = x.detach().clone().requires_grad_()
    call(ours, x).square().sum().backward()
    with pytest.MonkeyPatch.context() as patch:
        for name in pr.functional.__all__:
            patch.setattr(pr.functional, name, _by_reference(name))
        call(literal, y).square().sum().backward()
    ours_grads, literal_grads = ([p.grad for p in layer.parameters()] for layer in (ours, literal))
    assert_close([x.grad, *ours_grads], [y.grad, *literal_grads], 1e-10)


def _by_reference(name):
    """The literal op, with padding by name spelled out and unbatched input allowed."""

    def op(input, weight, bias=None, *geometry, product, memory):
        if name.startswith("conv") and "transpose" not in name:
            stride, padding, dilation, groups = geometry
            if padding == "same":
                reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
                sides = [side for width in reversed(reach) for side in (width // 2, width - width // 2)]
                input, padding = nn.functional.pad(input, sides), 0
            geometry = (stride, 0 if padding == "valid" else padding, dilation, groups)
        return getattr(pr.reference, name)(input, weight, bias, *geometry, product=str(product))

    return op


def test_shows_its_product(twins):
    native, ours, _ = twins
    assert repr(ours) == f"{repr(native)[:-1]}, product=pr)"
    ours.product = Tempered(0.25)
    assert repr(ours).endswith("product=tempered:0.25)")


def test_copies_and_pickles_keep_the_product(twins):
    _, ours, x = twins
    ours.product = Tempered(0.75)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(file, weights_only=False)):
        assert type(twin) is type(ours)
        assert twin.product == Tempered(0.75)
        assert torch.equal(call(twin, x), call(ours, x))


def test_unbatched_and_empty_batches(twins):
    native, ours, x = twins
    for data in (x[0], x[:0]):
        assert torch.equal(call(ours, data), call(native, data))
        ours.zero_grad()
        call(ours, data).sum().backward()
        assert all(p.grad.isfinite().all() for p in ours.parameters())


def test_channels_last_stays_channels_last(twins):
    native, ours, x = twins
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    reference = copy.deepcopy(ours)
    native, ours = (layer.to(memory_format=memory_format) for layer in (native, ours))
    x = x.to(memory_format=memory_format)
    output = call(ours, x)
    assert torch.equal(output, call(native, x))
    assert output.stride() == call(native, x).stride()
    output.square().sum().backward()
    call(reference, x.contiguous()).square().sum().backward()
    assert_close([p.grad for p in ours.parameters()], [p.grad for p in reference.parameters()], 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_takes_torchs_arguments_and_a_product(name):
    native, ours = (inspect.signature(getattr(library, name)) for library in (nn, pr.nn))
    *shared, product, memory = ours.parameters.values()
    assert shared == list(native.parameters.values())
    assert (product.name, memory.name) == ("product", "memory")
    assert product.kind is memory.kind is inspect.Parameter.KEYWORD_ONLY
    assert (product.default, memory.default) == ("pr", "save")


@pytest.mark.parametrize("name", NAMES)
def test_is_built_on_the_device_and_in_the_dtype_asked_for(name):
    arguments = (4, 6) if name == "Linear" else (4, 6, 3)
    layer = getattr(pr.nn, name)(*arguments, device="meta", dtype=torch.float64, product="r")
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float64)}
    assert (
        layer(torch.empty(2, 4, *(8,) * (layer.weight.dim() - 2), device="meta", dtype=torch.float64)).device.type
        == "meta"
    )
    assert layer.to_empty(device="cpu").weight.device.type == "cpu"
    with torch.device("meta"):
        assert getattr(pr.nn, name)(*arguments).weight.is_meta


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_become_the_ordinary_ones(name):
    arguments = (6,) if name == "Linear" else (6, 3)
    lazy = getattr(pr.nn, f"Lazy{name}")(*arguments, product="no-length")
    native = getattr(nn, f"Lazy{name}")(*arguments)
    dims = 0 if name == "Linear" else int(name[-2])
    x = torch.randn(2, 4, *(8,) * dims)
    assert "product=no-length" in repr(lazy)
    first = lazy(x)
    native(x)
    native.load_state_dict(lazy.state_dict())
    assert type(lazy) is getattr(pr.nn, name)
    assert isinstance(lazy, getattr(nn, name))
    assert str(lazy.product) == "no-length"
    assert torch.equal(first, native(x))
    first.sum().backward()
    plain = torch.autograd.grad(native(x).sum(), native.weight)[0]
    assert not torch.allclose(lazy.weight.grad, plain)  # the very first call has the product's gradient already


@pytest.mark.parametrize(
    "parametrization", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_parametrizations_of_torch_work(parametrization):
    for layer, x in ((pr.nn.Linear(4, 5), torch.randn(3, 4)), (pr.nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5))):
        layer = parametrization(layer)
        layer(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
        assert "product=pr" in repr(layer)


def test_a_users_subclass_shows_its_own_arguments():
    class Square(pr.nn.Linear):
        def __init__(self, size):
            super().__init__(size, size)

    assert list(inspect.signature(Square).parameters) == ["size"]
    assert Square(3)(torch.randn(2, 3)).shape == (2, 3)


def test_transposed_convolutions_take_an_output_size():
    native, ours = nn.ConvTranspose2d(2, 3, 3, stride=2), pr.nn.ConvTranspose2d(2, 3, 3, stride=2)
    ours.load_state_dict(native.state_dict())
    x = torch.randn(1, 2, 4, 4)
    for size in ([9, 10], (1, 3, 10, 9)):
        assert torch.equal(ours(x, output_size=size), native(x, output_size=size))
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, output_size=[30, 30])


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("Conv2d", (3, 4, 3), {"groups": 2}),
        ("Conv2d", (4, 4, 3), {"padding": "wide"}),
        ("Conv2d", (4, 4, 3), {"stride": 2, "padding": "same"}),
        ("Conv2d", (4, 4, 3), {"padding_mode": "mirror"}),
        ("ConvTranspose2d", (4, 4, 3), {"padding_mode": "reflect"}),
        ("Linear", (4,), {}),
    ],
)
def test_bad_arguments_get_torchs_own_error(name, arguments, options):
    with pytest.raises((ValueError, TypeError)) as expected:
        getattr(nn, name)(*arguments, **options)
    with pytest.raises(expected.type) as got:
        getattr(pr.nn, name)(*arguments, **options)
    assert str(got.value) == str(expected.value)


def test_an_unknown_product_is_refused_before_anything_is_built():
    with pytest.raises(ValueError, match="unknown product 'prod'"):
        pr.nn.Conv2d(3, 4, 3, product="prod")


def test_wrong_input_gets_torchs_own_error():
    for name, arguments, x in (("Linear", (4, 2), torch.ones(3, 5)), ("Conv2d", (3, 4, 3), torch.ones(2, 1, 8, 8))):
        with pytest.raises(RuntimeError) as expected:
            getattr(nn, name)(*arguments)(x)
        with pytest.raises(RuntimeError) as got:
            getattr(pr.nn, name)(*arguments)(x)
        assert str(got.value) == str(expected.value)


@pytest.mark.parametrize(("name", "sizes"), [("Linear", (3, 3)), ("LSTM", (3, 3)), ("MultiheadAttention", (3, 1))])
def test_a_product_may_be_set_by_its_name(name, sizes):
    layer = getattr(pr.nn, name)(*sizes)
    layer.product = "tempered:0.25"
    assert layer.product == pr.products.Tempered(0.25)
    assert "product=tempered:0.25" in repr(layer)
    inputs = [torch.randn(2, 4, 3)] * (3 if isinstance(layer, nn.MultiheadAttention) else 1)
    output = layer(*inputs)
    (output if isinstance(output, torch.Tensor) else output[0]).sum().backward()
    with pytest.raises(ValueError, match="unknown product 'q'"):
        layer.product = "q"
    assert layer.product == pr.products.Tempered(0.25)
