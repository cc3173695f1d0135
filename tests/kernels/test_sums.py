"""Outputs that are gone are told from sums to which they were added, and from what they are part of."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from compare import assert_close, relative_error
from kernel_cases import LAYERS, PRODUCTS, operands
from torch import Tensor, UntypedStorage, nn

import prproduct as pr
from prproduct.kernels import compiled, outputs
from prproduct.kernels.outputs import Remembered

SUM, ITSELF, NOTHING = "a sum", "itself", "nothing"


@pytest.fixture
def found(monkeypatch):
    """What each layer's backward found, from the last layer to the first."""
    answers, find = [], Remembered.find

    def watched(remembered):
        result = find(remembered)
        answers.append(NOTHING if result.output is None else ITSELF if result.addend is None else SUM)
        return result

    monkeypatch.setattr(Remembered, "find", watched)
    return answers


def kept(t: Tensor) -> Tensor:
    """Something that keeps what it was given, for its backward."""
    return t * t


def head(t: Tensor) -> Tensor:
    """A layer behind all others: when its backward begins, all that nodes keep is still there."""
    weight = torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).requires_grad_()
    return pr.functional.linear(t.flatten(), weight)


def residual(op, x, w, bias, memory, scale=1.0, **options):
    """The gradients of a layer whose output is added to something that others keep, as they do the sum."""
    torch.manual_seed(1)
    addend = torch.randn(op(x, w, bias, **options).shape, dtype=torch.float64).to(x.dtype).requires_grad_()
    y = op(x, w, bias, **options, memory=memory)
    shortcut = addend * scale
    loss = head(kept(y + shortcut) + kept(shortcut))
    del y
    return torch.autograd.grad(loss, (x, w))


@pytest.mark.parametrize("passes", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("product", [product for product in PRODUCTS if product != "r"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_difference_is_as_good_as_the_output(name, product, passes, found):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        if dtype == torch.float32 and ("one feature" in name or "kernel 1" in name):
            continue  # short vectors: the angle itself is lost in rounding
        op, x, w, bias, options = operands(name, dtype)
        results = []
        for memory in ("save", "recompute"):
            with nullcontext() if passes else compiled.switched_off():
                results.append(residual(op, x, w, bias, memory, product=product, **options))
        assert found.pop() == SUM
        scales = [max(1.0, t.norm().item()) for t in results[0]]  # `no-length` with one feature: zero but for rounding
        for kept_one, one, scale in zip(*results, scales, strict=True):
            assert (one - kept_one).norm() <= tolerance * scale


@pytest.mark.parametrize("name", ["linear", "linear, wider than a strip", "conv2d", "conv2d, groups", "conv3d"])
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_what_drowns_p_is_noticed(name, last, with_bias, found):
    """In float32, 1e5 times p leaves two digits of it."""
    op, x, w, bias, options = operands(name, torch.float32)
    if last and x.dim() == 4:
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = bias if with_bias else None
    for passes in (True, False):
        with nullcontext() if passes else compiled.switched_off():
            got, expected = (residual(op, x, w, bias, memory, 1e5, **options) for memory in ("recompute", "save"))
        assert found.pop() == SUM
        assert_close(list(got), list(expected), 2e-5)


@pytest.mark.parametrize("passes", [True, False], ids=["compiled", "plain"])
def test_windows_that_are_small_beside_what_was_added_are_left_as_p_has_them(passes):
    """Their angle is lost in the rounding of the sum; without a raised floor, 1/|sin θ| would be anything."""
    torch.manual_seed(0)
    x, w = torch.randn(64, 32), torch.randn(16, 32, requires_grad=True)
    x[::2] *= 1e-9
    x.requires_grad_()
    with nullcontext() if passes else compiled.switched_off():
        of_x, _ = residual(pr.functional.linear, x, w, None, "recompute")
    plain_x, _ = residual(pr.functional.linear, x, w, None, "recompute", product="p")
    exact = residual(pr.functional.linear, *(t.detach().double().requires_grad_() for t in (x, w)), None, "save")[0]
    assert relative_error(of_x[1::2], exact[1::2]) <= 1e-5
    assert relative_error(of_x[::2], plain_x[::2]) <= 1e-3


@pytest.mark.parametrize("passes", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_one_nan_does_not_hide_that_p_was_drowned(name, passes):
    op, x, w, _, options = operands(name, torch.float32)
    results = []
    for memory in ("save", "recompute"):
        torch.manual_seed(1)
        y = op(x, w, None, **options, memory=memory)
        addend = 1e6 * torch.randn(y.shape, requires_grad=True)
        hidden = torch.zeros(y.shape, dtype=torch.bool)
        hidden.view(-1)[0] = True
        shortcut = torch.where(hidden, torch.nan, addend) * 1.0
        loss = head((kept(y + shortcut) + kept(shortcut)).masked_fill(hidden, 0.0))
        del y
        with nullcontext() if passes else compiled.switched_off():
            results.append(torch.autograd.grad(loss, (x, w)))
    for saved, got in zip(*results, strict=True):
        seen = ~saved.isnan()
        assert relative_error(got[seen], saved[seen]) <= 1e-4


def test_a_graph_that_is_not_understood_costs_a_warning(monkeypatch):
    monkeypatch.setattr(outputs, "find_elsewhere", lambda node, lost: {}["missing"])
    made = pr.convert(net(lambda y, x: y + x), memory="recompute")
    with pytest.warns(UserWarning, match="outputs cannot be looked for .*: they are computed again"):
        made(torch.randn(2, 4, 6, 6)).square().sum().backward()
    assert all(p.grad is not None for p in made.parameters())


class Block(nn.Module):
    """BatchNorm, ReLU, convolution; and how the result goes together with the input."""

    def __init__(self, join, width: int = 4, shortcut: bool = False, **options) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, width, 3, padding=1, **options)
        self.shortcut, self.join = nn.Conv2d(4, width, 1) if shortcut else nn.Identity(), join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.conv(self.norm(x).relu()), self.shortcut(x))


def net(join, width: int = 4, channels: int = 4, **options) -> nn.Module:
    torch.manual_seed(0)
    tail = (nn.BatchNorm2d(channels), nn.Flatten(), nn.Linear(36 * channels, 2))
    return nn.Sequential(nn.Conv2d(4, 4, 1), Block(join, width, **options), *tail)


def compare(made: nn.Module, x: Tensor | None = None, tolerance: float = 1e-5) -> None:
    """A net that keeps nothing, with one that keeps all."""
    x = torch.randn(2, 4, 6, 6) if x is None else x
    saving, forgetting = (pr.convert(copy.deepcopy(made), memory=memory) for memory in ("save", "recompute"))
    results = []
    for one in (saving, forgetting):
        one(x).square().sum().backward()
        results.append([p.grad for p in one.parameters()])
    for position, (a, b) in enumerate(zip(*results, strict=True)):
        assert relative_error(b, a) <= tolerance or (a - b).abs().max() <= 1e-6, position


def in_place(y: Tensor, x: Tensor) -> Tensor:
    y += x
    return y


@pytest.mark.parametrize(
    ("join", "where"),
    {
        "y + x": (lambda y, x: y + x, SUM),
        "x + y": (lambda y, x: x + y, SUM),
        "y += x": (in_place, SUM),
        "torch.add": (lambda y, x: torch.add(x, y), SUM),
        "alpha": (lambda y, x: torch.add(y, x, alpha=0.5), NOTHING),
        "difference": (lambda y, x: x - y, NOTHING),
        "itself": (lambda y, x: y + y, NOTHING),
        "broadcast": (lambda y, x: y + x.mean((2, 3), keepdim=True), NOTHING),
        "widened": (lambda y, x: y[:1] + x, NOTHING),
        "not kept": (lambda y, x: y + 2.0 * x, NOTHING),
        "a constant": (lambda y, x: y + torch.ones_like(x), NOTHING),
        "a number": (lambda y, x: y + 2.0, NOTHING),
    }.values(),
    ids=lambda value: None,
)
def test_how_it_was_added(join, where, found):
    compare(net(join))
    assert found == [NOTHING, where, ITSELF]  # the classifier's output, the block's, and the first one's


def test_of_two_lost_outputs_one_is_computed_again(found, monkeypatch):
    calls: Counter[int] = Counter()
    convolve = nn.functional.conv2d

    def counted(x, w, *arguments):
        calls[w.shape[-1]] += 1
        return convolve(x, w, *arguments)

    made = pr.convert(net(lambda y, x: y + x, shortcut=True), memory="recompute")
    loss = made(torch.randn(2, 4, 6, 6)).square().sum()
    monkeypatch.setitem(pr.kernels.contractions.NATIVE_CONVOLUTIONS, (2, False), counted)
    loss.backward()
    monkeypatch.undo()
    assert calls == {1: 1}  # the shortcut, which came last, and so is the first one back
    compare(net(lambda y, x: y + x, shortcut=True))


@pytest.mark.parametrize(
    ("join", "channels"),
    [
        (lambda y, x: torch.cat([x, y], 1), 7),
        (lambda y, x: torch.cat([y, x], -3), 7),
        (lambda y, x: torch.cat([x, y, x], 1), 11),
        (lambda y, x: torch.cat([y], 1), 3),
        (lambda y, x: torch.cat([x.new_empty(0).requires_grad_() * 1.0, x, y], 1), 7),
    ],
)
def test_a_part_of_what_others_keep(join, channels, found):
    compare(net(join, width=3, channels=channels), tolerance=0.0)
    assert found[1] == ITSELF


def test_behind_something_of_unknown_length_it_is_computed_again(found):
    compare(net(lambda y, x: torch.cat([x.detach(), y], 1), width=3, channels=7))
    assert found[1] == NOTHING


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_take_no_differences(dtype, found):
    made = pr.convert(net(lambda y, x: y + x).to(dtype), memory="recompute")
    made(torch.randn(2, 4, 6, 6).to(dtype)).square().sum().backward()
    assert found[1] == NOTHING


def test_what_hooks_have_packed_is_not_asked_for(found):
    unpacked: Counter[str] = Counter()

    def unpack(packed):
        unpacked["count"] += 1
        return packed

    made = pr.convert(net(lambda y, x: y + x), memory="recompute")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        loss = made(torch.randn(2, 4, 6, 6)).square().sum()
    lost = {node.remembered_output for node in nodes_of(loss.grad_fn) if hasattr(node, "remembered_output")}
    outputs.find_elsewhere(loss.grad_fn, lost)
    assert not unpacked
    assert all(one.elsewhere.output is None for one in lost)


def nodes_of(node):
    seen, todo = set(), [node]
    while todo:
        one = todo.pop()
        if one is not None and one not in seen:
            seen.add(one)
            todo.extend(source for source, _ in one.next_functions)
    return seen


def written(t: Tensor, unseen: str) -> Tensor:
    """With other numbers in it, of which the graph does not know."""
    if unseen == "no_grad":
        with torch.no_grad():
            t.clamp_(-0.1, 0.1)
    else:
        t.detach().clamp_(-0.1, 0.1)
    return t


@pytest.mark.parametrize("unseen", ["no_grad", "detach"])
@pytest.mark.parametrize(
    "join",
    {
        "the output, before an addition": lambda y, x, unseen: written(y, unseen) + x,
        "the output, before one in place": lambda y, x, unseen: in_place(written(y, unseen), x),
        "the output, behind an addition": lambda y, x, unseen: (y + x, written(y, unseen))[0],
        "the output, before cat": lambda y, x, unseen: torch.cat([written(y, unseen), x], 1),
        "what was added": lambda y, x, unseen: (lambda r: (y + r) * written(r, unseen))(1.0 * x),
        "the sum": lambda y, x, unseen: written(y + x, unseen),
        "the sum in place": lambda y, x, unseen: written(in_place(y, x), unseen),
        "all of it": lambda y, x, unseen: written(torch.cat([x, y], 1), unseen),
    }.values(),
    ids=lambda value: None,
)
def test_what_the_graph_does_not_see_written_is_not_taken(join, unseen):
    """As by a clamp that gradients go straight through."""
    channels = join(torch.ones(1, 4, 1, 1), torch.ones(1, 4, 1, 1), unseen).shape[1]
    compare(net(lambda y, x: join(y, x, unseen), channels=channels).double(), torch.randn(2, 4, 6, 6).double(), 1e-10)


@pytest.mark.parametrize("unseen", ["no_grad", "detach"])
def test_nor_what_a_partner_was_told(unseen, found):
    made = net(lambda y, x: written(y, unseen) + x, shortcut=True).double()
    compare(made, torch.randn(2, 4, 6, 6).double(), 1e-10)
    assert SUM not in found


def test_residuals_that_are_added_in_place_one_after_the_other(found):
    """The next block is given the very memory of this one's output, with the sum in it."""
    torch.manual_seed(0)
    blocks = [Block(in_place) for _ in range(3)]
    compare(nn.Sequential(nn.Conv2d(4, 4, 1), *blocks, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)))
    assert found == [NOTHING, SUM, SUM, SUM, ITSELF]


def test_a_sum_that_was_written_into_is_not_taken():
    """Nor is autograd: it would have needed it, too."""
    x = torch.randn(3, 4, requires_grad=True)
    y = pr.functional.linear(x, torch.randn(4, 4, requires_grad=True), memory="recompute")
    total = y + x.sigmoid()
    loss = head(kept(total))
    lost = {node.remembered_output for node in nodes_of(loss.grad_fn) if hasattr(node, "remembered_output")}
    total.mul_(2.0)
    outputs.find_elsewhere(loss.grad_fn, lost)
    assert all(one.elsewhere.output is None for one in lost)


@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("part", [False, True], ids=["all gradients", "those of the classifier"])
def test_nothing_is_held_behind_a_backward(shortcut, part):
    made = pr.convert(net(lambda y, x: y + x, shortcut=shortcut), memory="recompute")
    seen = []
    made[1].register_forward_hook(lambda layer, given, output: seen.append(output.untyped_storage()._weak_ref()))
    loss = made(torch.randn(2, 4, 6, 6)).square().sum()
    gc.disable()  # nor in a circle
    if part:
        torch.autograd.grad(loss, list(made[-1].parameters()))
        del loss
    else:
        loss.backward()
    gc.enable()
    assert UntypedStorage._new_with_weak_ptr(seen[0]) is None  # the sum, though the graph is there as long as the loss
