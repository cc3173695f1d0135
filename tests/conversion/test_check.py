"""check: true figures, and a model that is left as it was."""

import copy
import enum
import math
import random
from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import Tensor, nn

import prproduct as pr
from prproduct.products import PR, Tempered


class Net(nn.Module):
    """Buffers that move, random numbers of three kinds, a counter, and a layer used only for its weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)
        self.unseen = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.last = x
        x = x * (1 + random.random() + numpy.random.rand())
        x = self.head(self.dropout(self.norm(self.conv(x)).relu()).mean((2, 3)))
        return self.frozen(x @ self.unseen.weight)


@pytest.fixture(name="batch")
def _batch():
    return torch.randn(5, 3, 6, 6)


def everything(model):
    tensors = {name: t.clone() for name, t in model.state_dict(keep_vars=True).items()}
    grads = {name: p.grad for name, p in model.named_parameters()}
    classes = [type(m) for m in model.modules()]
    attributes = [dict(vars(m)) for m in model.modules()]
    return tensors, grads, classes, attributes


@pytest.mark.parametrize("converted", [False, True])
def test_the_model_and_the_random_numbers_are_left_as_they_were(batch, converted):
    model = Net().train()
    if converted:
        pr.convert(model, "pr-w", filter_fn=lambda layer, name: name != "head")
    model(batch).sum().backward()
    tensors, grads, classes, attributes = everything(model)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    kept = copy.deepcopy(grads)
    pr.check(model, batch)
    after, grads_after, classes_after, attributes_after = everything(model)
    assert classes_after == classes
    assert all(torch.equal(after[name], tensors[name]) for name in tensors)
    assert all(grads_after[name] is grads[name] for name in grads)
    assert all(grads[name] is None or torch.equal(grads[name], kept[name]) for name in grads)
    for before, now in zip(attributes, attributes_after, strict=True):
        assert before.keys() == now.keys()
        assert all(before[key] is now[key] for key in before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == states[2]).all()


def test_a_model_that_fails_is_left_as_it_was_too(batch):
    model = Net()
    classes = [type(m) for m in model.modules()]
    with pytest.raises(RuntimeError):
        pr.check(model, batch[:, :2])
    assert [type(m) for m in model.modules()] == classes


def test_norms_and_ratios_are_the_gradients_own():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(7, 6)
    loss = WithLoss(model)
    norms = []
    for product in ("p", "pr"):
        pr.convert(model, product)
        grads = torch.autograd.grad(loss(x).loss, list(model.parameters()))
        norms.append([torch.cat([g.flatten() for g in pair]).norm().item() for pair in (grads[:2], grads[2:])])
    result = pr.check(loss, x)
    assert [row.native for row in result.rows] == pytest.approx(norms[0])
    assert [row.converted for row in result.rows] == pytest.approx(norms[1])
    assert [row.ratio for row in result.rows] == pytest.approx([b / a for a, b in zip(*norms, strict=True)])
    assert result.total.converted == pytest.approx(math.hypot(*norms[1]))
    assert all(row.ratio > 1 for row in result.rows)


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        logits = self.model(x)
        return Output(loss=logits.square().mean(), logits=logits)


@pytest.mark.parametrize("wrap", [lambda t: (t, None), lambda t: {"a": [t], "b": 3}, lambda t: Output(None, t)])
def test_outputs_of_any_shape_are_found(wrap):
    class Wrapped(nn.Sequential):
        def forward(self, x):
            return wrap(super().forward(x))

    assert pr.check(Wrapped(nn.Linear(3, 2)), torch.randn(4, 3)).outputs == 1


def test_keywords_go_to_the_model():
    x = torch.randn(2, 5, 8)
    result = pr.check(nn.MultiheadAttention(8, 2, batch_first=True), x, x, x, need_weights=False)
    assert result.outputs == 1
    assert {row.name for row in result.rows} == {"", "out_proj"}
    assert result.never_called == ()


def test_what_changed_and_what_did_not_is_said(batch):
    model = pr.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    result = pr.check(model, batch)
    assert result.outputs_equal
    assert "the same, bit for bit" in str(result)
    assert result.time_ratio > 0
    assert "times as long" in str(result)
    changed = pr.check(pr.convert(model, "r"), batch)
    assert not changed.outputs_equal
    assert changed.largest_difference > 0.1
    assert "they differ" in str(changed)


def test_a_layer_whose_weights_are_used_without_calling_it_is_named(batch):
    result = pr.check(pr.convert(Net()), batch)
    assert result.never_called == ("unseen",)
    assert "never called, so without effect on this batch: unseen" in str(result)


def test_products_are_shown_and_stay(batch):
    model = pr.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)))
    pr.convert(model, Tempered(0.5), filter_fn=lambda layer, name: name == "1")
    assert [row.product for row in pr.check(model, batch).rows] == ["pr", "tempered:0.5"]
    assert [layer.product for layer in model] == [PR(), Tempered(0.5)]


def test_a_users_subclass_of_a_layer_under_a_product_is_compared_with_itself_under_the_inner_product(batch):
    class Mine(pr.nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Mine(4, 4, 3, product="pr"))
    found = pr.check(model, batch)
    assert found.outputs_equal
    assert {row.name: row.product for row in found.rows} == {"0": None, "1": "pr"}
    assert found.rows[1].ratio > 1
    assert type(model[1]) is Mine
    assert model[1].product == PR()
    with pytest.raises(TypeError, match=r"Mine was not made by convert and has no class to go back to: convert it"):
        pr.revert(model)


def test_it_works_where_gradients_are_switched_off(batch):
    with torch.no_grad():
        assert pr.check(nn.Conv2d(3, 4, 3), batch).outputs_equal


def test_what_cannot_be_checked_is_refused(batch):
    with pytest.raises(ValueError, match="a lazy layer does not know its size"):
        pr.check(nn.LazyConv2d(4, 3), batch)
    with pytest.raises(ValueError, match="no tensor that depends on a parameter"):
        pr.check(nn.Conv2d(3, 4, 3).requires_grad_(False), batch)
    with pytest.raises(ValueError, match="no parameter got a gradient: are all frozen"):
        pr.check(nn.Linear(3, 2).requires_grad_(False), torch.randn(4, 3, requires_grad=True))
    with pytest.raises(ValueError, match="nothing to convert"):
        pr.check(nn.BatchNorm2d(3), batch)
    sparse = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    sparse[1].weight = nn.Parameter(sparse[1].weight.detach().to_sparse())
    with pytest.raises(ValueError, match=r"cannot restore 1\.weight, a sparse_coo tensor: make it dense first$"):
        pr.check(sparse, torch.randn(2, 4))
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode rules them out"):
        pr.check(nn.Conv2d(3, 4, 3), batch)


def test_nan_outputs_count_as_equal():
    assert pr.check(nn.Linear(2, 2), torch.full((1, 2), float("nan"))).outputs_equal


class Around(nn.Module):
    """A linear layer, and a function that says what else happens in forward."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.slow = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("mask", torch.ones(1).expand(4))
        self.seen = []
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def test_nan_equals_nan_alone():
    for value in (0.0, 1.0, math.inf):

        def one_is_nan(model, x, value=value):
            ours = isinstance(model.layer, pr.nn.Linear)
            return model.layer(x), torch.tensor([1.0, math.nan if ours else value])

        assert pr.check(Around(one_is_nan), torch.randn(2, 4)).largest_difference == math.inf


def test_equal_infinities_do_not_hide_a_difference():
    def second_differs(model, x):
        return model.layer(x), torch.tensor([math.inf, 2.0 if isinstance(model.layer, pr.nn.Linear) else 4.0])

    assert pr.check(Around(second_differs), torch.randn(2, 4)).largest_difference == 0.5


def moving_average(model, x):
    with torch.no_grad():
        for slow, fast in zip(model.slow.parameters(), model.layer.parameters(), strict=True):
            slow.mul_(0.9).add_(fast, alpha=0.1)
            slow.data.mul_(0.9)
    return model.layer(x) @ model.slow(x).T


def other_memory(model, x):
    model.slow.weight.data = model.slow.weight.data * 2
    return model.layer(x) + model.slow(x)


def other_parameter(model, x):
    model.slow.weight = nn.Parameter(model.slow.weight.detach() * 2)
    return model.layer(x) + model.slow(x)


def remembers(model, x):
    model.seen.append(x)
    model._buffers["more"] = x
    return model.layer(x) * len(model.seen)


def writes_into_its_input(model, x):
    return model.layer(x.sub_(0.5).mul_(4))


@pytest.mark.parametrize("function", [moving_average, other_memory, other_parameter, remembers, writes_into_its_input])
def test_every_run_starts_from_the_same_state_and_batch(function):
    model, x = Around(function), torch.randn(3, 4)
    pointers = [p.data_ptr() for p in model.parameters()]
    parameters = list(model.parameters())
    versions = [p._version for p in model.layer.parameters()]
    tensors, batch = copy.deepcopy(model.state_dict()), x.clone()
    result = pr.check(model, x)
    assert result.outputs_equal
    assert torch.equal(x, batch)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert [p._version for p in model.layer.parameters()] == versions
    assert model.state_dict().keys() == tensors.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert model.mask.stride() == (0,)
    assert type(model.layer) is nn.Linear
    assert model.seen == []


def test_a_models_own_random_generator_starts_every_run_from_the_same_state():
    model = Around(lambda model, x: model.layer(x + torch.randn(x.shape, generator=model.generator)))
    model.generator = torch.Generator().manual_seed(1)
    before = model.generator.get_state()
    assert pr.check(model, torch.randn(3, 4)).outputs_equal
    assert torch.equal(model.generator.get_state(), before)


def test_a_model_that_calls_backward_itself_keeps_its_gradients():
    def with_backward(model, x):
        model.layer(x).sum().backward()
        return model.layer(x)

    model = Around(with_backward)
    gradient = model.layer.weight.grad = torch.ones_like(model.layer.weight)
    pr.check(model, torch.randn(3, 4))
    assert model.layer.weight.grad is gradient
    assert gradient.eq(1).all()
    assert model.layer.bias.grad is None


def test_gradients_of_complex_parameters_count_with_both_parts():
    model = Around(lambda model, x: model.layer(x) * model.phase)
    model.phase = nn.Parameter(torch.full((4,), 1j))
    assert pr.check(model, torch.randn(3, 4)).rows[0].native > 0


def test_a_batch_is_copied_whole_and_keeps_who_is_who():
    def writes(model, x):
        assert x["a"] is x["b"][0] is x["c"].tensor
        x["c"].tensor.add_(1)
        x["b"].append(3)
        return model.layer(x["a"])

    tensor = torch.randn(2, 4)
    batch = {"a": tensor, "b": [tensor], "c": SimpleNamespace(tensor=tensor), "d": (i for i in range(3))}
    before = tensor.clone()
    assert pr.check(Around(writes), batch).outputs_equal
    assert torch.equal(tensor, before)
    assert len(batch["b"]) == 1


class Kind(enum.Enum):
    PLAIN = 1


def test_outputs_may_hold_enums_cycles_and_the_model():
    def cyclic(model, x):
        output = SimpleNamespace(y=[model.layer(x)], kind=Kind.PLAIN, type=Kind, model=model, next=None)
        output.next = output
        return {"output": output, "kind": Kind.PLAIN}

    assert pr.check(Around(cyclic), torch.randn(2, 4)).outputs == 1


def test_an_attribute_product_of_the_models_own_stays():
    model = nn.Sequential(nn.Linear(4, 4))
    model.product = None
    pr.check(model, torch.randn(2, 4))
    assert vars(model)["product"] is None


def test_tensors_and_lists_inside_of_containers_are_restored():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.statistics, self.log = {"mean": torch.zeros(3)}, {"norms": ([],)}

        def forward(self, x):
            y = self.layer(x)
            self.statistics["mean"].mul_(0.9).add_(0.1 * y.detach().mean(0))
            self.log["norms"][0].append(y.norm().item())
            return y - self.statistics["mean"]

    model = Normalised()
    assert pr.check(model, torch.randn(5, 3)).outputs_equal
    assert torch.equal(model.statistics["mean"], torch.zeros(3))
    assert model.log == {"norms": ([],)}


def test_complex_outputs_are_checked_and_sparse_and_nested_ones_refused():
    class Ending(nn.Sequential):
        def __init__(self, end):
            super().__init__(nn.Linear(4, 4))
            self.end = end

        def forward(self, x):
            return self.end(super().forward(x))

    found = pr.check(Ending(torch.fft.rfft), torch.randn(5, 4))
    assert found.outputs_equal
    assert found.rows[0].native > 0
    for end in (torch.Tensor.to_sparse, lambda y: torch.nested.as_nested_tensor([y[0], y[1]], layout=torch.jagged)):
        with pytest.raises(TypeError, match="output holds a sparse or nested one"):
            pr.check(Ending(end), torch.randn(5, 4))
