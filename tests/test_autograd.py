"""How the ops live with the rest of autograd: in-place writes, memory, hooks, higher order, torch.func, compile."""

import copy

import pytest
import torch
from compare import NATIVE_FORWARD, PRODUCTS, assert_close, gradients
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import prproduct as pr
from prproduct import functional, reference

KINDS = ["p", "pr", "pr-w", "r"]  # torch's gradient, both changed, one changed, a forward of its own
CASES = {
    "linear": (functional.linear, reference.linear, (5, 7), (4, 7), 4, {}),
    "linear of a vector": (functional.linear, reference.linear, (7,), (4, 7), 4, {}),
    "linear of sequences": (functional.linear, reference.linear, (2, 3, 7), (4, 7), 4, {}),
    "conv2d": (functional.conv2d, reference.conv2d, (2, 4, 6, 5), (6, 2, 3, 3), 6, {"groups": 2, "padding": 1}),
    "conv_transpose2d": (
        functional.conv_transpose2d,
        reference.conv_transpose2d,
        (2, 4, 3, 3),
        (4, 3, 2, 2),
        3,
        {"stride": 2},
    ),
}


@pytest.fixture(params=CASES, name="case")
def _case(request):
    ours, literal, input_shape, weight_shape, outputs, options = CASES[request.param]
    tensors = [torch.randn(shape).double() for shape in (input_shape, weight_shape, (outputs,))]
    return ours, literal, tensors, options


WRITES = {
    "relu_": lambda y: y.relu_(),
    "+=": lambda y: y.add_(torch.linspace(-1, 1, y.numel()).view(y.shape)),
    "through a view": lambda y: (y.view(-1)[::2].mul_(3.0), y)[1],
    "twice": lambda y: y.mul_(0.5).sigmoid_(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("product", KINDS)
def test_writing_into_the_output_trains_correctly(case, write, product):
    ours, literal, tensors, options = case
    got = gradients(lambda *t: WRITES[write](ours(*t, product=product, **options)), *tensors)
    expected = gradients(
        lambda *t: WRITES[write](literal(*t, product=product, **options).clone().contiguous()), *tensors
    )
    assert_close(got, expected, 1e-12)


def test_only_a_written_output_is_computed_again(case, monkeypatch):
    """Backward reads p off the output; the one extra product is paid only when somebody wrote into it."""
    ours, _, (x, w, b), options = case
    contraction = functional.Linear if ours is functional.linear else functional.Convolution
    calls = []
    native = contraction.native
    monkeypatch.setattr(contraction, "native", lambda self, *args: (calls.append(1), native(self, *args))[1])
    for write, expected in ((lambda y: y, 1), (lambda y: y.relu(), 1), (lambda y: y.relu_(), 2)):
        calls.clear()
        write(ours(x, w.requires_grad_(), b, **options)).sum().backward()
        assert len(calls) == expected


def saved_bytes(net: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the distinct storages that forward keeps for backward, beside the parameters."""
    storages = {}
    parameters = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage().data_ptr() not in parameters:
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = net(x)
    assert output.requires_grad
    return sum(storages.values())


def test_a_conv_bn_relu_net_saves_what_the_native_one_saves():
    def net(layers) -> nn.Module:
        blocks = [
            (layers.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)) for _ in range(4)
        ]
        return nn.Sequential(*(layer for block in blocks for layer in block))

    x = torch.randn(4, 8, 16, 16)
    assert saved_bytes(net(pr.nn), x) <= 1.05 * saved_bytes(net(nn), x)


def test_a_linear_layer_saves_at_most_its_output_beside_the_native_tensors():
    x = torch.randn(64, 32)
    native, ours = nn.Sequential(nn.Linear(32, 48), nn.ReLU()), nn.Sequential(pr.nn.Linear(32, 48), nn.ReLU())
    assert saved_bytes(ours, x) <= saved_bytes(native, x) + 64 * 48 * 4


def test_memory_goes_when_hooks_take_the_saved_tensors_away(case):
    """Nothing but the hooks' own copies keeps the output alive: offloading and checkpointing really free it."""
    ours, _, (x, w, b), options = case
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        output = ours(x, w.requires_grad_(), b, **options)
        loss = output.sum()
    storage = output.untyped_storage()
    references = torch._C._storage_Use_Count(storage._cdata)
    del output
    assert torch._C._storage_Use_Count(storage._cdata) == references - 1
    loss.backward()
    assert_close(
        [w.grad],
        [gradients(ours, x, w, b, upstream=torch.ones_like(loss).expand(ours(x, w, b, **options).shape), **options)[2]],
        1e-14,
    )


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("write", ["nothing", *WRITES])
def test_checkpointing_changes_no_gradient(case, write, reentrant):
    ours, _, tensors, options = case
    change = WRITES.get(write, lambda y: y)
    block = lambda *t: change(ours(*t, **options)).square()  # noqa: E731
    got = gradients(lambda *t: checkpoint(block, *t, use_reentrant=reentrant), *tensors)
    assert_close(got, gradients(block, *tensors), 1e-14)
    if reentrant:
        return  # which runs torch's own linear without gradients, and forbids writing into what it returns
    after = gradients(
        lambda *t: change(checkpoint(lambda *t: ours(*t, **options), *t, use_reentrant=reentrant)).square(), *tensors
    )
    assert_close(after, gradients(block, *tensors), 1e-14)


def test_offloading_to_the_cpu_changes_no_gradient(case):
    ours, _, tensors, options = case

    def offloaded(*leaves):
        with torch.autograd.graph.save_on_cpu():
            return ours(*leaves, **options).relu_()

    assert_close(gradients(offloaded, *tensors), gradients(lambda *t: ours(*t, **options).relu_(), *tensors), 1e-15)


def test_backward_may_run_twice(case):
    ours, _, (x, w, b), options = case
    output = ours(x, w.requires_grad_(), b, **options).sum()
    output.backward(retain_graph=True)
    first = w.grad.clone()
    output.backward()
    assert torch.equal(w.grad, 2 * first)


@pytest.mark.parametrize("product", [product for product in PRODUCTS if product != "p"])
def test_double_backward_is_the_derivative_of_the_closed_form(case, product):
    """`gradcheck` of the gradient itself; `gradcheck` of pr's forward must fail, for that is the point of it."""
    ours, _, tensors, options = case
    tensors = [t.requires_grad_() for t in tensors]
    upstream = torch.randn_like(ours(*tensors, **options)).requires_grad_()

    def gradient(x, w, b, upstream):
        return torch.autograd.grad(ours(x, w, b, product=product, **options), (x, w), upstream, create_graph=True)

    assert torch.autograd.gradcheck(gradient, (*tensors, upstream), fast_mode=True)


def test_gradgradcheck_passes_for_r_whose_backward_is_its_derivative(case):
    ours, _, (x, w, b), options = case
    tensors = (x.requires_grad_(), w.requires_grad_(), b.requires_grad_())
    assert torch.autograd.gradcheck(lambda *t: ours(*t, product="r", **options), tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *t: ours(*t, product="r", **options), tensors, fast_mode=True)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda *t: ours(*t, product="pr", **options), tensors, fast_mode=True)


def test_double_backward_is_finite_at_parallel_and_zero_vectors():
    w = torch.randn(3, 4).double()
    x = torch.stack([w[0], -2 * w[1], torch.zeros(4).double(), torch.randn(4).double()])
    w[2] = 0
    for product in PRODUCTS:
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        first = torch.autograd.grad(
            functional.linear(*leaves, product=product).square().sum(), leaves, create_graph=True
        )
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        assert all(g.isfinite().all() for g in second)


def loss_of(ours, options, product="pr"):
    return lambda w, x, b: ours(x, w, b, product=product, **options).square().sum()


@pytest.mark.parametrize("product", KINDS)
def test_func_grad_equals_backward(case, product):
    ours, _, (x, w, b), options = case
    loss = loss_of(ours, options, product)
    got = torch.func.grad(loss, argnums=(0, 1, 2))(w, x, b)
    leaves = [t.clone().requires_grad_() for t in (w, x, b)]
    assert_close(list(got), list(torch.autograd.grad(loss(*leaves), leaves)), 1e-13)


@pytest.mark.parametrize("product", KINDS)
def test_per_sample_gradients_equal_a_loop(case, product):
    ours, _, (x, w, b), options = case
    gradient = torch.func.grad(loss_of(ours, options, product))
    if x.dim() == 1:
        x = x[None]
    got = torch.func.vmap(gradient, in_dims=(None, 0, None))(w, x, b)
    assert_close([got], [torch.stack([gradient(w, sample, b) for sample in x])], 1e-13)


def test_a_tensor_that_outlived_its_transform_is_an_ordinary_one():
    kept = []

    def function(x):
        kept.append(x * 2)
        return kept[0].sum()

    torch.func.grad(function)(torch.randn(3, 4))
    weight = torch.randn(5, 4, requires_grad=True)
    functional.linear(kept[0], weight).sum().backward()
    assert weight.grad is not None


def test_per_sample_gradients_of_a_part_of_a_parameter():
    weight, x = torch.randn(5, 3, requires_grad=True), torch.randn(4, 1, 3)
    gradient = torch.func.grad(lambda w, x: functional.linear(x, w[:2]).square().sum())
    got = torch.func.vmap(gradient, in_dims=(None, 0))(weight, x)
    assert_close([got], [torch.stack([gradient(weight, sample) for sample in x])], 1e-5)


def test_ensembles_vmap_over_the_weight(case):
    ours, _, (x, w, b), options = case
    gradient = torch.func.grad(loss_of(ours, options), argnums=1)
    weights = torch.stack([w, -w, 2 * w])
    got = torch.func.vmap(gradient, in_dims=(0, None, None))(weights, x, b)
    assert_close([got], [torch.stack([gradient(one, x, b) for one in weights])], 1e-13)


def test_vmap_of_the_forward_alone(case):
    ours, _, (x, w, b), options = case
    x = x[None] if x.dim() == 1 else x
    got = torch.func.vmap(lambda sample: ours(sample, w, b, **options))(x)
    torch.testing.assert_close(got, ours(x, w, b, **options))
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(lambda sample: ours(sample, w, b, **options))(x), got)


@pytest.mark.parametrize("product", KINDS)
def test_jacrev_rows_are_the_gradients_of_single_outputs(case, product):
    ours, _, (x, w, b), options = case
    jacobian = torch.func.jacrev(lambda w: ours(x, w, b, product=product, **options).flatten())(w)
    leaf = w.clone().requires_grad_()
    output = ours(x, leaf, b, product=product, **options).flatten()
    rows = [torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in output]
    assert_close([jacobian], [torch.stack(rows)], 1e-13)


def test_hessian_vector_products_by_func_and_by_backward_agree(case):
    ours, _, (x, w, b), options = case
    loss = loss_of(ours, options)
    direction = torch.randn_like(w)
    got = torch.func.vjp(torch.func.grad(loss), w, x, b)[1](direction)[0]
    leaf = w.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(leaf, x, b), leaf, create_graph=True)
    (expected,) = torch.autograd.grad(first, leaf, direction)
    assert_close([got], [expected], 1e-12)


@pytest.mark.parametrize("product", ["pr", "r"])
def test_forward_mode_is_refused_in_one_line(case, product):
    ours, _, (x, w, b), options = case
    call = lambda w: ours(x, w, b, product=product, **options)  # noqa: E731
    message = r"^prproduct changes gradients, and has no forward-mode AD \(jvp, jacfwd\): use backward, vjp or jacrev$"
    with pytest.raises(RuntimeError, match=message):
        torch.func.jvp(call, (w,), (w,))
    with pytest.raises(RuntimeError, match=message):
        torch.func.jacfwd(call)(w)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w, w)
        with pytest.raises(RuntimeError, match=message):
            call(dual)
        with pytest.raises(RuntimeError, match=message), torch.no_grad():
            call(dual)


@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("product", ["pr", "r"])
@pytest.mark.parametrize("kind", ["Linear", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "attention"])
def test_every_layer_refuses_forward_mode(kind, product, with_gradients):
    layer = pr.nn.MultiheadAttention(4, 2) if kind == "attention" else getattr(pr.nn, kind)(4, 4)
    pr.convert(layer, product)
    x = torch.randn(3, 4)
    with forward_ad.dual_level(), torch.set_grad_enabled(with_gradients):
        layer(*(x,) * (3 if kind == "attention" else 1))  # without a tangent all is as usual
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(RuntimeError, match="has no forward-mode AD"):
            layer(*(dual,) * (3 if kind == "attention" else 1))


def test_batched_gradients_and_vectorized_jacobians_equal_a_loop(case):
    """`is_grads_batched` runs backward under torch's older vmap."""
    ours, _, (x, w, b), options = case
    w = w.requires_grad_()
    output = ours(x, w, b, **options)
    upstream = torch.randn(3, *output.shape).double()
    (got,) = torch.autograd.grad(output, w, upstream, is_grads_batched=True, retain_graph=True)
    assert_close(
        [got], [torch.stack([torch.autograd.grad(output, w, u, retain_graph=True)[0] for u in upstream])], 1e-13
    )
    jacobian = torch.autograd.functional.jacobian(lambda w: ours(x, w, b, **options), w, vectorize=True)
    assert_close([jacobian], [torch.autograd.functional.jacobian(lambda w: ours(x, w, b, **options), w)], 1e-13)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_batched_gradients_of_convolutions_equal_a_loop(kernel, stride):
    x, w = (torch.randn(shape).double().requires_grad_() for shape in ((2, 4, 6, 5), (3, 4, kernel, kernel)))
    output = functional.conv2d(x, w, stride=stride)
    upstream = torch.randn(3, *output.shape).double()
    got = torch.autograd.grad(output, (x, w), upstream, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(output, (x, w), u, retain_graph=True) for u in upstream]
    assert_close(got, [torch.stack(some) for some in zip(*each, strict=True)], 1e-12)


def test_torch_compile_around_torch_func_is_refused_rather_than_wrong():
    """torch.compile drops a Function's backward under torch.func; the inner product's gradient would come out."""
    torch._dynamo.reset()
    x, w = torch.randn(3, 4), torch.randn(2, 4)
    gradient = torch.func.grad(lambda w: functional.linear(x, w).sum())
    with pytest.raises(Exception, match=r"torch.compile around torch.func would drop prproduct's gradient"):
        torch.compile(gradient, fullgraph=True, backend="eager")(w)


def test_torch_compile_around_torch_func_falls_back_to_eager_mode_without_fullgraph():
    torch._dynamo.reset()
    x, w = torch.randn(3, 4), torch.randn(2, 4)

    def gradient(w):
        return torch.func.grad(lambda w: functional.linear(x, w).sum())(w)

    assert_close([torch.compile(gradient, backend="aot_eager")(w)], [gradient(w)], 1e-6)


def test_no_more_is_saved_than_natively_where_only_the_bias_is_trained(case):
    ours, _, (x, w, b), options = case
    saved = []
    for product in ("pr", "p"):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(product) or t, lambda t: t):  # noqa: B023
            output = ours(x, w, b.requires_grad_(), product=product, **options)
        output.sum().backward()
        assert b.grad is not None
    assert saved.count("pr") == saved.count("p")


@pytest.mark.parametrize("product", NATIVE_FORWARD)
def test_without_gradients_the_native_op_runs_and_nothing_else(case, product, monkeypatch):
    ours, _, (x, w, b), options = case
    monkeypatch.setattr("prproduct.ops.autograd.EagerProductFn.apply", None)
    w.requires_grad_()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert ours(x, w, b, product=product, **options).grad_fn is None
    with torch.inference_mode(), torch.enable_grad():
        assert ours(x, w, b, product=product, **options).is_inference()
    assert ours(x, w.detach(), b, product=product, **options).grad_fn is None


def test_r_works_in_inference_mode(case):
    ours, literal, (x, w, b), options = case
    with torch.inference_mode():
        got = ours(x, w, b, product="r", **options)
    torch.testing.assert_close(got.clone(), literal(x, w, b, product="r", **options))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors_are_refused_in_one_line_where_a_gradient_is_wanted():
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    for a, b in ((x, weight.to_sparse_csr().requires_grad_()), (x.to_sparse(), weight.clone().requires_grad_())):
        with pytest.raises(TypeError, match="product pr has no gradient for sparse tensors"):
            functional.linear(a, b)
    assert functional.linear(x, weight.to_sparse_csr()).shape == (3, 5), "its forward is torch's"


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (torch.ones(6, dtype=torch.float32), "the bias is torch.float32 and the input torch.float64"),
        (torch.ones(1, dtype=torch.float64), "invalid for input of size 1"),
    ],
)
def test_r_refuses_the_biases_that_torch_refuses(bias, message):
    x, w = torch.ones(2, 4, 5).double(), torch.ones(6, 4, 3).double()
    with pytest.raises(RuntimeError):
        nn.functional.conv1d(x, w, bias)
    with pytest.raises((TypeError, RuntimeError), match=message):
        functional.conv1d(x, w, bias, product="r")


def test_nested_tensors_are_refused_in_one_line():
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"product pr takes no nested tensors: apply the layer to their \.values\(\)"):
        functional.linear(nested, torch.randn(5, 4).requires_grad_())


@pytest.mark.parametrize(("product", "batches"), [("pr", (4, 3)), ("pr-w", (4,)), ("r", (4,))])
def test_compiled_layers_equal_eager_ones(product, batches):
    """At a second batch size torch.compile makes the batch symbolic; test_compile.py has dynamic=True."""
    torch._dynamo.reset()
    net = nn.Sequential(
        pr.nn.Conv2d(3, 6, 3, padding="same", product=product),
        nn.ReLU(inplace=True),
        pr.nn.ConvTranspose2d(6, 4, 2, stride=2, product=product),
        nn.Flatten(2),
        pr.nn.Linear(64, 5, product=product),
        nn.ReLU(inplace=True),
    ).double()
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")
    for batch in batches:
        x = torch.randn(batch, 3, 4, 4).double()
        for model in (net, compiled):
            model.zero_grad()
            model(x).square().sum().backward()
        assert_close([p.grad for p in compiled.parameters()], [p.grad for p in net.parameters()], 1e-12)
        assert_close([compiled(x)], [net(x)], 1e-14)


def test_compiled_backward_reads_p_off_the_output():
    """The traced graphs hold one product forward and two backward, as the native layer's do, and no recomputation."""
    torch._dynamo.reset()
    products = []

    def count(graph, inputs):
        products.append(sum("mm" in str(node.target) for node in graph.graph.nodes if node.op == "call_function"))
        return make_boxed_func(graph.forward)

    layer = pr.nn.Linear(6, 4)
    x = torch.randn(3, 6, requires_grad=True)
    torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=count, bw_compiler=count))(x).sum().backward()
    assert products == [1, 2]


@pytest.mark.parametrize("product", PRODUCTS)
def test_fx_traces_layers_as_single_calls(product):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).double()
    traced = torch.fx.symbolic_trace(pr.convert(net, product))
    calls = [node.target for node in traced.graph.nodes if node.target in (functional.conv2d, functional.linear)]
    assert calls == [functional.conv2d, functional.linear]
    x = torch.randn(2, 3, 4, 4).double()
    gradients_of = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for model in (traced, net)]
    assert_close(*map(list, gradients_of), 0)


@pytest.mark.parametrize("product", KINDS)
def test_the_bias_gradient_of_a_vector_has_its_own_memory(product):
    layers, grad = [pr.nn.Linear(3, 4, product=product) for _ in range(2)], torch.ones(4)
    sum(layer(torch.randn(3)) for layer in layers).backward(grad)
    layers[0].bias.grad.zero_()
    assert torch.equal(layers[1].bias.grad, torch.ones(4))
    assert torch.equal(grad, torch.ones(4))


class Annotated(torch.Tensor):
    """Keeps its type through torch's functions, as the images of other libraries do."""


@pytest.mark.parametrize("product", KINDS)
@pytest.mark.parametrize("memory", ["save", "recompute"])
def test_tensor_subclasses_keep_their_type_and_may_be_written_into(product, memory):
    x, found = torch.randn(2, 3, 5, 5), []
    layer = pr.nn.Conv2d(3, 4, 3, product=product, memory=memory)
    for images in (x, x.as_subclass(Annotated)):
        output = layer(images).relu_()
        assert type(output) is type(images)
        found.append(torch.autograd.grad(output.square().sum(), list(layer.parameters())))
    assert_close(*([g.as_subclass(torch.Tensor) for g in grads] for grads in found), 1e-6)
