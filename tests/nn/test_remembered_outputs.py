"""memory="recompute" computes p again only where nobody else kept the output."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import prproduct as pr
from prproduct.kernels import outputs
from prproduct.kernels.outputs import Remembered
from prproduct.kernels.sums import Found


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each layer's backward, whether it found its output."""
    answers: list[bool] = []
    find = Remembered.find

    def watched(self: Remembered) -> Found:
        result = find(self)
        answers.append(result.output is not None)
        return result

    monkeypatch.setattr(Remembered, "find", watched)
    return answers


class Residual(nn.Module):
    """BatchNorm keeps the first convolution's output, nobody the second's."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.in_place = nn.BatchNorm2d(4), in_place

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.norm(self.first(x)).relu())
        if self.in_place:
            y += x
            return y
        return x + y


def both(net: nn.Module) -> tuple[nn.Module, nn.Module]:
    return pr.convert(copy.deepcopy(net), memory="save"), pr.convert(copy.deepcopy(net), memory="recompute")


def train(net: nn.Module, x: Tensor, step: Callable[[Tensor], Any] = lambda loss: loss.backward()) -> list[Tensor]:
    net.zero_grad()
    step(net(x).square().sum())
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_an_output_that_batchnorm_keeps_is_found(found: list[bool]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    saving, recomputing = both(net.append(nn.Flatten()).append(nn.Linear(64, 2)))
    x = torch.randn(2, 3, 8, 8)
    expected, actual = train(saving, x), train(recomputing, x)
    assert found == [False, True, True]  # from the last to the first
    assert_same(actual, expected)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_nobody_keeps_is_computed_again(found: list[bool], in_place: bool) -> None:
    """The input that is added to the second convolution's output is none that autograd knows."""
    saving, recomputing = both(nn.Sequential(Residual(in_place), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)))
    x = torch.randn(2, 4, 6, 6)
    expected, actual = train(saving, x), train(recomputing, x)
    assert found == [False, False, True]
    assert_same(actual, expected)


def test_memory_is_free_after_forward_and_after_backward() -> None:
    lay = []
    block = pr.convert(nn.Sequential(Residual(), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)), memory="recompute")
    for layer in (block[0].first, block[0].second):
        layer.register_forward_hook(lambda layer, given, output: lay.append(StorageWeakRef(output.untyped_storage())))
    loss = block(torch.randn(2, 4, 6, 6)).square().sum()
    first, second = lay
    assert (first.expired(), second.expired()) == (False, True)
    loss.backward()
    assert first.expired()  # though the graph is there as long as the loss


def test_memory_whose_size_was_taken_away(found: list[bool]) -> None:
    layer = pr.nn.Linear(3, 4, memory="recompute")
    x = torch.randn(5, 3)
    output = layer(x)
    loss = (output * torch.arange(4.0)).sum()
    output.untyped_storage().resize_(0)
    loss.backward()
    assert found == [False]
    other = pr.nn.Linear(3, 4, memory="save")
    other.load_state_dict(layer.state_dict())
    (other(x) * torch.arange(4.0)).sum().backward()
    assert_same([layer.weight.grad], [other.weight.grad])  # type: ignore[list-item]


def test_backward_twice(found: list[bool]) -> None:
    net = pr.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)), memory="recompute")
    loss = net(torch.randn(2, 3, 8, 8)).square().sum()
    gradients = [torch.autograd.grad(loss, list(net.parameters()), retain_graph=True) for _ in range(2)]
    assert found == [True, True, True, True]  # with the graph, all is kept
    assert_same(list(gradients[0]), list(gradients[1]))


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_of_gradients(in_place: bool) -> None:
    def penalty(loss: Tensor, net: nn.Module) -> None:
        sum(g.square().sum() for g in torch.autograd.grad(loss, list(net.parameters()), create_graph=True)).backward()  # type: ignore[union-attr]

    nets = both(nn.Sequential(Residual(in_place), nn.BatchNorm2d(4)).double())
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    saving, recomputing = (train(net, x, lambda loss, net=net: penalty(loss, net)) for net in nets)  # type: ignore[misc]
    assert_same(saving, recomputing)


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_checkpoints(reentrant: bool) -> None:
    saving, recomputing = both(nn.Sequential(nn.Conv2d(4, 4, 1), Residual(), nn.BatchNorm2d(4)))
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    kept = [checkpoint(net, x, use_reentrant=reentrant) for net in (saving, recomputing)]
    for output in kept:
        output.square().sum().backward()  # type: ignore[union-attr]
    assert_same(*([p.grad for p in net.parameters() if p.grad is not None] for net in (saving, recomputing)))


def test_threads_at_once() -> None:
    saving, recomputing = both(nn.Sequential(Residual(), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)))
    inputs = [torch.randn(2, 4, 6, 6) for _ in range(4)]
    expected = [train(saving, x) for x in inputs]
    wrong = []

    def work(x: Tensor, wanted: list[Tensor]) -> None:
        net = copy.deepcopy(recomputing)
        for _ in range(20):
            try:
                assert_same(train(net, x), wanted)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at it itself
def test_compiled_autograd_does_not_mistake_an_output_for_a_constant() -> None:
    saving, recomputing = both(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)))
    for _ in range(3):
        x = torch.randn(5, 3)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):  # type: ignore[no-untyped-call]
            actual = train(recomputing, x)
        assert_same(actual, train(saving, x))


def test_forward_alone_leaves_little_behind() -> None:
    layer = pr.nn.Linear(3, 4, memory="recompute")
    lay = []
    for _ in range(5):
        lay.append(StorageWeakRef(layer(torch.randn(2, 3)).untyped_storage()))
    gc.collect()
    assert all(place.expired() for place in lay)
    assert outputs.not_held.maxlen is not None


def test_what_was_written_into_isnot_held_after_backward() -> None:
    net = pr.convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), memory="recompute")
    lay: list[StorageWeakRef] = []
    net[1].register_forward_hook(lambda layer, given, output: lay.append(StorageWeakRef(output.untyped_storage())))
    loss = net(torch.randn(5, 3)).square().sum()
    assert not lay[0].expired()
    loss.backward()
    assert lay[0].expired()


def test_threads_that_go_forward_while_others_go_back() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    weight, x, errors, done = torch.randn(1, 1, requires_grad=True), torch.randn(1, 1), [], threading.Event()

    def forward() -> None:
        while not done.is_set():
            [pr.functional.linear(x, weight, memory="recompute") for _ in range(50)]

    def train() -> None:
        try:
            for _ in range(500):
                torch.autograd.grad(pr.functional.linear(x, weight, memory="recompute"), weight)
        except BaseException as error:
            errors.append(error)

    others, trainers = ([threading.Thread(target=work) for _ in range(2)] for work in (forward, train))
    try:
        for thread in (*others, *trainers):
            thread.start()
        for thread in trainers:
            thread.join()
    finally:
        done.set()
        sys.setswitchinterval(interval)
    for thread in others:
        thread.join()
    assert not errors


def test_what_was_written_into_is_not_taken_though_it_is_there() -> None:
    gradients = []
    for memory in ("save", "recompute"):
        torch.manual_seed(0)
        layer = pr.nn.Conv2d(3, 4, 3, memory=memory)  # type: ignore[arg-type]
        output = layer(torch.randn(2, 3, 6, 6))
        output.mul_(0.01)
        (100.0 * output * torch.randn_like(output)).sum().backward()
        gradients.append(layer.weight.grad)
    assert_same([gradients[1]], [gradients[0]])
