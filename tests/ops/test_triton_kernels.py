"""Triton's kernels, by its interpreter on the CPU, against the rule in plain torch (`make test-triton`).

Compiled code is another matter: `test_triton_compilation.py`, and on a GPU `make test-gpu`.
"""

import itertools
import os

import pytest
import torch
from compare import relative_error
from op_cases import LAYERS, PRODUCTS, TOLERANCES, assert_equal_to_rounding, both_gradients, operands

import prproduct as pr
from prproduct.ops import kernels, triton_operators
from prproduct.ops.angles import floor_of_sin_square

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter: make test-triton", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # NumPy's, of infinite numbers
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SMALL = [name for name in LAYERS if "many" not in name and "large" not in name and "depthwise" not in name]
SHORT = ["linear", "conv1d", "conv2d, not all is covered"]


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Operators on the CPU are Triton's; the names of the kernels that were launched."""
    names, launch = [], triton_operators.launch

    def recorded(kernel, *arguments, **constants):
        names.append(kernel.removeprefix("prproduct_"))
        launch(kernel, *arguments, **constants)

    monkeypatch.setattr(triton_operators, "launch", recorded)
    monkeypatch.setattr(kernels, "operators_for", lambda t: triton_operators)
    monkeypatch.setattr(kernels, "library", lambda: True)
    return names


def layer(name, dtype, **kwargs):
    """An op and its operands in a dtype."""
    op, x, w, bias, options = operands(name, torch.float32, **kwargs)
    x, w = (t.detach().to(dtype).requires_grad_() for t in (x, w))
    return op, x, w, None if bias is None else bias.to(dtype), options


def assert_gradients_equal(op, x, w, bias, options, product, grad=None, factor=1.0):
    y = op(x, w, bias, **options, product=product)
    grad = torch.randn(y.shape).to(y.dtype) if grad is None else grad(y.detach())
    assert_equal_to_rounding(*both_gradients(y, (x, w), grad), y.dtype, factor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", SHORT)
def test_every_product_equals_plain_torch(name, product, dtype):
    assert_gradients_equal(*layer(name, dtype), product)


@pytest.mark.parametrize(
    ("name", "dtype", "product"),
    [
        (name, dtype, PRODUCTS[(place + shift) % len(PRODUCTS)])
        for place, name in enumerate(LAYERS)
        for shift, dtype in enumerate(DTYPES)
        if (name in SMALL or dtype == torch.float32) and name not in SHORT and "large" not in name
    ],
)
def test_every_layer_equals_plain_torch(name, product, dtype, launched):
    assert_gradients_equal(*layer(name, dtype), product)
    assert "split" in launched


@pytest.mark.parametrize("name", ["linear, three axes", "linear, one weight", "conv3d", "conv_transpose2d"])
def test_the_value_of_r_equals_plain_torch_and_may_be_written_into(name, launched):
    op, x, w, bias, options = layer(name, torch.float32)
    y = op(x, w, bias, product="r", **options)
    assert "split" in launched
    with kernels.disabled():
        expected = op(x, w, bias, product="r", **options)
    assert relative_error(y, expected) <= 1e-6
    y.relu_()
    torch.autograd.grad(y, (x, w), torch.ones_like(y))


@pytest.mark.parametrize(
    ("name", "lasts"),
    [
        ("conv2d, groups", (True, True, True)),
        ("conv3d", (True, True, True)),
        *(("conv2d, not all is covered", lasts) for lasts in itertools.product((True, False), repeat=3)),
    ],
)
def test_channels_last_is_read_and_written_by_strides(name, lasts):
    op, x, w, bias, options = layer(name, torch.float32)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    x, w = (
        t.detach().contiguous(memory_format=last).requires_grad_() if is_last else t
        for t, is_last in zip((x, w), lasts, strict=False)
    )
    assert_gradients_equal(
        op, x, w, bias, options, "pr", lambda y: torch.randn_like(y, memory_format=last if lasts[2] else None)
    )
    if lasts[1]:
        y = op(x, w, bias, **options)
        (dw,) = torch.autograd.grad(y, w, torch.ones_like(y))
        assert dw.stride() == w.stride()


STRANGE = {
    "expanded": lambda t: torch.ones((), dtype=t.dtype).expand(t.shape),
    "transposed": lambda t: torch.randn(t.shape[::-1], dtype=t.dtype).permute(*range(t.dim())[::-1]),
    "strided": lambda t: torch.randn((*t.shape, 2), dtype=t.dtype)[..., 0],
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_gradients_of_any_layout(name, strange):
    assert_gradients_equal(*layer(name, torch.float32), "pr", strange)


@pytest.mark.parametrize("name", SHORT)
def test_inputs_and_weights_of_any_layout(name):
    op, x, w, bias, options = layer(name, torch.float32)
    x, w = (t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for t in (x, w))
    assert_gradients_equal(op, x, w, bias, options, "pr")


@pytest.mark.parametrize("wanted", ["input", "weight"])
@pytest.mark.parametrize("product", ["pr", "pr-w"])
@pytest.mark.parametrize("name", SHORT)
def test_one_gradient_alone(name, product, wanted):
    op, x, w, bias, options = layer(name, torch.float32)
    both = torch.autograd.grad(op(x, w, bias, **options, product=product).square().sum(), (x, w))
    x, w = (t.detach().requires_grad_(kind == wanted) for kind, t in (("input", x), ("weight", w)))
    leaf = x if wanted == "input" else w
    (alone,) = torch.autograd.grad(op(x, w, bias, **options, product=product).square().sum(), leaf)
    assert relative_error(alone, both[0 if wanted == "input" else 1]) <= 1e-5


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", SHORT)
def test_zero_parallel_and_broken_vectors(name, product):
    op, x, w, bias, options = layer(name, torch.float32)
    with torch.no_grad():
        x[0], w[0] = 0.0, 0.0
        if "no-direction" not in product:  # which multiply Inf by 0
            x[1].fill_(torch.inf)
            if name == "linear":
                x[4] = torch.nan
        if name == "linear":
            x[2], x[3] = 1e-30, 2 * w[1]
    y = op(x, w, bias, **options, product=product)
    for a, b in zip(*both_gradients(y, (x, w), torch.ones_like(y)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("sine", [0.0, 1e-4, 1.5e-3, 2.5e-3, 1e-2, 0.1])
def test_angles_around_the_floor(sine):
    """p, which decides whether an angle is resolved, is the same number on both sides."""
    x = torch.randn(1, 6)
    across = torch.randn(20, 6)
    across -= across @ x.T / x.square().sum() * x
    w = (x / x.norm() + sine * across / across.norm(dim=1, keepdim=True)).requires_grad_()
    bias = torch.zeros(20)
    bias[0] = 30 * w[0].detach().norm() * x.norm()  # raises the floor of its own angle
    y = pr.functional.linear(x, w, bias)
    got, expected = both_gradients(y, (w,), torch.ones_like(y))
    assert relative_error(got[0], expected[0]) <= 2e-2  # 1/|sin θ| itself is known to a few percent only
    longer = got[0].norm(dim=1) / x.norm()
    if sine >= 1e-2:
        assert (longer[1:] > 1.0 - 1e-3).all()
    if sine <= 1.5e-3:
        torch.testing.assert_close(got[0], x.expand(20, 6), rtol=1e-5, atol=1e-5)  # as the inner product


def test_squares_of_long_vectors_add_up_exactly():
    """A plain float32 sum of so many squares would be off by 1e-5, and turn an angle of 0.01 into another."""
    x = torch.full((1, 100_000), 0.1)
    w = torch.ones_like(x)
    w[0, ::2] = 1.02  # 0.01 away from x
    p = (x.double() @ w.double().T).float()  # torch's own p is off by 4e-4
    floor = floor_of_sin_square(torch.float32, "cpu", False)
    call = (torch.ones(1, 1), x, w, None, p, "pr", 0.0, floor, False, True)
    grad_weight = triton_operators.linear_backward(*call)[1]
    exact = w.double().requires_grad_()
    with kernels.disabled():
        pr.functional.linear(x.double(), exact).backward()
    assert relative_error(grad_weight, exact.grad) < 0.02


@pytest.mark.parametrize("magnitude_of_grad", [1e-18, 1e20])
@pytest.mark.parametrize("magnitude_of_weight", [1e-18, 1e17])
@pytest.mark.parametrize("magnitude_of_input", [1e-18, 1e17])
@pytest.mark.parametrize("name", ["linear", "linear, one feature", "conv1d"])
def test_finite_where_the_native_layer_is(name, magnitude_of_input, magnitude_of_weight, magnitude_of_grad):
    op, x, w, _, options = layer(name, torch.float32)
    x = (x.detach() * magnitude_of_input).requires_grad_()
    w = (w.detach() * magnitude_of_weight).requires_grad_()
    y = op(x, w, None, **options)
    grad = torch.randn_like(y) * magnitude_of_grad
    inner = torch.autograd.grad(op(x, w, None, product="p", **options), (x, w), grad)
    got, expected = both_gradients(y, (x, w), grad)
    for ours, rule, theirs in zip(got, expected, inner, strict=True):
        safe = torch.isfinite(theirs * 1e3)
        assert torch.isfinite(ours[safe]).all()
        scale = rule[safe].abs().max() if safe.any() else 1.0
        assert ((ours[safe] - rule[safe]).abs() <= 2e-5 * scale).all()


def test_float16_does_not_overflow_before_the_correction():
    """D∘g of near-parallel vectors is 16 times g."""
    w = torch.ones(4, 16, dtype=torch.float16, requires_grad=True)
    x = torch.ones(2, 16, dtype=torch.float16)
    x[:, 0] = 1.25
    y = pr.functional.linear(x.requires_grad_(), w)
    got, expected = both_gradients(y, (x, w), torch.full_like(y, 6000.0))
    for a, b in zip(got, expected, strict=True):
        assert torch.isfinite(a).all()
        assert relative_error(a, b) <= TOLERANCES[torch.float16]


def test_small_float16_gradients_lose_no_bits():
    op, x, w, bias, options = layer("linear", torch.float16)
    y = op(x, w, bias, **options)
    got, expected = both_gradients(y, (x, w), torch.full_like(y, 1e-4))
    for a, b in zip(got, expected, strict=True):
        assert relative_error(a, b) <= TOLERANCES[torch.float16]


@pytest.mark.parametrize("shape", [(0, 5), (7, 0)])
def test_layers_without_numbers(shape):
    x, w = torch.ones(shape, requires_grad=True), torch.ones(3, shape[1], requires_grad=True)
    pr.functional.linear(x, w).sum().backward()
    assert not x.grad.any()
    assert not w.grad.any()
    images, kernel = torch.ones(0, 4, 6, 6, requires_grad=True), torch.ones(4, 2, 3, 3, requires_grad=True)
    pr.functional.conv2d(images, kernel, groups=2).sum().backward()
    assert images.grad.shape == images.shape
    assert not kernel.grad.any()
