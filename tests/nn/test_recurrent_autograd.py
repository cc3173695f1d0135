"""How recurrent layers and cells live with the rest of autograd: in-place writes, higher order, torch.func, hooks."""

import copy

import pytest
import torch
from compare import Through, assert_close, relative_error
from recurrent_twins import KINDS, build, run, sequence, tensors
from torch import Tensor, nn

import prproduct as pr
from prproduct.ops.recurrence import Recurrence

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("kind", KINDS)
def test_writing_into_the_output_changes_no_gradient(kind):
    _, ours = build(kind)
    x = sequence({})
    outputs = []
    for change in (lambda y: y.mul_(2.0).relu_(), lambda y: (y * 2.0).relu()):
        ours.zero_grad()
        change(ours(x)[0]).sum().backward()
        outputs.append([p.grad.clone() for p in ours.parameters()])
    assert_close(*outputs, 1e-14)


@pytest.mark.parametrize("call", [Recurrence.__call__, Recurrence.unrolled])
@pytest.mark.parametrize("kind", KINDS)
def test_writing_into_the_last_state_changes_no_gradient(kind, call, monkeypatch):
    monkeypatch.setattr(Recurrence, "__call__", call)
    _, ours = build(kind)
    x, found = sequence({}), []
    for change in (lambda s: s.mul_(2.0), lambda s: s * 2.0):
        state = ours(x)[1]
        total = sum(change(s).sum() for s in (state if isinstance(state, tuple) else (state,)))
        found.append(torch.autograd.grad(total, list(ours.parameters()), allow_unused=True))
    assert_close(*([g for g in grads if g is not None] for grads in found), 1e-14)


@pytest.mark.parametrize("product", ["p", "pr"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_carried_from_an_earlier_call_counts_once_under_create_graph(kind, product):
    """The state depends on the weights, so that backward must not follow the path from one to the other twice."""
    native, ours = build(kind, product)
    first, second = sequence({}), sequence({})

    def grads(layer, **options):
        _, state = layer(first)
        return torch.autograd.grad(layer(second, state)[0].square().sum(), list(layer.parameters()), **options)

    with_graph = grads(ours, create_graph=True)
    assert_close(with_graph, grads(ours), 1e-12)
    if product == "p":
        expected = grads(native, create_graph=True)
        twice = [
            torch.autograd.grad(sum(g.square().sum() for g in found), list(layer.parameters()))
            for layer, found in ((ours, with_graph), (native, expected))
        ]
        assert_close(*twice, 1e-10)


def second_order(layer: nn.Module, x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a loss, with their own graph."""
    names = dict(zip(dict(layer.named_parameters()), values, strict=True))
    output, _ = torch.func.functional_call(layer, names, (x,))
    return torch.autograd.grad(output.square().sum(), (x, *values), create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_double_backward_is_the_derivative_of_the_gradient(kind):
    """Of p's; under pr the states themselves pass changed gradients on, so that no finite difference can agree."""
    _, ours = build(kind, Through())
    tensors = [torch.randn(3, 2, 3).double(), *(p.detach().clone() for p in ours.parameters())]
    assert torch.autograd.gradcheck(
        lambda *t: second_order(ours, *t), [t.requires_grad_() for t in tensors], fast_mode=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_double_backward_of_the_closed_form_equals_autograd_step_by_step(kind, monkeypatch):
    _, ours = build(kind, "pr", num_layers=2)
    tensors = [torch.randn(3, 2, 3).double(), *(p.detach().clone() for p in ours.parameters())]
    results = []
    for call in (Recurrence.__call__, Recurrence.unrolled):
        monkeypatch.setattr(Recurrence, "__call__", call)
        leaves = [t.clone().requires_grad_() for t in tensors]
        first = second_order(ours, *leaves)
        results.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
    assert_close(*results, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_each_gradient_has_its_own_memory(kind):
    _, ours = build(kind)
    found = torch.autograd.grad(ours(sequence({}))[0].sum(), list(ours.parameters()))
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights_and_data(kind):
    _, ours = build(kind)
    x = sequence({}).requires_grad_()
    ours(x)[0].sum().backward()
    whole = x.grad.clone()
    ours.requires_grad_(False)
    x.grad = None
    ours(x)[0].sum().backward()
    assert_close([x.grad], [whole], 1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_cells_train_under_autocast(kind):
    ours, cell = getattr(pr.nn, kind)(32, 32, num_layers=2), getattr(pr.nn, f"{kind}Cell")(32, 32)
    x = torch.randn(6, 8, 32)
    exact = [run(ours, x), run(cell, x[0])]
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        half = [run(ours, x), run(cell, x[0])]
    assert half[0][0].dtype == torch.bfloat16
    for got, expected in zip(half, exact, strict=True):
        assert got[-1].dtype == torch.float32
        for a, b in zip(got, expected, strict=True):
            assert (a.float() - b).norm() <= 0.1 * b.norm()


@pytest.mark.parametrize("product", ["pr", "r"])
@pytest.mark.parametrize("kind", KINDS)
def test_cells_work_under_torch_func(kind, product):
    _, cell = build(f"{kind}Cell", product)
    parameters = {name: p.detach() for name, p in cell.named_parameters()}

    def loss(parameters, x):
        return sum(t.square().sum() for t in tensors(torch.func.functional_call(cell, parameters, (x,))))

    x = torch.randn(4, 3).double()
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    whole = torch.func.grad(loss)(parameters, x)
    assert_close([g.sum(0) for g in per_sample.values()], list(whole.values()), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_compile_to_one_graph(kind):
    _, cell = build(f"{kind}Cell")
    x = torch.randn(4, 3).double()
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(cell), fullgraph=True, backend="aot_eager")
    assert_close(run(compiled, x), run(cell, x), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_work_under_torch_func_and_compile(kind):
    _, layer = build(kind)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,))[0].square().sum()

    x = sequence({})
    got = torch.func.grad(loss)(parameters, x)
    loss(dict(layer.named_parameters()), x).backward()
    assert_close(list(got.values()), [p.grad for p in layer.parameters()], 1e-12)
    torch._dynamo.reset()
    # Not fullgraph: torch.compile steps out of its graph for every RNN, torch's own too.
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager")
    assert_close(run(compiled, x), run(layer, x), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_memory_grows_with_the_steps_and_stays_near_torchs(kind):
    def saved(layer: nn.Module, times: int) -> int:
        known = {p.untyped_storage().data_ptr() for p in layer.parameters()}
        storages = {}

        def pack(t):
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            layer(torch.randn(times, 8, 32, requires_grad=True))
        return sum(size for pointer, size in storages.items() if pointer not in known)

    native, ours = getattr(nn, kind)(32, 32), getattr(pr.nn, kind)(32, 32)
    if kind != "RNN":  # which natively keeps nothing but its outputs
        assert saved(ours, 17) <= 1.3 * saved(native, 17)
    assert saved(ours, 200) <= 11 * saved(ours, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_and_hooks_unpack_each_tensor_once(kind):
    layer, x = getattr(pr.nn, kind)(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), (x, *layer.parameters()))
    output = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)[0]
    got = torch.autograd.grad(output.square().sum(), (x, *layer.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    unpacked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(id(t)) or t):
        output = layer(x)[0]
    output.sum().backward()
    assert len(unpacked) == len(set(unpacked))


@pytest.mark.parametrize("kind", KINDS)
def test_saved_tensors_may_come_back_in_another_layout(kind):
    layer, x = getattr(pr.nn, kind)(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), (x, *layer.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.t().contiguous().t() if t.dim() == 2 else t):
        output = layer(x)[0]
    got = torch.autograd.grad(output.square().sum(), (x, *layer.parameters()))
    assert all(relative_error(one, other) <= 1e-5 for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_vectorized_jacobians(kind):
    layer = getattr(pr.nn, kind)(3, 4).double()
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian
    expected = jacobian(lambda x: layer(x)[0], x)
    assert relative_error(jacobian(lambda x: layer(x)[0], x, vectorize=True), expected) <= 1e-12


def test_second_order_gradients_under_autocast_stay_in_the_dtype_of_forward():
    layer, x = pr.nn.LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    output = layer(x)[0]
    expected = torch.autograd.grad(output.square().sum(), x, retain_graph=True)[0]
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        got = torch.autograd.grad(output.square().sum(), x, create_graph=True)[0]
    assert relative_error(got, expected) <= 1e-5
