"""The compiled passes against plain torch: every layer, product and layout, biases, and vectors without an angle."""

import ctypes

import pytest
import torch
from compare import relative_error
from kernel_cases import LAYERS, PRODUCTS, assert_equal_to_rounding, both_gradients, operands

import prproduct as pr
from prproduct.kernels import compiled, linear_rule
from prproduct.kernels.contractions import Linear
from prproduct.kernels.memory import Desk
from prproduct.kernels.pairs import floor_of_sin_square
from prproduct.kernels.programs import program_of
from prproduct.products import resolve

MAIN_PASSES = ("split_rows", "split_planes", "split_last", "depthwise_planes")


def main_pass(name):
    """The one that does most of a layer's backward, where channels are not last."""
    return "split_rows" if "linear" in name else "depthwise_planes" if "depthwise" in name else "split_planes"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", LAYERS)
def test_equal_plain_torch(name, product, dtype, passes_run):
    op, x, w, bias, options = operands(name, dtype)
    y = op(x, w, bias, **options, product=product)
    passes_run.clear()  # of a forward of its own
    got, expected = both_gradients(y, (x, w), torch.randn(y.shape, dtype=dtype))
    assert [run for run in passes_run if run in MAIN_PASSES] == [main_pass(name)]
    assert_equal_to_rounding(got, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_a_forward_of_its_own_equals_plain_torch_and_may_be_written_into(name, dtype, passes_run):
    op, x, w, bias, options = operands(name, dtype)
    y = op(x, w, bias, product="r", **options)
    assert any(run.startswith("split") for run in passes_run)
    with compiled.switched_off():
        expected = op(x, w, bias, product="r", **options)
    assert y.stride() == expected.stride()
    assert relative_error(y, expected) <= (1e-14 if dtype == torch.float64 else 1e-6)
    y.relu_()
    torch.autograd.grad(y, (x, w), torch.ones_like(y))


@pytest.mark.parametrize("product", PRODUCTS[:1] + PRODUCTS[2:])  # `r` has no closed form through time
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_equal_plain_torch(kind, product):
    layer = getattr(pr.nn, kind)(3, 4, product=product).double()
    output = layer(torch.randn(5, 2, 3, dtype=torch.float64))[0]
    got, expected = both_gradients(output, tuple(layer.parameters()), torch.randn_like(output))
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("product", ["pr", "pr-w", "tempered:0.3"])
@pytest.mark.parametrize(
    "name",
    [
        "conv2d",
        "conv2d, groups",
        "conv2d, depthwise",
        "conv2d, many channels",
        "conv2d, more channels than a strip",
        "conv_transpose2d",
        "conv3d",
    ],
)
@pytest.mark.parametrize("of_grad", ["channels last", "contiguous"])
@pytest.mark.parametrize("of_weight", ["channels last", "contiguous"])
def test_channels_last(name, product, of_grad, of_weight, passes_run):
    op, x, w, bias, options = operands(name, torch.float64)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    x = x.detach().contiguous(memory_format=last).requires_grad_()
    if of_weight == "channels last":
        w = w.detach().contiguous(memory_format=last).requires_grad_()
    y = op(x, w, bias, **options, product=product)
    grad = torch.randn(y.shape, dtype=y.dtype)
    if of_grad == "channels last":
        grad = grad.contiguous(memory_format=last)
    got, expected = both_gradients(y, (x, w), grad)
    assert ("split_last" if y.is_contiguous(memory_format=last) else main_pass(name)) in passes_run
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("name", ["linear", "conv2d"])
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


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_inputs_and_weights_of_any_layout(name):
    op, x, w, bias, options = operands(name, torch.float64)
    x, w = (t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for t in (x, w))
    y = op(x, w, bias, **options)
    assert_equal_to_rounding(*both_gradients(y, (x, w), torch.randn(y.shape, dtype=y.dtype)), torch.float64)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["planes", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d, groups", "conv_transpose2d"])
def test_a_bias_that_drowns_p(name, dtype, format, passes_run):
    """What output − bias has lost is computed again, as if there were no bias."""
    op, x, w, bias, options = operands(name, dtype)
    if "conv" in name:
        x = x.detach().contiguous(memory_format=format).requires_grad_()
    y = op(x, w, bias.detach() * (1e4 if dtype == torch.float32 else 1e10), **options, product="pr")
    passes_run.clear()
    grad = torch.randn(y.shape, dtype=dtype)
    got, expected = both_gradients(y, (x, w), grad)
    assert len([run for run in passes_run if run in MAIN_PASSES]) == 2
    assert_equal_to_rounding(got, expected, dtype)
    exact = torch.autograd.grad(op(x, w, None, **options, product="pr"), (x, w), grad)
    assert all(torch.equal(a, b) for a, b in zip(got, exact, strict=True))


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["planes", "channels last"])
@pytest.mark.parametrize("count", [1, 2])
def test_how_large_a_bias_is_that_drowns_p(count, format, set_threads, passes_run):
    """Twice the mean of ‖w‖‖x‖, of all windows and of all threads' shares."""
    x = torch.ones(32, 2, 40, 41, dtype=torch.float64).contiguous(memory_format=format)
    w = torch.ones(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    norms = torch.nn.functional.conv2d(x.square(), w.detach()[:1], padding=1).sqrt()
    set_threads(count)
    for factor, runs in ((1.999, 1), (2.001, 2)):
        y = pr.functional.conv2d(x, w, (factor * 18.0**0.5 * norms.mean()).expand(3), padding=1)
        passes_run.clear()
        y.sum().backward()
        assert len([run for run in passes_run if run in MAIN_PASSES]) == runs


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
    native = x.detach().expand(100, 6)
    assert_equal_to_rounding([got[0][:1]], [expected[0][:1]], dtype)
    torch.testing.assert_close(got[0][0], native[0])  # as the inner product
    assert relative_error(got[0][1:], native[1:]) > 0.1


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_zero_parallel_and_broken_vectors(name, product):
    op, x, w, bias, options = operands(name, torch.float64)
    with torch.no_grad():
        x[0], w[0] = 0.0, 0.0
        x[1].fill_(torch.inf)
        x[2] = 1e-200
        if name == "linear":
            x[3], x[4] = 2 * w[1], torch.nan
    y = op(x, w, bias, **options, product=product)
    got, expected = both_gradients(y, (x, w), torch.ones_like(y))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_squares_of_long_vectors_add_up_exactly():
    """Where a float32 sum of so many squares would be off by 1e-4, and with it the angle to a parallel vector."""
    x = torch.full((1, 1_000_000), 0.1)
    rule = linear_rule.LinearRule(
        Linear(), program_of(resolve("pr")), x, torch.ones_like(x), None, x.sum(1, keepdim=True)
    )
    desk = Desk(rule.passes.bytes)
    rule.measure(desk)
    norm = ctypes.c_float.from_address(desk.address + rule.passes.norm - linear_rule.MEMORY).value
    assert norm == pytest.approx(x.double().norm().item(), rel=1e-7)
