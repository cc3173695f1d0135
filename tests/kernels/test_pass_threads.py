"""On which threads passes run: any number of them, torch's and ours, beside others, in turn, and in forked children."""

import ctypes
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from compare import relative_error
from kernel_cases import assert_equal_to_rounding, both_gradients, operands, step

import prproduct as pr
from prproduct.kernels import compiled, linear_rule, scores, threads
from prproduct.kernels.blas import gemm


def test_any_number_of_threads_and_each_of_them_repeatably(set_threads):
    set_threads(1)
    alone = step()
    for count in (2, 3, 8):
        set_threads(count)
        results = [step() for _ in range(3)]
        assert all(torch.equal(result, results[0]) for result in results[1:])
        assert relative_error(results[0], alone) <= 1e-6


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


# What threads of a team of one are told.
ALONE = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
ONE = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
LONELY = (  # an OpenMP that gives one thread, whatever it is asked for
    lambda address, packed, *rest: scores.conductor().call(packed),
    *(ctypes.cast(f, ctypes.c_void_p).value for f in (ALONE, ONE, ALONE)),
)


@pytest.mark.parametrize("scale", [1.0, 1e6])  # of the bias: a large one drowns p, which is then computed again
def test_a_team_smaller_than_asked_for_does_all_the_work(scale, set_threads, monkeypatch):
    """OpenMP may give fewer threads than it is asked for: inside of a parallel region it gives one."""
    set_threads(3)
    op, x, w, bias, _ = operands("linear, more rows than a block", torch.float32)
    y = op(x, w, bias * scale)
    monkeypatch.setattr(linear_rule, "threads_for", lambda numbers, pieces: 3)
    by_three = torch.autograd.grad(y, (x, w), torch.ones_like(y), retain_graph=True)
    monkeypatch.setattr(threads, "openmp", lambda: LONELY)
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
        scores.Score(first, then).play(2)
        assert relative_error(total[:2], x[:2] / norms[:2, None] * sums[:2, None].float()) <= 1e-6
    flag[0] = 1.0
    total.fill_(7.0)
    scores.Score(first, then).play(2)
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


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("lonely", [False, True])
def test_rounds_see_what_the_one_before_has_done(count, lonely, set_threads, monkeypatch):
    set_threads(count)
    if lonely:
        monkeypatch.setattr(threads, "openmp", lambda: LONELY)
    x, w = torch.randn(40, 30), torch.randn(30, 30) / 30**0.5
    first, last, source, target, weight = map(scores.stand_in, range(5))
    integers = (gemm(4), first, last, 30, source, weight, 30, 0, target, 30, 0)
    score = scores.Score(scores.Phase(compiled.passes().multiply_rows[4], 0, 30, integers, waits=True))
    one, other = x.clone(), torch.zeros_like(x)
    places = [one.data_ptr(), other.data_ptr()] * 3
    rounds = np.array([(2 * k, 40 - k, *places[k : k + 2]) for k in range(5)], dtype=np.int64)
    score.play_rounds(count, 0, rounds, 7, 7, 7, 7, w.data_ptr())
    expected = [x, torch.zeros_like(x)]
    for k in range(5):
        expected[(k + 1) % 2][2 * k : 40 - k] = expected[k % 2][2 * k : 40 - k] @ w
    assert relative_error(other, expected[1]) <= 1e-6
    assert relative_error(one, expected[0]) <= 1e-6


def test_a_pass_refuses_another_number_of_integers():
    with pytest.raises(TypeError, match="norms_of_vectors takes 10 integers, not 3"):
        scores.share_out(compiled.passes().norms_of_vectors[4], 1, 0, 1, 1, 2, 3)


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


def test_a_pass_with_more_integers_than_a_score_has_room_for_is_refused():
    many = compiled.depthwise_moves().move[4]
    with pytest.raises(TypeError, match="move takes 49 integers, more than 32 in a score"):
        scores.Score(scores.Phase(many, 0, 1, [0] * many.integers))
