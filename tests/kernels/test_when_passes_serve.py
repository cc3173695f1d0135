"""When the compiled passes serve, when they leave it to plain torch, and whose memory they take and keep."""

import subprocess
import sys
import threading

import torch
from compare import relative_error
from kernel_cases import assert_equal_to_rounding, operands, step
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import prproduct as pr
from prproduct.kernels import compiled, memory, rules
from prproduct.kernels.programs import program_of
from prproduct.products import resolve


def test_without_llvm_plain_torch_serves(monkeypatch, passes_run):
    with_passes = step()
    assert passes_run
    passes_run.clear()
    monkeypatch.setattr(compiled, "passes", lambda: None)
    torch.testing.assert_close(step(), with_passes, rtol=1e-4, atol=1e-4)
    assert not passes_run


def test_imported_in_inference_mode_it_serves_all_the_same():
    code = """
import torch
with torch.inference_mode():
    import prproduct as pr
    from prproduct.kernels import compiled
layer = pr.nn.Linear(3, 2)
y = layer(torch.ones(4, 3))
with torch.no_grad():
    assert compiled.serves(y.detach(), layer.weight)
y.sum().backward()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_tangents_of_the_gradient_are_left_to_plain_torch():
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias)
    v, t = torch.randn(2, *y.shape, dtype=y.dtype)
    with forward_ad.dual_level():
        gradient = torch.autograd.grad(y, w, forward_ad.make_dual(v, t), retain_graph=True)[0]
        tangent = forward_ad.unpack_dual(gradient).tangent
    assert_equal_to_rounding([tangent], torch.autograd.grad(y, w, t), torch.float64)


def test_recorded_operations_are_plain_torchs():
    x, w = torch.randn(7, 5), torch.randn(3, 5)

    def gradient(x, w):
        w = w.detach().requires_grad_()
        return torch.autograd.grad(pr.functional.linear(x, w).square().sum(), w)[0]

    recorded = make_fx(gradient)(x, w)
    x, w = torch.randn(7, 5), torch.randn(3, 5)
    assert relative_error(recorded(x, w), gradient(x, w)) <= 1e-5


def test_negated_memory_is_left_to_plain_torch():
    """A flag says that the numbers are to be read with the other sign."""
    negated = torch.randn(7, 5, dtype=torch.complex128).conj().imag
    assert negated.is_neg()
    w = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(pr.functional.linear(negated.clone(), w).square().sum(), w)
    assert_equal_to_rounding(torch.autograd.grad(pr.functional.linear(negated, w).square().sum(), w), expected, w.dtype)


def test_a_gradient_that_is_known_to_be_zero():
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias)
    zero = torch._efficientzerotensor(y.shape, dtype=y.dtype)
    assert torch.autograd.grad(y, w, zero)[0].count_nonzero() == 0


def test_storages_stay_resizable():
    """FSDP frees and refills those of the weights."""
    op, x, w, bias, _ = operands("linear", torch.float32)
    y = op(x, w, bias)
    y.backward(grad := torch.ones_like(y))
    for t in (x, w, y, grad, x.grad, w.grad):
        t.untyped_storage().resize_(0)


def test_large_memory_is_kept_for_the_next_backward_and_never_shared(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(memory, "_spare", threading.local())
    like = torch.empty(0)
    first, second, third = (memory.borrow(like, count) for count in (10, 20, 30))
    memory.give_back(first, second, third)
    assert memory.borrow(like, 5) is second  # the two largest are kept
    assert memory.borrow(like, 25) is third
    assert memory.borrow(like, 5) is not second
    assert memory.borrow(like.double(), 5).dtype == torch.float64


def test_nobody_keeps_the_memory_of_a_gradient(monkeypatch):
    """The gradients of one backward must not change in the next."""
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(rules, "LARGE", 1)
    op, x, w, bias, options = operands("conv2d", torch.float32)
    y = op(x, w, bias, **options)
    first = torch.autograd.grad(y, (x, w), torch.ones_like(y), retain_graph=True)
    copies = [t.clone() for t in first]
    torch.autograd.grad(y, (x, w), torch.randn_like(y))
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))


def test_shapes_without_end_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(rules, "_REMEMBERED", 3)
    weight = torch.randn(4, 5, requires_grad=True)
    for rows in range(1, 9):
        pr.functional.linear(torch.ones(rows, 5), weight).sum().backward()
        assert len(program_of(resolve("pr")).passes) <= 3
