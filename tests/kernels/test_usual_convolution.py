"""Usual convolutions, whose backward is one straight line, with channels last in between: it does what others' does."""

import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from compare import relative_error
from kernel_cases import LAYERS, assert_equal_to_rounding, both_gradients, operands
from torch.autograd.graph import saved_tensors_hooks

import prproduct as pr
from prproduct.kernels import choice, convolution_passes, convolution_rule, memory, pointwise, usual_convolution
from prproduct.kernels.contractions import Convolution
from prproduct.kernels.programs import program_of

CONVOLUTIONS = [name for name in LAYERS if "conv" in name and "depthwise" not in name]


@pytest.fixture
def taken(monkeypatch):
    """Whether the straight line was taken, by backward."""
    answers, usual_backward = [], usual_convolution.usual_backward

    def note(*arguments):
        found = usual_backward(*arguments)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(choice, "usual_backward", note)
    return answers


@pytest.fixture
def laid_out(monkeypatch, set_threads):
    """Channels are last for the native backward wherever that can be, and passes are written down anew."""
    monkeypatch.setattr(usual_convolution, "_lays_out", lambda contraction, x, w, p: True)
    monkeypatch.setattr(pointwise, "serves", lambda *_: False)
    set_threads(2)


def tensors(batch, channels, out, size, kernel, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, channels, *size), (out, channels, *kernel), (out,)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("product", ["pr", "tempered:0.3"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_equal_to_the_bit_what_the_rule_does(name, product, wanted, taken, monkeypatch):
    op, *three, options = operands(name, torch.float32)
    three = [t.detach().requires_grad_(k in wanted) for k, t in enumerate(three)]
    y = op(*three, **options, product=product)
    grad, of_what = torch.randn_like(y), [three[k] for k in wanted]
    usual = torch.autograd.grad(y, of_what, grad, retain_graph=True)
    assert taken == [True]
    monkeypatch.setattr(choice, "usual_backward", lambda *_: None)
    assert all(map(torch.equal, usual, torch.autograd.grad(y, of_what, grad)))


@pytest.mark.parametrize("across", range(4))
def test_tensors_that_lie_otherwise_are_left_to_the_rule(across, taken):
    three = [t.detach() for t in tensors(2, 4, 6, (9, 8), (3, 3), torch.float64)]
    three[2] = three[2].repeat(2)[::2]
    if across < 2:
        three[across] = three[across].mT.contiguous().mT
    x, w, bias = (t.requires_grad_() for t in three)
    y = pr.functional.conv2d(x, w, bias if across == 2 else None)
    grad = torch.randn_like(y)
    got, expected = both_gradients(y, (x, w), grad.mT.contiguous().mT if across == 3 else grad)
    assert taken[0] is False
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (0, 3)}], ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5)], ids=str)
@pytest.mark.parametrize("size", [(9, 11), (30, 31), (16, 16)], ids=str)
@pytest.mark.parametrize("channels", [(6, 1), (8, 16), (16, 16), (20, 7), (17, 33), (40, 8)], ids=str)
@pytest.mark.usefixtures("laid_out")
def test_planes_that_are_laid_out_with_channels_last(channels, size, kernel, options, taken):
    x, w, bias = tensors(3, *channels, size, kernel, torch.float64)
    y = pr.functional.conv2d(x, w, bias, **options)
    got, expected = both_gradients(y, (x, w, bias), torch.randn_like(y))
    assert taken == [True]
    assert all(t.is_contiguous() for t in got)
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("product", ["pr", "tempered:0.3"])
@pytest.mark.usefixtures("laid_out")
def test_laid_out_for_one_of_both_gradients(product, wanted, taken):
    both = [t.detach().requires_grad_(k in wanted) for k, t in enumerate(tensors(5, 12, 20, (12, 13), (3, 3))[:2])]
    y = pr.functional.conv2d(*both, padding=1, product=product)
    got, expected = both_gradients(y, tuple(both[k] for k in wanted), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.usefixtures("laid_out")
def test_laid_out_with_a_bias_that_may_drown_p(scale, taken):
    x, w, bias = tensors(5, 12, 20, (12, 13), (3, 3))
    y = pr.functional.conv2d(x, w, scale * bias)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.usefixtures("laid_out")
def test_laid_out_where_something_was_added_to_the_output(scale):
    x, w, _ = tensors(5, 12, 20, (12, 13), (3, 3))
    addend = scale * torch.randn(5, 20, 10, 11)
    p = torch.nn.functional.conv2d(x, w).detach()
    grad = torch.randn_like(p)
    convolution, product = Convolution((1, 1), (0, 0), (1, 1), 1), pr.products.resolve("pr")
    arguments = (convolution, product, x.detach(), w.detach(), None)
    with torch.no_grad():
        got = choice.gradients(*arguments, p + addend, grad, (True, True, False), addend)
        expected = choice.gradients(*arguments, p, grad, (True, True, False))
    assert all(relative_error(a, b) <= 1e-4 for a, b in zip(got[:2], expected[:2], strict=True))


@pytest.mark.usefixtures("laid_out")
def test_laid_out_by_any_number_of_threads_and_repeatably(set_threads):
    x, w, _ = tensors(7, 16, 16, (16, 16), (3, 3))
    for count in (1, 2, 3, 8):
        set_threads(count)
        y = pr.functional.conv2d(x, w, padding=1)
        grad = torch.randn_like(y)
        got, expected = both_gradients(y, (x, w), grad)
        assert_equal_to_rounding(got, expected, torch.float32)
        assert all(map(torch.equal, got, torch.autograd.grad(y, (x, w), grad)))


def lays_out(batch, channels, out, size, kernel=3, dtype=torch.float32, groups=1):
    x = torch.empty(batch, channels, size, size, dtype=dtype)
    w = torch.empty(out, channels // groups, kernel, kernel, dtype=dtype)
    convolution = Convolution((1, 1), (kernel // 2,) * 2, (1, 1), groups)
    p = torch.Size(convolution.output_shape(x.shape, w.shape))
    return usual_convolution._lays_out(convolution, x, w, p)


def test_where_channels_are_laid_out_last():
    assert lays_out(128, 16, 16, 32)
    assert lays_out(64, 48, 12, 32)
    assert lays_out(8, 100, 100, 28)  # not whole lines of the cache
    assert not lays_out(8, 128, 128, 28)
    assert not lays_out(128, 3, 16, 32)
    assert not lays_out(8, 500, 500, 7)  # more weights than activations
    assert not lays_out(128, 16, 16, 32, dtype=torch.float64)
    assert not lays_out(128, 16, 16, 32, groups=2)
    assert not lays_out(128, 16, 16, 32, kernel=1)  # with strides, oneDNN corrupts memory over their gradient


def test_without_onednn_planes_stay_as_they_are():
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not lays_out(128, 16, 16, 32)
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_channels_laid_out_last_are_what_a_layer_of_few_channels_takes(passes_run, taken):
    layer = pr.nn.Conv2d(16, 16, 3, padding=1)
    x = torch.randn(32, 16, 16, 16, requires_grad=True)
    y = layer(x)
    got, expected = both_gradients(y, (x, layer.weight), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, torch.float32)
    (written,) = program_of(layer.product).usual_convolutions.values()
    assert written.last_input


@pytest.mark.usefixtures("laid_out")
def test_many_threads_of_many_sizes_do_not_disturb_each_other():
    layers = [pr.nn.Conv2d(8, channels, 3) for channels in (8, 40, 16, 24)]
    inputs = [torch.randn(batch, 8, size, size) for batch, size in ((4, 9), (1, 30), (3, 12), (2, 20))]

    def gradients(k):
        return torch.autograd.grad(layers[k](inputs[k]).square().sum(), tuple(layers[k].parameters()))

    alone = [gradients(k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, [k % 4 for k in range(200)]))
    assert all(torch.equal(a, b) for k, some in enumerate(found) for a, b in zip(some, alone[k % 4], strict=True))


def desks():
    return vars(memory._spare).get("desks", [])


def backward(size, channels=16):
    layer, x = pr.nn.Conv2d(channels, channels, 3), torch.randn(4, channels, size, size, requires_grad=True)
    layer(x).square().sum().backward()


def test_one_desk_serves_layers_of_all_sizes():
    desks().clear()
    for size in (8, 24, 16, 8):
        backward(size)
    (desk,) = desks()
    assert desk.size >= 4 * 16 * 24 * 24 * 4


def test_a_threads_desk_ends_with_it():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(backward, 12).result()
        left = pool.submit(lambda: weakref.ref(desks()[0])).result()
        assert left() is not None
    gc.collect()
    assert left() is None


def test_passes_of_many_sizes_may_be_forgotten_and_their_scores_still_have_their_memory():
    torch.manual_seed(0)
    layer, x = pr.nn.Conv2d(8, 8, 3), torch.randn(2, 8, 13, 9)

    def gradient():
        return torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]

    expected = gradient()
    program_of(layer.product).passes.clear()
    convolution_rule._geometry.cache_clear()
    gc.collect()
    others = [np.full(convolution_passes.GEOMETRY, 10**6) for _ in range(1000)]  # in memory that was given back
    assert torch.equal(gradient(), expected)
    assert others


@pytest.mark.parametrize("change", [lambda t: t[0], lambda t: t.flatten(), lambda t: t.sum()], ids=["0", "flat", "sum"])
@pytest.mark.parametrize("which", range(4), ids=["input", "weight", "bias", "output"])
@pytest.mark.parametrize("groups", [1, 2])
def test_hooks_that_change_shapes_are_refused(groups, which, change):
    x, w, bias = tensors(3, 8, 8, (9, 9), (3, 3))
    w = w.detach()[:, : 8 // groups].requires_grad_()
    counted = itertools.count()

    def unpack(packed):
        place, tensor = packed
        return change(tensor) if place == which else tensor

    with saved_tensors_hooks(lambda t: (next(counted), t), unpack):
        y = pr.functional.conv2d(x, w, bias, groups=groups)
    if which == 2 and change(bias).shape == bias.shape:  # nothing has changed
        y.sum().backward()
        assert torch.equal(bias.grad, torch.full((8,), 3.0 * 7 * 7))
        return
    with pytest.raises(RuntimeError, match="other shapes"):
        y.sum().backward()


@pytest.mark.parametrize("shape", [(0, 16, 9, 9), (2, 16, 3, 3)])
def test_nothing_and_one_place(shape):
    layer, x = pr.nn.Conv2d(16, 16, 3), torch.randn(shape, requires_grad=True)
    y = layer(x)
    got, expected = both_gradients(y, (x, *layer.parameters()), torch.ones_like(y))
    assert_equal_to_rounding(got, expected, torch.float32) if x.numel() else None
    assert [t.shape for t in got] == [x.shape, *(p.shape for p in layer.parameters())]


@pytest.fixture
def planes_multiplied(passes_run):
    """The passes that ran and do products of planes."""
    return lambda: [run for run in passes_run if run == "pointwise_planes"]


@pytest.mark.parametrize("product", ["pr", "tempered:0.3"])
@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (30, 31)], ids=str)
@pytest.mark.parametrize("channels", [(7, 5), (6, 1), (40, 33)], ids=str)
def test_single_places(channels, size, wanted, product, planes_multiplied, set_threads):
    set_threads(2)
    three = tensors(8, *channels, size, (1, 1), torch.float64)
    three = [t.detach().requires_grad_(k in wanted) for k, t in enumerate(three)]
    y = pr.functional.conv2d(*three, product=product)
    got, expected = both_gradients(y, tuple(three[k] for k in wanted), torch.randn_like(y))
    alike = three[0].movedim(1, -1).is_contiguous() and y.movedim(1, -1).is_contiguous()  # channels are last, too
    assert len(planes_multiplied()) == (0 if alike else 1)
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_single_places_of_any_number_of_axes_by_any_number_of_threads(threads, axes, planes_multiplied, set_threads):
    set_threads(threads)
    x, w, bias = tensors(32, 12, 20, (4, 5, 3)[:axes], (1, 1, 1)[:axes])
    y = getattr(pr.functional, f"conv{axes}d")(x, w, bias)
    grad = torch.randn_like(y)
    got, expected = both_gradients(y, (x, w, bias), grad)
    assert planes_multiplied()
    assert_equal_to_rounding(got, expected, torch.float32)
    assert all(map(torch.equal, got, torch.autograd.grad(y, (x, w, bias), grad)))


@pytest.mark.parametrize(("batch", "size", "shared"), [(1, (32, 32), True), (3, (10, 10), False), (8, (4, 4), True)])
def test_strips_are_shared_out_if_all_threads_get_as_many(batch, size, shared, planes_multiplied, set_threads):
    set_threads(2)
    x, w, bias = tensors(batch, 12, 20, size, (1, 1))
    y = pr.functional.conv2d(x, w, bias)
    got, expected = both_gradients(y, (x, w, bias), torch.randn_like(y))
    assert bool(planes_multiplied()) is shared
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"groups": 2}], ids=str)
def test_others_of_one_tap_have_no_products_of_planes(options, planes_multiplied):
    x = torch.randn(2, 6, 8, 8, requires_grad=True)
    w = torch.randn(8, 6 // options.get("groups", 1), 1, 1, requires_grad=True)
    y = pr.functional.conv2d(x, w, **options)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert not planes_multiplied()
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("missing", ["openmp", "gemm", "small weights"])
def test_single_places_where_passes_cannot_multiply_or_should_not(missing, planes_multiplied, monkeypatch, set_threads):
    set_threads(1)
    monkeypatch.setattr(*{
        "openmp": (pointwise, "openmp", lambda: None),
        "gemm": (pointwise, "gemm", lambda size: 0),
        "small weights": (pointwise, "_SMALL", 7),
    }[missing])  # fmt: skip
    x, w, bias = tensors(5, 12, 20, (12, 13), (1, 1))
    y = pr.functional.conv2d(x, w, bias)
    got, expected = both_gradients(y, (x, w, bias), torch.randn_like(y))
    assert not planes_multiplied()
    assert_equal_to_rounding(got, expected, torch.float32)


def test_products_of_many_strips_leave_the_stack_as_it_was():
    """Each product keeps its numbers on the stack while it is computed: a million of them would not fit."""
    layer, x = pr.nn.Conv2d(8, 2, 1, bias=False), torch.randn(60_000, 8, 2, 1, requires_grad=True)
    y = layer(x)
    got, expected = both_gradients(y, (x, layer.weight), torch.ones_like(y))
    assert all(relative_error(a, b) <= 1e-4 for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_single_places_with_something_that_may_drown_p(scale, planes_multiplied):
    x, w, bias = tensors(5, 12, 20, (12, 13), (1, 1))
    y = pr.functional.conv2d(x, w, scale * bias)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert len(planes_multiplied()) == (2 if scale > 1 else 1)
    assert_equal_to_rounding(got, expected, torch.float32)
