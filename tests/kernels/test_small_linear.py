"""Small linear layers, whose backward is one straight line: it does what that of large ones does."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compare import relative_error
from kernel_cases import assert_equal_to_rounding, both_gradients

import prproduct as pr
from prproduct.kernels import blas, choice, small_linear
from prproduct.kernels.blas import gemm


@pytest.fixture
def taken(monkeypatch):
    """Whether the straight line was taken, by backward."""
    answers, small_backward = [], small_linear.small_backward

    def note(*arguments):
        found = small_backward(*arguments)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(choice, "small_backward", note)
    return answers


def tensors(rows=6, columns=5, channels=4, dtype=torch.float64, bias=True, before=()):
    shapes = [(*before, rows, columns), (channels, columns)] + [(channels,)] * bias
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("before", [(), (3, 2)])
@pytest.mark.parametrize("product", ["pr", "tempered:0.3"])
def test_equal_to_the_bit_what_is_done_for_large_layers(product, before, wanted, taken, monkeypatch):
    torch.manual_seed(0)
    operands = tensors(dtype=torch.float32, before=before)
    operands = [t if k in wanted else t.detach() for k, t in enumerate(operands)]
    y = pr.functional.linear(*operands, product=product)
    grad, of_what = torch.randn_like(y), [operands[k] for k in wanted]
    small = torch.autograd.grad(y, of_what, grad, retain_graph=True)
    assert taken == [True]
    monkeypatch.setattr(choice, "small_backward", lambda *_: None)
    large = torch.autograd.grad(y, of_what, grad)
    for k, a, b in zip(wanted, small, large, strict=True):
        assert relative_error(a, b) <= 1e-6 if k == 2 else torch.equal(a, b)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("across", range(3))
def test_tensors_that_lie_across_are_left_to_the_rule(across, bias, taken):
    operands = [t.detach() for t in tensors(bias=bias)]
    if across < 2:
        operands[across] = operands[across].t().contiguous().t()
    operands = [t.requires_grad_() for t in operands]
    y = pr.functional.linear(*operands)
    grad = torch.randn_like(y)
    got, expected = both_gradients(y, tuple(operands), grad.t().contiguous().t() if across == 2 else grad)
    assert taken[0] is False
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize(("rows", "channels"), [(200_000, 1), (150, 1100), (1, 1), (64, 3), (65, 3)])
def test_a_biass_gradient_is_the_sum_over_all_rows(rows, channels, taken, set_threads):
    set_threads(2)
    x, w, bias = tensors(rows, 2, channels, torch.float32)
    grad = torch.full((rows, channels), 0.1) + torch.arange(channels)
    (got,) = torch.autograd.grad(pr.functional.linear(x, w, bias), bias, grad)
    assert taken == [True]
    assert relative_error(got.double(), grad.double().sum(0)) <= 1e-6


@pytest.mark.parametrize("before", [(), (3, 2)])
def test_a_bias_that_drowns_p_has_its_gradient_too(before, taken):
    x, w, _ = tensors(before=before)
    bias = torch.full((4,), 1e12, dtype=torch.float64, requires_grad=True)
    y = pr.functional.linear(x, w, bias)
    got, expected = both_gradients(y, (x, w, bias), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("shape", [(0, 5, 4), (6, 0, 4), (6, 5, 0)])
def test_nothing_at_all(shape, taken):
    operands = tensors(*shape)
    y = pr.functional.linear(*operands)
    for t, gradient in zip(operands, torch.autograd.grad(y, operands, torch.ones_like(y)), strict=True):
        assert gradient.shape == t.shape
        assert torch.equal(gradient, torch.full_like(t, len(y) if t.dim() == 1 else 0.0))
    assert taken == []


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_products_shared_out_by_columns(threads, wanted, taken, set_threads):
    set_threads(threads)
    assert gemm(4)
    operands = tensors(130, 701, 90, torch.float32)
    operands = [t if k in wanted else t.detach() for k, t in enumerate(operands)]
    y = pr.functional.linear(*operands)
    got, expected = both_gradients(y, tuple(operands[k] for k in wanted), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, torch.float32)


@pytest.mark.parametrize("wanted", [(0,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("before", [(), (3, 2)])
def test_an_output_computed_again(before, wanted, taken):
    operands = tensors(before=before)
    operands = [t if k in wanted else t.detach() for k, t in enumerate(operands)]
    y = pr.functional.linear(*operands, memory="recompute").square()
    got, expected = both_gradients(y, tuple(operands[k] for k in wanted), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("before", [(), (3, 2)])
def test_torch_multiplies_where_its_blas_is_not_found(before, dtype, taken, monkeypatch):
    monkeypatch.setattr(small_linear, "gemm", lambda size: 0)
    operands = tensors(7, 9, 11, dtype, before=before)
    y = pr.functional.linear(*operands, product="tempered:0.7")
    got, expected = both_gradients(y, tuple(operands), torch.randn_like(y))
    assert taken == [True]
    assert_equal_to_rounding(got, expected, dtype)


def test_a_function_that_is_no_matrix_product_is_not_taken_for_one(monkeypatch):
    monkeypatch.setitem(blas._NAMES, 4, "mkl_get_max_threads")  # which looks at nothing
    monkeypatch.setitem(blas._NAMES, 8, "no_such_function")
    assert blas.gemm.__wrapped__(4) == blas.gemm.__wrapped__(8) == 0


def test_many_threads_of_many_sizes_do_not_disturb_each_other():
    layers = [pr.nn.Linear(30, channels) for channels in (3, 400, 30, 1000)]
    inputs = [torch.randn(rows, 30) for rows in (500, 3, 100, 20)]

    def gradients(k):
        return torch.autograd.grad(layers[k](inputs[k]).square().sum(), tuple(layers[k].parameters()))

    alone = [gradients(k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, [k % 4 for k in range(400)]))
    assert all(torch.equal(a, b) for k, some in enumerate(found) for a, b in zip(some, alone[k % 4], strict=True))


@pytest.mark.parametrize("memory", ["save", "recompute"])
@pytest.mark.parametrize("scale", [1.0, 1e12])  # of the bias: a large one drowns p, which is then computed again
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_convolution_of_single_places_with_channels_last_is_one(axes, bias, scale, memory, taken):
    convolve = getattr(pr.functional, f"conv{axes}d")
    x = torch.randn(2, *(4, 5, 3)[:axes], 6, dtype=torch.float64).movedim(-1, 1).requires_grad_()
    w = torch.randn(7, 6, *(1,) * axes, dtype=torch.float64, requires_grad=True)
    b = [(scale * torch.randn(7, dtype=torch.float64)).requires_grad_()] * bias
    y = convolve(x, w, *b, memory=memory)
    stays_last = y.movedim(1, -1).is_contiguous()  # torch has no such layout of one axis, nor all convolutions
    assert stays_last or axes != 2
    y = y * 1.0
    grad = torch.randn(2, *(4, 5, 3)[:axes], 7, dtype=torch.float64).movedim(-1, 1)
    got, expected = both_gradients(y, (x, w, *b), grad)
    assert taken == ([True] if stays_last else [])
    assert_equal_to_rounding(got, expected, torch.float64)


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"groups": 2}], ids=str)
def test_others_are_convolutions(options, taken):
    x = torch.randn(2, 6, 4, 5, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(8, 6 // options.get("groups", 1), 1, 1, dtype=torch.float64, requires_grad=True)
    y = pr.functional.conv2d(x, w, **options)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert taken == []
    assert_equal_to_rounding(got, expected, torch.float64)
