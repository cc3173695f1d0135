"""The compiled passes against plain torch: every layer and layout, any number of threads, beside others and forked."""

import ctypes
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from compare import relative_error
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import prproduct as pr
from prproduct.kernels import compiled, linear_rule, memory, rules, scores, threads
from prproduct.kernels.choice import gradient_rule
from prproduct.kernels.contractions import Linear
from prproduct.kernels.pairs import floor_of_sin_square
from prproduct.kernels.programs import program_of
from prproduct.products import Gains, Pair, Product, resolve

PRODUCTS = ["pr", "r", "tempered:0.3", "tempered:0.5", "no-length", "no-direction", "no-direction-w", "pr-w"]
LAYERS = {
    "linear": (pr.functional.linear, (7, 5), (3, 5), {}),
    "linear, wider than a strip": (pr.functional.linear, (7, 5), (1100, 5), {}),
    "linear, more rows than a block": (pr.functional.linear, (150, 5), (3, 5), {}),
    "linear, one vector": (pr.functional.linear, (5,), (3, 5), {}),
    "linear, one weight": (pr.functional.linear, (2, 7, 5), (5,), {}),
    "linear, one feature": (pr.functional.linear, (7, 1), (3, 1), {}),
    "conv1d": (pr.functional.conv1d, (3, 4, 9), (6, 4, 3), {"padding": 1}),
    "conv2d": (pr.functional.conv2d, (3, 4, 9, 8), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "conv2d, larger than a strip": (pr.functional.conv2d, (2, 3, 30, 31), (4, 3, 3, 3), {"padding": 1}),
    "conv2d, groups": (pr.functional.conv2d, (3, 4, 9, 8), (6, 2, 3, 2), {"groups": 2, "dilation": 2}),
    "conv2d, depthwise": (pr.functional.conv2d, (3, 4, 9, 8), (4, 1, 3, 3), {"groups": 4}),
    "conv2d, one position": (pr.functional.conv2d, (3, 4, 3, 3), (6, 4, 3, 3), {}),
    "conv3d": (pr.functional.conv3d, (2, 2, 4, 5, 6), (3, 2, 2, 2, 2), {}),
    "conv2d, many channels": (pr.functional.conv2d, (3, 16, 9, 8), (32, 8, 3, 3), {"groups": 2, "padding": 1}),
    "conv2d, more channels than a strip": (pr.functional.conv2d, (2, 4, 4, 3), (1100, 2, 3, 3), {"groups": 2}),
    "conv2d, wide padding": (pr.functional.conv2d, (2, 3, 5, 4), (4, 3, 3, 2), {"padding": 4, "stride": 3}),
    "conv2d, not all is covered": (pr.functional.conv2d, (2, 3, 11, 10), (4, 3, 2, 2), {"stride": 4}),
    "conv_transpose1d": (pr.functional.conv_transpose1d, (2, 4, 5), (4, 6, 3), {"stride": 3, "output_padding": 2}),
    "conv_transpose1d, kernel 1": (
        pr.functional.conv_transpose1d,
        (2, 4, 5),
        (4, 6, 1),
        {"output_padding": 1, "dilation": 2},
    ),
    "conv_transpose2d": (pr.functional.conv_transpose2d, (2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "groups": 2}),
}


MAIN_PASSES = ("split_rows", "split_planes", "split_last", "depthwise_planes")


def main_pass(name):
    """The one that does most of a layer's backward, where channels are not last."""
    return "split_rows" if "linear" in name else "depthwise_planes" if "depthwise" in name else "split_planes"


@pytest.fixture
def passes_run(monkeypatch):
    """The names of the passes as they run."""
    names, play = [], scores.Score.play

    def note(score, threads, *given):
        names.extend(phase.kernel.__name__ for phase in score.phases)
        play(score, threads, *given)

    monkeypatch.setattr(scores.Score, "play", note)
    return names


def operands(name, dtype, seed=0):
    op, input_shape, weight_shape, options = LAYERS[name]
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(shape, generator=generator, dtype=dtype) for shape in (input_shape, weight_shape))
    x, w = x.requires_grad_(), w.requires_grad_()
    outputs = 1 if len(weight_shape) == 1 else weight_shape[0] if "transpose" not in name else 6
    bias = None if len(weight_shape) == 1 else torch.randn(outputs, generator=generator, dtype=dtype)
    return op, x, w, bias, options


def both_gradients(y, tensors, grad):
    """By the compiled passes, and by plain torch."""
    got = torch.autograd.grad(y, tensors, grad, retain_graph=True)
    with compiled.switched_off():
        return got, torch.autograd.grad(y, tensors, grad, retain_graph=True)


def assert_equal_to_rounding(got, expected, dtype):
    """Absolutely where a gradient is zero but for rounding, as that of `no-length` for vectors of one feature."""
    tolerance = 1e-13 if dtype == torch.float64 else 2e-5
    for a, b in zip(got, expected, strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max())


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


@pytest.mark.parametrize("name", ["conv2d, depthwise", "conv2d, many channels"])
def test_channels_last_by_any_number_of_threads(name, set_threads):
    op, x, w, bias, options = operands(name, torch.float32)
    x, w = (t.detach().contiguous(memory_format=torch.channels_last).requires_grad_() for t in (x, w))
    grad = torch.randn_like(op(x, w, bias, **options))
    for count in (1, 2, 3):
        set_threads(count)
        y = op(x, w, bias, **options)
        got, expected = both_gradients(y, (x, w), grad)
        assert_equal_to_rounding(got, expected, torch.float32)
        again = torch.autograd.grad(y, (x, w), grad)
        assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


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


def step() -> torch.Tensor:
    torch.manual_seed(0)
    layer, x = pr.nn.Linear(20, 700), torch.randn(600, 20)
    layer(x).square().sum().backward()
    return layer.weight.grad


@pytest.fixture
def set_threads(monkeypatch):
    """Sets how many torch uses, for one test, in which nothing is too small to be shared between them."""
    monkeypatch.setattr(threads, "_SMALL", 1)
    monkeypatch.setattr(threads, "_SMALL_FOR_OURS", 1)
    monkeypatch.setattr(threads, "_cores", lambda: 64)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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


@dataclass(frozen=True)
class OwnValue(Product):
    """Half of p where the angle is acute."""

    elementwise = True
    factor: float = 0.5

    def gains(self, pair: Pair) -> Gains:
        return Gains(1.0, pair.inverse_sin)

    def value(self, pair: Pair) -> torch.Tensor:
        return torch.where(pair.cos > 0.0, self.factor, 1.0)


def test_a_users_forward_runs_compiled_and_may_change_and_one_that_is_a_number_does_not(passes_run):
    x, w = torch.randn(5, 3), torch.randn(4, 3)
    p = x @ w.T
    assert torch.allclose(pr.functional.linear(x, w, product=OwnValue(0.25)), torch.where(p > 0, p / 4, p))
    assert "split_rows" in passes_run
    passes_run.clear()

    class Changing(Product):
        elementwise = True
        factor = 0.25

        def gains(self, pair: Pair) -> Gains:
            return Gains(1.0, 1.0)

        def value(self, pair: Pair) -> torch.Tensor:
            return self.factor * abs(pair.cos)

    changing = Changing()
    before = pr.functional.linear(x, w, product=changing)
    changing.factor = 0.5
    assert torch.allclose(pr.functional.linear(x, w, product=changing), 2 * before)
    passes_run.clear()

    class Doubled(Product):
        elementwise = True

        def gains(self, pair: Pair) -> Gains:
            return Gains(2.0, 2.0)

        def value(self, pair: Pair) -> float:
            return 2.0

    assert torch.allclose(pr.functional.linear(x, w, product=Doubled()), 2 * p)
    assert not passes_run


def test_any_number_of_threads_and_each_of_them_repeatably(set_threads):
    set_threads(1)
    alone = step()
    for count in (2, 3, 8):
        set_threads(count)
        results = [step() for _ in range(3)]
        assert all(torch.equal(result, results[0]) for result in results[1:])
        assert relative_error(results[0], alone) <= 1e-6


def test_follows_the_number_of_torchs_threads(set_threads, monkeypatch):
    shares, play = [], scores.Score.play
    monkeypatch.setattr(
        scores.Score, "play", lambda score, count, *given: shares.append(count) or play(score, count, *given)
    )
    for count in (1, 3):
        set_threads(count)
        shares.clear()
        step()
        assert max(shares) == count


def test_without_openmp_threads_of_ours_that_would_wait_for_torchs_are_not_started(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert threads.threads_for(threads._SMALL, 100) == 4
    monkeypatch.setattr(threads, "openmp", lambda: None)
    for cores, expected in ((4, 1), (5, 2), (8, 4), (64, 4)):
        monkeypatch.setattr(threads, "_cores", lambda cores=cores: cores)
        assert threads.threads_for(threads._SMALL_FOR_OURS, 100) == expected
        assert threads.threads_for(threads._LONG, 100) == 4
        assert threads.threads_for(threads._LONG, 3) == 3
        assert threads.threads_for(threads._SMALL_FOR_OURS - 1, 100) == 1


def test_torchs_own_threads_are_found():
    assert threads.openmp() is not None


@pytest.mark.parametrize(
    "name", ["linear, more rows than a block", "conv2d, larger than a strip", "conv2d, many channels"]
)
def test_torchs_threads_and_ours_give_the_same(name, set_threads, monkeypatch):
    set_threads(2)
    op, x, w, bias, options = operands(name, torch.float32)
    y = op(x, w, bias, **options)
    grad = torch.randn_like(y)
    by_torchs = torch.autograd.grad(y, (x, w), grad, retain_graph=True)
    monkeypatch.setattr(threads, "openmp", lambda: None)
    by_ours = torch.autograd.grad(y, (x, w), grad)
    assert all(torch.equal(a, b) for a, b in zip(by_torchs, by_ours, strict=True))


@pytest.mark.parametrize("scale", [1.0, 1e6])  # of the bias: a large one drowns p, which is then computed again
def test_a_team_smaller_than_asked_for_does_all_the_work(scale, set_threads, monkeypatch):
    """OpenMP may give fewer threads than it is asked for: inside of a parallel region it gives one."""
    set_threads(3)
    op, x, w, bias, _ = operands("linear, more rows than a block", torch.float32)
    y = op(x, w, bias * scale)
    monkeypatch.setattr(linear_rule, "threads_for", lambda numbers, pieces: 3)
    by_three = torch.autograd.grad(y, (x, w), torch.ones_like(y), retain_graph=True)
    told = (ctypes.cast(f, ctypes.c_void_p).value for f in (ALONE, ONE, ALONE))
    lonely = (lambda address, packed, *rest: scores.conductor().call(packed), *told)
    monkeypatch.setattr(threads, "openmp", lambda: lonely)
    alone = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert all(torch.equal(a, b) for a, b in zip(by_three, alone, strict=True))


def test_a_pass_that_waits_sees_all_that_came_before_and_what_it_forbids_is_left_out(set_threads):
    set_threads(2)
    x, total = torch.randn(64, 300), torch.zeros(64, 300)
    norms, inverses, sums, flag = (torch.zeros(64, dtype=d) for d in (x.dtype, x.dtype, torch.float64, torch.float64))
    vectors = (64, 1, 300, 0, 300, 0)
    measure = (*vectors, x.data_ptr(), norms.data_ptr(), inverses.data_ptr(), sums.data_ptr())
    # Two shares of sums, as if each thread's norms were its own: the pass behind has to wait for both.
    along = (*vectors, x.data_ptr(), inverses.data_ptr(), sums.data_ptr(), 1, 0, total.data_ptr(), 1)
    first = scores.Phase(compiled.passes().norms_of_vectors[4], 0, 64, measure)
    then = scores.Phase(compiled.passes().add_along[4], 0, 64, along, waits=True, unless=flag.data_ptr())
    for _ in range(20):
        sums.zero_()
        scores.in_turn(2, first, then)
        assert relative_error(total[:2], x[:2] / norms[:2, None] * sums[:2, None].float()) <= 1e-6
    flag[0] = 1.0
    total.fill_(7.0)
    scores.in_turn(2, first, then)
    assert (total == 7.0).all()


@pytest.mark.parametrize("ours", [False, True])
def test_a_score_is_played_with_other_memory_and_another_range_each_time(ours, set_threads, monkeypatch):
    set_threads(2)
    monkeypatch.setattr(threads, "openmp", (lambda: None) if ours else threads.openmp)
    vectors, norms, start, end = map(scores.stand_in, range(4))
    integers = (8, 1, 100, 0, 100, 0, vectors, norms, norms + 8 * 4, 0)  # the inverses lie behind the norms
    score = scores.Score(scores.Phase(compiled.passes().norms_of_vectors[4], start, end, integers))
    for first, last in ((0, 8), (3, 5)):
        x, found = torch.randn(8, 100), torch.zeros(2, 8)
        score.play(2, x.data_ptr(), found.data_ptr(), first, last)
        norm = torch.zeros(8).index_copy(0, torch.arange(first, last), x[first:last].norm(dim=1))
        assert relative_error(found[0], norm) <= 1e-6
        assert relative_error(found[1], torch.where(norm > 0, 1 / norm, 0.0)) <= 1e-6


def test_shapes_without_end_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(rules, "_REMEMBERED", 3)
    weight = torch.randn(4, 5, requires_grad=True)
    for rows in range(1, 9):
        pr.functional.linear(torch.ones(rows, 5), weight).sum().backward()
        assert len(program_of(resolve("pr")).passes) <= 3


# What threads of a team of one are told.
ALONE = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
ONE = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)


def test_backward_in_several_threads_at_once(set_threads):
    set_threads(2)
    torch.manual_seed(0)
    layer, x = pr.nn.Linear(20, 700), torch.randn(600, 20)

    def gradient(_):
        return torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]

    expected = gradient(None)
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(got, expected) for got in pool.map(gradient, range(32)))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning", "ignore:.*multi-threaded, use of fork.*")
def test_backward_after_a_fork(set_threads):
    """The child has the pool of its parent, but not its threads."""
    set_threads(2)
    expected = step()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        got = pool.apply_async(_forked_norm).get(timeout=60)
    assert got == pytest.approx(expected.norm().item(), rel=1e-6)


def _forked_norm() -> float:
    torch.set_num_threads(1)  # torch's own threads do not survive a fork either
    torch.get_num_threads, before = lambda: 2, torch.get_num_threads
    try:
        return step().norm().item()
    finally:
        torch.get_num_threads = before


def test_when_no_more_threads_start_one_does_it_all(set_threads, monkeypatch):
    """As while the interpreter shuts down."""
    monkeypatch.setattr(threads, "openmp", lambda: None)
    set_threads(3)
    expected = step()

    def refuse(*arguments):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(threads._pool, "submit", refuse)
    assert relative_error(step(), expected) <= 1e-6


@pytest.mark.parametrize("product", PRODUCTS[:1] + PRODUCTS[2:])  # `r` has no closed form through time
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_equal_plain_torch(kind, product):
    layer = getattr(pr.nn, kind)(3, 4, product=product).double()
    output = layer(torch.randn(5, 2, 3, dtype=torch.float64))[0]
    got, expected = both_gradients(output, tuple(layer.parameters()), torch.randn_like(output))
    assert_equal_to_rounding(got, expected, torch.float64)


def test_without_llvm_plain_torch_serves(monkeypatch, passes_run):
    with_passes = step()
    assert passes_run
    passes_run.clear()
    monkeypatch.setattr(compiled, "passes", lambda: None)
    torch.testing.assert_close(step(), with_passes, rtol=1e-4, atol=1e-4)
    assert not passes_run


def test_a_pass_refuses_another_number_of_integers():
    with pytest.raises(TypeError, match="norms_of_vectors takes 10 integers, not 3"):
        scores.share_out(compiled.passes().norms_of_vectors[4], 1, 0, 1, 1, 2, 3)


class Own(Product):
    """A user's product, and not a frozen one."""

    elementwise = True

    def __init__(self, limit):
        self.limit = limit

    def gains(self, pair):
        turned = torch.where(pair.cos > 0, pair.inverse_sin.clamp(1.1, self.limit), -pair.sin / 2)
        return Gains(length=1 / (1 + pair.cos.square()).rsqrt(), direction=turned * pair.weight_norm.sqrt())

    def input_gains(self, pair, weight_gains):
        return Gains(length=0.5, direction=torch.maximum(pair.cos.abs(), pair.input_norm.exp().log()))


@pytest.mark.parametrize("name", ["linear", "conv2d, groups"])
def test_a_products_own_rule_runs_compiled_and_may_change(name, passes_run):
    op, x, w, bias, options = operands(name, torch.float64)
    product = Own(1.5)
    y = op(x, w, bias, **options, product=product)
    grad = torch.randn_like(y)
    first, expected = both_gradients(y, (x, w), grad)
    assert any(run.startswith("split") for run in passes_run)
    assert_equal_to_rounding(first, expected, torch.float64)
    product.limit = 1.2
    second, expected = both_gradients(y, (x, w), grad)
    assert_equal_to_rounding(second, expected, torch.float64)
    assert relative_error(second[1], first[1]) > 1e-3


class Centred(Product):
    """What no list of elementwise operations can say."""

    elementwise = False

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin / pair.inverse_sin.mean())


class Branching(Product):
    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin if pair.cos.max() > 0 else 1.0)


class Scaled(Product):
    """By a tensor, whose value may change."""

    factor = torch.tensor(2.0, dtype=torch.float64)

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.inverse_sin * self.factor)


@pytest.mark.parametrize("product", [Centred(), Branching(), Scaled()])
def test_other_rules_run_in_plain_torch(product, passes_run):
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias, product=product)
    got, expected = both_gradients(y, (x, w), torch.randn_like(y))
    assert not any(run.startswith("split") for run in passes_run)
    assert_equal_to_rounding(got, expected, torch.float64)


def test_storages_stay_resizable():
    """FSDP frees and refills those of the weights."""
    op, x, w, bias, _ = operands("linear", torch.float32)
    y = op(x, w, bias)
    y.backward(grad := torch.ones_like(y))
    for t in (x, w, y, grad, x.grad, w.grad):
        t.untyped_storage().resize_(0)


class OnlyNorms(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(length=1.0, direction=pair.weight_norm)


class InPlace(Product):
    elementwise = True

    def gains(self, pair):
        direction = pair.inverse_sin * 1.0
        direction.clamp_(max=1.05)
        return Gains(1.0, direction)


class AsksForTheDtype(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin if pair.cos.dtype is torch.float64 else 1.0)


class AsksWhetherItIsATensor(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin if isinstance(pair.cos, torch.Tensor) else 1.0 + abs(pair.cos))


class AddsTruths(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin * ((pair.cos > -0.5) + (pair.cos > 0.0)))


@pytest.mark.parametrize(
    "kind", [Centred, Branching, Scaled, OnlyNorms, InPlace, AsksForTheDtype, AsksWhetherItIsATensor, AddsTruths]
)
def test_a_rule_that_only_says_it_is_elementwise_is_refused(kind, monkeypatch):
    monkeypatch.setattr(kind, "elementwise", True)
    op, x, w, bias, _ = operands("linear", torch.float64)
    with pytest.raises(TypeError, match="says that it is elementwise, but is not"):
        op(x, w, bias, product=kind()).sum().backward()


def test_the_promise_is_not_inherited():
    class Own(pr.products.PR):
        pass

    assert pr.products.PR.elementwise
    assert not Own.elementwise


class WhereMethod(Product):
    elementwise = True

    def gains(self, pair):
        return Gains(1.0, pair.inverse_sin.where(pair.cos > 0.0, 1.0))


def test_where_as_a_method():
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias, product=WhereMethod())
    assert_equal_to_rounding(*both_gradients(y, (x, w), torch.randn_like(y)), torch.float64)


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


def test_a_gradient_that_is_known_to_be_zero():
    op, x, w, bias, _ = operands("linear", torch.float64)
    y = op(x, w, bias)
    zero = torch._efficientzerotensor(y.shape, dtype=y.dtype)
    assert torch.autograd.grad(y, w, zero)[0].count_nonzero() == 0


def test_squares_of_long_vectors_add_up_exactly():
    """Where a float32 sum of so many squares would be off by 1e-4, and with it the angle to a parallel vector."""
    x = torch.full((1, 1_000_000), 0.1)
    rule = linear_rule.LinearRule(
        Linear(), program_of(resolve("pr")), x, torch.ones_like(x), None, x.sum(1, keepdim=True)
    )
    rule.measure()
    place = rule.passes.norm - linear_rule.MEMORY
    norm = ctypes.c_float.from_address(rule.memory.data_ptr() + place).value
    assert norm == pytest.approx(x.double().norm().item(), rel=1e-7)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_memory_given_may_be_the_gradients_own(product):
    x, w = torch.randn(9, 5), torch.randn(7, 5)
    grad = torch.randn(9, 7)
    with torch.no_grad():
        rule = gradient_rule(Linear(), resolve(product), x, w, None, x @ w.T, grad)
        expected = rule.gradients(grad, True, True)
        rule = gradient_rule(Linear(), resolve(product), x, w, None, x @ w.T, grad)
        got = rule.gradients(grad.clone(), True, True, overwrite=True)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


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
