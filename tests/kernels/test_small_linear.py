"""Small linear layers, whose backward is one straight line: it does what that of large ones does."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compare import relative_error
from kernel_cases import assert_equal_to_rounding, both_gradients

import prproduct as pr
from prproduct.kernels import choice, small_linear


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


def test_many_threads_of_many_sizes_do_not_disturb_each_other():
    layers = [pr.nn.Linear(30, channels) for channels in (3, 400, 30, 1000)]
    inputs = [torch.randn(rows, 30) for rows in (500, 3, 100, 20)]

    def gradients(k):
        return torch.autograd.grad(layers[k](inputs[k]).square().sum(), tuple(layers[k].parameters()))

    alone = [gradients(k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, [k % 4 for k in range(400)]))
    assert all(torch.equal(a, b) for k, some in enumerate(found) for a, b in zip(some, alone[k % 4], strict=True))
