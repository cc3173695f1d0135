"""The rule compiled by itself, as far as a CPU can show it: equal to plain torch, one graph, a pass or two."""

import pytest
import torch
from compare import relative_error
from torch._dynamo.testing import CompileCounterWithBackend

import prproduct as pr
from prproduct.kernels import compiled, fusion
from prproduct.products import Gains, Product

LAYERS = {
    "linear": (lambda x, w, b, product: pr.functional.linear(x, w, b, product=product), (9, 5), (7, 5)),
    "conv2d": (
        lambda x, w, b, product: pr.functional.conv2d(x, w, b, 2, 1, product=product),
        (3, 4, 9, 8),
        (7, 4, 3, 3),
    ),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    fusion._fused.cache_clear()
    with compiled.switched_off():
        yield
    fusion._broken = False


def gradients(name, product="pr", rows=None, seed=0):
    op, input_shape, weight_shape = LAYERS[name]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows or input_shape[0], *input_shape[1:], generator=generator, requires_grad=True)
    w = torch.randn(weight_shape, generator=generator, requires_grad=True)
    y = op(x, w, torch.randn(weight_shape[0], generator=generator), product)
    return torch.autograd.grad(y, (x, w), torch.randn(y.shape, generator=generator))


@pytest.mark.parametrize("product", ["pr", "r", "tempered:0.5", "pr-w", "no-direction"])
@pytest.mark.parametrize("name", LAYERS)
def test_equal_to_plain_torch(name, product):
    expected = gradients(name, product)
    with fusion.on_any_device():
        got = gradients(name, product)
    assert all(relative_error(a, b) <= 1e-5 for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize(("name", "kernels"), [("linear", 3), ("conv2d", 7)])
def test_one_graph_and_a_few_kernels(name, kernels):
    """Sums for the weights and sums for the inputs run over different axes, so one pass cannot do both everywhere.

    Those of a convolution begin with four small ones, for the longest of the weight vectors and their shares of it.
    """
    from torch._inductor import metrics

    metrics.reset()
    torch._dynamo.utils.counters.clear()
    with fusion.on_any_device(), torch._inductor.utils.fresh_inductor_cache():
        gradients(name)
    assert 1 <= metrics.generated_kernel_count <= kernels
    assert len(torch._dynamo.utils.counters["graph_break"]) == 0


def test_compiled_once_for_all_sizes(monkeypatch):
    counter = CompileCounterWithBackend("eager")
    compile_rule = torch.compile
    monkeypatch.setattr(torch, "compile", lambda rule, **options: compile_rule(rule, backend=counter, **options))
    with fusion.on_any_device():
        for rows in (9, 5, 30):
            gradients("linear", rows=rows)
    assert counter.frame_count == 1


class OfTheUsers(Product):
    """Makes no promise, so it may do what no compiler takes."""

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin if pair.cos.max().item() > 2.0 else 1.0)


def test_products_that_promise_nothing_are_left_alone(monkeypatch):
    monkeypatch.setattr(fusion, "split", lambda *_: pytest.fail("compiled"))
    with fusion.on_any_device():
        gradients("linear", OfTheUsers())


def test_a_graph_is_built_of_plain_operations(monkeypatch):
    monkeypatch.setattr(fusion, "split", lambda *_: pytest.fail("compiled"))
    x, w = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True)
    with fusion.on_any_device():
        (first,) = torch.autograd.grad(pr.functional.linear(x, w).square().sum(), w, create_graph=True)
        assert first.requires_grad


def test_without_a_compiler_plain_torch_serves_and_says_so_once(monkeypatch):
    expected = gradients("linear")

    def broken(*_):
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(fusion, "_fused", lambda *_: broken)
    with fusion.on_any_device():
        with pytest.warns(
            UserWarning, match=r"could not be compiled \(Failed to find C compiler\): plain torch serves"
        ):
            got = gradients("linear")
        again = gradients("linear")
    for found in (got, again):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_on_the_cpu_the_rule_is_not_compiled_by_itself(monkeypatch):
    monkeypatch.setattr(fusion, "split", lambda *_: pytest.fail("compiled"))
    gradients("linear")
