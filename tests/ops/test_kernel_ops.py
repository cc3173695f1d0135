"""The kernels against the rule in plain torch: every layer, product and layout, biases, and degenerate vectors.

The grids of products, layers and dtypes run on any device (`pytest --device cuda`), the rest on CPUs.
"""

import contextlib

import pytest
import torch
from compare import relative_error
from op_cases import LAYERS, PRODUCTS, TOLERANCES, assert_equal_to_rounding, both_gradients, operands

import prproduct as pr
from prproduct.ops import kernels
from prproduct.ops.angles import floor_of_sin_square

HALVES = [torch.bfloat16, torch.float16]
NOT_ON_CPUS = ("transpose", "conv3d")  # in names of convolutions that torch does not have for half types there
PLANES = [name for name in LAYERS if "2d" in name or "3d" in name]


def ran_by_kernels(function) -> bool:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        function()
    return any(event.name.startswith("prproduct::") for event in profiler.events())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", LAYERS)
def test_equal_plain_torch(name, product, dtype):
    op, x, w, bias, options = operands(name, dtype)
    y = op(x, w, bias, **options, product=product)
    if product != "r":
        assert torch.equal(y, op(x, w, bias, **options, product="p"))
    got, expected = both_gradients(y, (x, w), torch.randn(y.shape, dtype=dtype))
    assert_equal_to_rounding(got, expected, dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", ["pr", "pr-w", "r"])
@pytest.mark.parametrize("name", [name for name in LAYERS if not any(kind in name for kind in NOT_ON_CPUS)])
def test_half_types_equal_plain_torch(name, product, dtype):
    assert_half_types_equal_plain_torch(name, product, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", [name for name in LAYERS if any(kind in name for kind in NOT_ON_CPUS)])
def test_half_types_that_cpus_do_not_have_equal_plain_torch(name, dtype, cuda):
    for product in PRODUCTS:
        assert_half_types_equal_plain_torch(name, product, dtype)


def assert_half_types_equal_plain_torch(name, product, dtype):
    op, x, w, bias, options = operands(name, torch.float32)
    x, w = (t.detach().to(dtype).requires_grad_() for t in (x, w))
    y = op(x, w, None if bias is None else bias.to(dtype), **options, product=product)
    got, expected = both_gradients(y, (x, w), torch.randn(y.shape, dtype=dtype))
    assert_equal_to_rounding(got, expected, dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_the_kernels_run(name):
    op, x, w, bias, options = operands(name, torch.float32)
    assert ran_by_kernels(lambda: op(x, w, bias, **options).sum().backward())
    assert ran_by_kernels(lambda: op(x, w, bias, product="r", **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_a_value_of_its_own_equals_plain_torch_and_may_be_written_into(name, dtype):
    op, x, w, bias, options = operands(name, dtype)
    y = op(x, w, bias, product="r", **options)
    with kernels.disabled():
        expected = op(x, w, bias, product="r", **options)
    assert y.stride() == expected.stride()
    assert relative_error(y, expected) <= (1e-14 if dtype == torch.float64 else 1e-6)
    y.relu_()
    torch.autograd.grad(y, (x, w), torch.ones_like(y))


@pytest.mark.parametrize("name", PLANES)
def test_a_value_of_its_own_is_channels_last_where_torchs_is(name):
    op, x, w, bias, options = operands(name, torch.float64)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    x = x.detach().contiguous(memory_format=last)
    y = op(x, w, bias, product="r", **options)
    native = op(x, w, bias, product="p", **options)
    assert y.is_contiguous(memory_format=last) == native.is_contiguous(memory_format=last)
    with kernels.disabled():
        assert relative_error(y, op(x, w, bias, product="r", **options)) <= 1e-14


@pytest.mark.parametrize("product", ["pr", "pr-w", "tempered:0.3"])
@pytest.mark.parametrize("name", PLANES)
@pytest.mark.parametrize("of_grad", ["channels last", "contiguous"])
@pytest.mark.parametrize("of_weight", ["channels last", "contiguous"])
def test_channels_last(name, product, of_grad, of_weight):
    op, x, w, bias, options = operands(name, torch.float64)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    x = x.detach().contiguous(memory_format=last).requires_grad_()
    if of_weight == "channels last":
        w = w.detach().contiguous(memory_format=last).requires_grad_()
    y = op(x, w, bias, **options, product=product)
    grad = torch.randn(y.shape, dtype=y.dtype)
    if of_grad == "channels last":
        grad = grad.contiguous(memory_format=last)
    assert_equal_to_rounding(*both_gradients(y, (x, w), grad), torch.float64)


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, depthwise"])
@pytest.mark.parametrize(
    "strange",
    [
        lambda t: torch.ones((), dtype=t.dtype).expand(t.shape),
        lambda t: torch.randn(t.shape[::-1], dtype=t.dtype).permute(*range(t.dim())[::-1]),
        lambda t: torch.randn((*t.shape, 2), dtype=t.dtype)[..., 0],
    ],
    ids=["expanded", "transposed", "strided"],
)
def test_gradients_of_any_layout(name, strange):
    op, x, w, bias, options = operands(name, torch.float64)
    y = op(x, w, bias, **options)
    assert_equal_to_rounding(*both_gradients(y, (x, w), strange(y.detach())), torch.float64)


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, depthwise"])
def test_inputs_and_weights_of_any_layout(name):
    op, x, w, bias, options = operands(name, torch.float64)
    x, w = (t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for t in (x, w))
    y = op(x, w, bias, **options)
    assert_equal_to_rounding(*both_gradients(y, (x, w), torch.randn(y.shape, dtype=y.dtype)), torch.float64)


@pytest.mark.parametrize("wanted", ["input", "weight"])
@pytest.mark.parametrize("product", ["pr", "pr-w"])
@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, depthwise"])
def test_one_gradient_alone(name, product, wanted):
    op, x, w, bias, options = operands(name, torch.float64)
    both = torch.autograd.grad(op(x, w, bias, **options, product=product).square().sum(), (x, w))
    x, w = (t.detach().requires_grad_(kind == wanted) for kind, t in (("input", x), ("weight", w)))
    alone = torch.autograd.grad(
        op(x, w, bias, **options, product=product).square().sum(), x if wanted == "input" else w
    )
    assert relative_error(alone[0], both[0 if wanted == "input" else 1]) <= 1e-13


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["planes", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, groups", "conv2d, depthwise", "conv_transpose2d"])
def test_where_the_bias_dominates_p_is_computed_again(name, dtype, format):
    op, x, w, bias, options = operands(name, dtype)
    if "conv" in name:
        x = x.detach().contiguous(memory_format=format).requires_grad_()
    y = op(x, w, bias.detach() * (1e4 if dtype == torch.float32 else 1e10), **options, product="pr")
    grad = torch.randn(y.shape, dtype=dtype)
    got, expected = both_gradients(y, (x, w), grad)
    assert_equal_to_rounding(got, expected, dtype)
    exact = torch.autograd.grad(op(x, w, None, **options, product="pr"), (x, w), grad)
    assert_equal_to_rounding(got, exact, dtype)


@pytest.mark.parametrize("bias_shape", [(), (1,), (7, 3), (2, 7, 3)])
def test_linear_biases_of_any_shape(bias_shape):
    x, w = torch.randn(2, 7, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y = pr.functional.linear(x, w, torch.randn(bias_shape, dtype=torch.float64))
    assert_equal_to_rounding(*both_gradients(y, (w,), torch.randn_like(y)), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_large_bias_raises_the_floor_of_its_own_angles(dtype):
    """Where p was rounded together with a bias of 30·‖w‖·‖x‖, an angle that is resolved elsewhere is not."""
    x = torch.randn(1, 6, dtype=dtype, requires_grad=True)
    sine = 2 * floor_of_sin_square(dtype, "cpu", False) ** 0.5
    across = torch.randn(100, 6, dtype=dtype)
    across -= across @ x.detach().T / x.detach().square().sum() * x.detach()
    across /= across.norm(dim=1, keepdim=True)
    w = (x.detach() / x.detach().norm() + sine * across).requires_grad_()
    bias = torch.zeros(100, dtype=dtype)
    bias[0] = 30 * w[0].detach().norm() * x.detach().norm()
    y = pr.functional.linear(x, w, bias)
    got, expected = both_gradients(y, (w,), torch.ones_like(y))
    inner = x.detach().expand(100, 6)
    assert_equal_to_rounding([got[0][:1]], [expected[0][:1]], dtype)
    torch.testing.assert_close(got[0][0], inner[0])  # as the inner product
    assert relative_error(got[0][1:], inner[1:]) > 0.1


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, depthwise"])
def test_zero_parallel_and_broken_vectors(name, product):
    op, x, w, bias, options = operands(name, torch.float64)
    with torch.no_grad():
        x[0], w[0] = 0.0, 0.0
        x[2] = 1e-200
        if "no-direction" not in product and "depthwise" not in name:  # which multiply Inf by 0
            x[1].fill_(torch.inf)
            if name == "linear":
                x[4] = torch.nan
        if name == "linear":
            x[3] = 2 * w[1]
    y = op(x, w, bias, **options, product=product)
    got, expected = both_gradients(y, (x, w), torch.ones_like(y))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_squares_of_long_vectors_add_up_exactly():
    """A float32 sum of so many squares would be off by 1e-4, and turn an angle of 0.01 into another."""
    x = torch.full((1, 400_000), 0.1)
    w = torch.ones_like(x)
    w[0, ::2] = 1.02  # 0.01 away from x
    p = (x.double() @ w.double().T).float()  # torch's own p is off by 4e-4
    grad_weight = torch.ops.prproduct.linear_backward(
        torch.ones(1, 1), x, w, None, p, "pr", 0.0, floor_of_sin_square(torch.float32, "cpu", False), False, True
    )[1]
    exact = w.double().requires_grad_()
    pr.functional.linear(x.double(), exact).backward()
    assert relative_error(grad_weight, exact.grad) < 0.02


@pytest.mark.parametrize("magnitude_of_grad", [1e-18, 1.0, 1e20])
@pytest.mark.parametrize("magnitude_of_weight", [1e-18, 1.0, 1e17])
@pytest.mark.parametrize("magnitude_of_input", [1e-18, 1.0, 1e17])
@pytest.mark.parametrize("name", ["linear", "linear, one feature", "conv2d", "conv2d, groups", "conv2d, depthwise"])
def test_finite_where_the_native_layer_is(name, magnitude_of_input, magnitude_of_weight, magnitude_of_grad):
    op, x, w, _, options = operands(name, torch.float32)
    x = (x.detach() * magnitude_of_input).requires_grad_()
    w = (w.detach() * magnitude_of_weight).requires_grad_()
    y = op(x, w, None, **options)
    grad = torch.randn_like(y) * magnitude_of_grad
    inner = torch.autograd.grad(op(x, w, None, product="p", **options), (x, w), grad)
    for gradients in both_gradients(y, (x, w), grad):
        for ours, theirs in zip(gradients, inner, strict=True):
            assert torch.isfinite(ours[torch.isfinite(theirs * 1e3)]).all()


def test_a_tiny_input_under_a_large_gradient():
    """1/‖x‖ times the sum along x overflows here, x/‖x‖ times it does not."""
    x, w = torch.tensor([[1e-18, 2e-18]], requires_grad=True), torch.tensor([[1.0, 1.5]], requires_grad=True)
    for gradients in both_gradients(pr.functional.linear(x, w), (x, w), torch.tensor([[1e20]])):
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_again_on_any_number_of_threads(name, count, set_threads):
    op, x, w, bias, options = operands(name, torch.float64)
    y = op(x, w, bias, **options)
    grad = torch.randn(y.shape, dtype=y.dtype)
    set_threads(count)
    first, second = (torch.autograd.grad(y, (x, w), grad, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    set_threads(1)
    alone = torch.autograd.grad(y, (x, w), grad)
    assert_equal_to_rounding(first, alone, torch.float64)


def test_float16_does_not_overflow_before_the_correction_of_a_depthwise_convolution():
    x = torch.tensor([1.0, 1.18]).repeat(32).expand(8, 2, 64).half().requires_grad_()
    w = torch.ones(2, 1, 2, dtype=torch.float16, requires_grad=True)
    y = pr.functional.conv1d(x, w, groups=2, stride=2)
    got = torch.autograd.grad(y, w, torch.full_like(y, 60.0))[0]
    wide = pr.functional.conv1d(x.double(), w.double(), groups=2, stride=2)
    assert relative_error(got, torch.autograd.grad(wide, w, torch.full_like(wide, 60.0))[0]) <= TOLERANCES[got.dtype]


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_r_in_half_types_is_as_exact_as_its_result_can_be_stored(dtype, by_kernels):
    """The gains of nearly parallel vectors are large, and the correction takes most of D∘g back."""
    w = torch.randn(8, 64, dtype=torch.float64)
    x = w.repeat(4, 1) + 0.01 * torch.randn(32, 64, dtype=torch.float64)
    stored = [t.to(dtype).requires_grad_() for t in (x, w)]
    grad, found = torch.randn(32, 8).to(dtype), []
    for compute in (dtype, torch.float64):
        with contextlib.nullcontext() if by_kernels else kernels.disabled():
            y = pr.functional.linear(*(t.to(compute) for t in stored), product="r")
            found.append(torch.autograd.grad(y, stored, grad.to(compute)))
    for half, wide in zip(*found, strict=True):
        assert relative_error(half, wide) <= 4 * torch.finfo(dtype).eps


def test_float16_does_not_overflow_before_the_correction():
    """D∘g of near-parallel vectors is 16 times g."""
    w = torch.ones(4, 16, dtype=torch.float16, requires_grad=True)
    x = torch.ones(2, 16, dtype=torch.float16)
    x[:, 0] = 1.25
    x.requires_grad_()
    y = pr.functional.linear(x, w)
    got, expected = both_gradients(y, (x, w), torch.full_like(y, 6000.0))
    for a, b in zip(got, expected, strict=True):
        assert torch.isfinite(a).all()
        assert relative_error(a, b) <= TOLERANCES[torch.float16]
