"""Depthwise convolutions by their own passes, against plain torch."""

import dataclasses
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import prproduct as pr
from prproduct.kernels import compiled, memory, rules, scores
from prproduct.kernels.depthwise.layout import images_together
from prproduct.products import Gains, Product

PRODUCTS = ["pr", "r", "tempered:0.3", "no-length", "no-direction", "no-direction-w", "pr-w"]
CONVOLUTIONS = {3: pr.functional.conv1d, 4: pr.functional.conv2d, 5: pr.functional.conv3d}
LAYERS = {  # shapes of input and kernel, output channels a group, options
    "3×3": ((2, 3, 9, 8), (3, 3), 1, {"padding": 1}),
    "no padding": ((2, 3, 9, 8), (3, 3), 1, {}),
    "1×1": ((2, 3, 9, 8), (1, 1), 1, {}),
    "5×5, two outputs a group": ((2, 3, 9, 11), (5, 5), 2, {"padding": 2}),
    "7×7 on a plane as large": ((3, 3, 7, 7), (7, 7), 1, {"padding": 3}),
    "even kernel": ((2, 3, 6, 9), (2, 4), 1, {"padding": (1, 2)}),
    "one row": ((2, 3, 1, 9), (1, 3), 2, {"padding": (0, 1)}),
    "one place": ((2, 3, 1, 1), (3, 3), 1, {"padding": 1}),
    "stride 2": ((2, 3, 9, 8), (3, 3), 1, {"stride": 2, "padding": 1}),
    "stride 2, two outputs a group": ((2, 3, 8, 9), (3, 3), 2, {"stride": 2, "padding": 1}),
    "stride along one axis": ((2, 3, 9, 8), (3, 3), 1, {"stride": (1, 3), "padding": 1}),
    "stride beyond the kernel": ((2, 3, 11, 10), (2, 2), 1, {"stride": 4}),
    "kernel 1, stride 2": ((2, 3, 9, 8), (1, 1), 2, {"stride": 2}),
    "wide padding": ((2, 3, 5, 4), (3, 2), 1, {"padding": 4, "stride": 3}),
    "padding beyond the kernel": ((2, 3, 5, 4), (3, 3), 1, {"padding": 4}),
    "dilation": ((2, 3, 9, 11), (3, 3), 1, {"dilation": 2, "padding": 2}),
    "dilation and stride": ((2, 3, 12, 11), (3, 3), 1, {"dilation": 3, "stride": 2, "padding": 2}),
    "more windows than a chunk": ((1, 2, 70, 65), (3, 3), 1, {"padding": 1}),
    "images together": ((11, 3, 9, 7), (3, 3), 1, {"padding": 1}),
    "images together, in uneven blocks": ((9, 2, 16, 15), (3, 3), 2, {"padding": 1, "stride": 2}),
    "1-D": ((3, 3, 19), (4,), 2, {"padding": 2}),
    "1-D, stride": ((13, 3, 50), (5,), 1, {"padding": 2, "stride": 3}),
    "3-D": ((2, 2, 4, 5, 6), (3, 2, 3), 1, {"padding": 1}),
    "3-D, stride": ((2, 2, 5, 6, 7), (3, 3, 2), 2, {"padding": 1, "stride": 2}),
}


@pytest.fixture
def planes_run(monkeypatch):
    """How many threads were asked for, each time the pass over planes ran."""
    threads_of, play = [], scores.Score.play

    def note(score, threads, *given):
        if any(phase.kernel.__name__ == "depthwise_planes" for phase in score.phases):
            threads_of.append(threads)
        play(score, threads, *given)

    monkeypatch.setattr(scores.Score, "play", note)
    return threads_of


def operands(shape, kernel, outputs, dtype=torch.float64):
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    w = torch.randn(shape[1] * outputs, 1, *kernel, dtype=dtype, requires_grad=True)
    return x, w, torch.randn(len(w), dtype=dtype)


def convolve(x, w, bias, **options):
    return CONVOLUTIONS[x.dim()](x, w, bias, groups=x.shape[1], **options)


def both_gradients(y, tensors, grad):
    """By the compiled passes, and by plain torch."""
    got = torch.autograd.grad(y, tensors, grad, retain_graph=True)
    with compiled.switched_off():
        return got, torch.autograd.grad(y, tensors, grad, retain_graph=True)


def assert_equal_to_rounding(got, expected):
    for a, b in zip(got, expected, strict=True):
        tolerance = 1e-12 if a.dtype == torch.float64 else 2e-5
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", LAYERS)
def test_equal_plain_torch(name, product, dtype, planes_run):
    *shapes, options = LAYERS[name]
    x, w, bias = operands(*shapes, dtype)
    y = convolve(x, w, bias, product=product, **options)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert planes_run == [1]
    assert_equal_to_rounding(got, expected)


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 40)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 5)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    batch=st.integers(1, 6),
    outputs=st.integers(1, 2),
)
def test_any_geometry(sizes, kernel, stride, padding, dilation, batch, outputs):
    if any(s + 2 * p < d * (k - 1) + 1 for s, p, d, k in zip(sizes, padding, dilation, kernel, strict=True)):
        return
    x, w, bias = operands((batch, 2, *sizes), kernel, outputs)
    # Gradients of pr are ill-conditioned near parallel, which windows of few places often are.
    y = convolve(x, w, bias, stride=stride, padding=padding, dilation=dilation, product="tempered:0.3")
    assert_equal_to_rounding(*both_gradients(y, (x, w), torch.randn_like(y)))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", ["3×3", "stride 2, two outputs a group"])
def test_a_gradient_that_nobody_asks_for_changes_nothing(name, product, planes_run):
    *shapes, options = LAYERS[name]
    x, w, bias = operands(*shapes)
    y = convolve(x, w, bias, product=product, **options)
    grad = torch.randn_like(y)
    both = torch.autograd.grad(y, (x, w), grad)
    alone = (
        convolve(x, w.detach(), bias, product=product, **options),
        convolve(x.detach(), w, bias, product=product, **options),
    )
    assert torch.equal(torch.autograd.grad(alone[0], x, grad)[0], both[0])
    assert torch.equal(torch.autograd.grad(alone[1], w, grad)[0], both[1])
    assert len(planes_run) == 3


@pytest.mark.parametrize("name", ["3×3", "images together, in uneven blocks", "stride 2", "3-D"])
@pytest.mark.parametrize("product", ["pr", "pr-w", "tempered:0.3"])
def test_any_number_of_threads_and_each_of_them_repeatably(name, product, set_threads, planes_run):
    *shapes, options = LAYERS[name]
    x, w, bias = operands(*shapes, torch.float32)
    grad = None
    for count in (1, 2, 3):
        set_threads(count)
        y = convolve(x, w, bias, product=product, **options)
        grad = torch.randn_like(y) if grad is None else grad
        got, expected = both_gradients(y, (x, w), grad)
        assert planes_run.pop() == count
        assert_equal_to_rounding(got, expected)
        for _ in range(2):
            again = torch.autograd.grad(y, (x, w), grad, retain_graph=True)
            assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    assert torch.equal(got[0], torch.autograd.grad(y, x, grad)[0])


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bias_that_drowns_p(dtype, outputs, planes_run):
    """What output − bias has lost is computed again, in a second run."""
    x, w, bias = operands((2, 3, 9, 8), (3, 3), outputs, dtype)
    large = bias * (1e4 if dtype == torch.float32 else 1e10)
    y = convolve(x, w, large, padding=1)
    got, expected = both_gradients(y, (x, w), torch.ones_like(y))
    assert planes_run == [1, 1]
    assert_equal_to_rounding(got, expected)
    exact = torch.autograd.grad(convolve(x, w, None, padding=1), (x, w), torch.ones_like(y))
    assert all(torch.equal(a, b) for a, b in zip(got, exact, strict=True))


def test_whether_a_bias_drowns_p_is_asked_of_real_windows_only(planes_run):
    """Neither what loops take beside them nor planes that a block of images lacks count as windows."""
    x, w = torch.ones(9, 2, 5, 5, dtype=torch.float64), torch.ones(2, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    norms = F.conv2d(x.square(), w.detach(), groups=2).sqrt()
    assert images_together(9, 9) == 9
    for factor, runs in ((1.999, 1), (2.001, 2)):
        planes_run.clear()
        bias = (factor * 3.0 * norms.mean()).expand(2)
        convolve(x, w, bias).sum().backward()
        assert len(planes_run) == runs


@pytest.mark.parametrize("memory", ["save", "recompute"])
def test_an_output_that_was_written_into_or_not_kept(memory):
    x, w, bias = operands((2, 3, 9, 8), (3, 3), 1)
    y = convolve(x, w, bias, padding=1)
    expected = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    y = convolve(x, w, bias, padding=1, memory=memory)
    y = y.mul_(2.0)
    assert_equal_to_rounding(torch.autograd.grad(y, (x, w), torch.ones_like(y) / 2), expected)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_zero_and_tiny_planes(product, outputs):
    x, w, bias = operands((4, 3, 9, 8), (3, 3), outputs)
    with torch.no_grad():
        x[0], w[0] = 0.0, 0.0
        x[1, :, 2:6, 3:] = 0.0  # whole windows, beside others
        x[2], w[-1] = 1e-200, w[-1] * 1e-160
    y = convolve(x, w, bias, padding=1, product=product)
    for a, b in zip(*both_gradients(y, (x, w), torch.ones_like(y)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("broken", [torch.inf, torch.nan])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", ["3×3", "no padding", "stride 2", "images together"])
def test_broken_input_spoils_no_more_than_in_plain_torch(name, product, broken):
    """An Inf lies beside the zeros between rows, and would make NaN of them."""
    *shapes, options = LAYERS[name]
    x, w, bias = operands(*shapes)
    with torch.no_grad():
        x[0, 0, 4, 0] = x[1, 1, 3, -1] = broken
    y = convolve(x, w, bias, product=product, **options)
    for a, b in zip(*both_gradients(y, (x, w), torch.ones_like(y)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert b.isfinite().any()


def test_lengths_whose_product_is_not_representable():
    x, w, _ = operands((2, 3, 9, 8), (3, 3), 1, torch.float32)
    x, w = ((t.detach() * scale).requires_grad_() for t, scale in ((x, 1e-17), (w, 1e-17)))
    y = convolve(x, w, None, padding=1)
    got, expected = both_gradients(y, (x, w), torch.ones_like(y))
    for a, b in zip(got, expected, strict=True):
        assert b.abs().max() > 0
        assert (a - b).abs().max() <= 2e-5 * b.abs().max()


@pytest.mark.parametrize(
    "strange",
    [
        lambda t: t.detach()[:1].expand(t.shape),
        lambda t: t.detach().transpose(2, 3).contiguous().transpose(2, 3),
        lambda t: torch.stack([t.detach()] * 2, -1)[..., 0],
    ],
    ids=["expanded", "transposed", "strided"],
)
def test_any_layout_of_input_weight_and_gradient(strange):
    x, w, bias = operands((2, 3, 9, 8), (3, 3), 2)
    x, w = strange(x).requires_grad_(), strange(w).requires_grad_()
    y = convolve(x, w, bias, padding=1)
    assert_equal_to_rounding(*both_gradients(y, (x, w), strange(torch.randn_like(y))))


def test_weights_with_channels_last(planes_run):
    x, w, bias = operands((2, 3, 9, 8), (3, 3), 2)
    w = w.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = convolve(x, w, bias, padding=1)
    assert_equal_to_rounding(*both_gradients(y, (x, w), torch.randn_like(y)))
    assert planes_run == [1]


@pytest.mark.parametrize("product", ["pr", "pr-w"])
def test_channels_that_are_last_and_kernels_of_many_taps(product, planes_run):
    x, w, bias = operands((2, 3, 9, 8), (5, 5), 2)
    x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = convolve(x, w, bias, padding=2, product=product)
    assert not y.is_contiguous()
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert planes_run == [1]
    assert got[0].is_contiguous(memory_format=torch.channels_last)
    assert_equal_to_rounding(got, expected)


@pytest.mark.parametrize("op", ["channels last", "transposed", "one group"])
def test_other_convolutions_are_left_to_the_general_passes(op, planes_run):
    x, w, _ = operands((2, 3, 9, 8), (3, 3), 1)
    if op == "channels last":
        y = convolve(x.contiguous(memory_format=torch.channels_last), w, None)
    elif op == "transposed":
        y = pr.functional.conv_transpose2d(x, w, groups=3)
    else:
        y = pr.functional.conv2d(x[:, :1], w)
    y.sum().backward()
    assert planes_run == []


@dataclasses.dataclass(frozen=True)
class BreaksAtZero(Product):
    """Finite for every window that is not zero."""

    elementwise = True

    def gains(self, pair):
        return Gains(length=pair.cos, direction=pair.inverse_sin / pair.input_norm)


@dataclasses.dataclass(frozen=True)
class LengthOfTheAngle(Product):
    """No operations, but not one length for all pairs."""

    elementwise = True

    def gains(self, pair):
        return Gains(length=pair.cos, direction=pair.inverse_sin)


@pytest.mark.parametrize("product", [BreaksAtZero(), LengthOfTheAngle()])
def test_a_products_own_rule_sees_only_real_windows(product, planes_run):
    x, w, bias = operands((3, 2, 7, 7), (3, 3), 1)
    y = convolve(x, w, bias, product=product)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert planes_run == [1]
    assert all(t.isfinite().all() for t in got)
    assert_equal_to_rounding(got, expected)


def test_double_backward_is_left_to_plain_torch(planes_run):
    x, w, bias = operands((2, 2, 5, 4), (3, 3), 1)
    first = torch.autograd.grad(convolve(x, w, bias).square().sum(), (x, w), create_graph=True)
    assert planes_run == []
    second = torch.autograd.grad(sum(t.square().sum() for t in first), (x, w))
    with compiled.switched_off():
        first = torch.autograd.grad(convolve(x, w, bias).square().sum(), (x, w), create_graph=True)
        assert_equal_to_rounding(second, torch.autograd.grad(sum(t.square().sum() for t in first), (x, w)))


def test_nobody_keeps_the_memory_of_a_gradient(monkeypatch):
    """The gradients of one backward must not change in the next, which finds the memory of the last one used."""
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(rules, "LARGE", 1)
    monkeypatch.setattr(memory, "_spare", threading.local())
    x, w, bias = operands((2, 3, 9, 8), (3, 3), 1)
    y = convolve(x, w, bias, padding=1)
    first = torch.autograd.grad(y, (x, w), torch.ones_like(y), retain_graph=True)
    copies = [t.clone() for t in first]
    torch.autograd.grad(y, (x, w), torch.randn_like(y), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))
    again = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
