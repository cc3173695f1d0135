"""torch.compile: one graph, any batch size, eager's outputs and gradients; products that change while it runs."""

import copy

import pytest
import torch
from networks import assert_same, differ, gradients, images, small, step, tiny
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

import prproduct as pr
from prproduct.products import Tempered

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def cpu_code(device):
    """For tests that read Inductor's C++ code."""
    if device.type != "cpu":
        pytest.skip("Inductor's code for CPUs is looked at")


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def test_one_graph_gives_eagers_outputs_and_gradients():
    model, x = small(), images()
    expected, expected_gradients = step(model, x)
    output, got = step(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
    torch.testing.assert_close(output, expected)
    assert_same(got, expected_gradients, 1e-5)
    assert graphs() == 1


def test_inductors_code_gives_eagers_gradients_for_every_batch_size():
    model = tiny()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for count in (6, 3, 9):
        expected, expected_gradients = step(model, images(count))
        output, got = step(compiled, images(count))
        torch.testing.assert_close(output, expected)
        assert_same(got, expected_gradients, 1e-4)
    assert graphs() == 1


def test_a_schedule_of_the_power_compiles_once():
    model, x = tiny(Tempered(0.0)), images()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for power in (0.0, 0.2, 0.4, 0.7, 1.0):
        pr.convert(model, Tempered(power))
        expected = step(model, x)[1]
        assert_same(step(compiled, x)[1], expected, 1e-5)
    assert graphs() == 1


def test_p_first_and_pr_later_compiles_once_more_and_keeps_both():
    model, x = tiny("p"), images()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for product in ("p", "pr", "p", "pr", "p"):
        pr.convert(model, product)
        expected = step(model, x)[1]
        assert_same(step(compiled, x)[1], expected, 1e-5)
    assert graphs() == 2


def test_converting_a_compiled_model_takes_effect():
    model, x = tiny(None), images()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    before = step(compiled, x)[1]
    pr.convert(compiled)
    assert type(model.hidden) is pr.nn.Linear
    after = step(compiled, x)[1]
    assert differ(after, before)
    pr.revert(compiled)
    assert_same(step(compiled, x)[1], before, 1e-6)


def test_autocast_may_begin_inside_of_the_compiled_function(device):
    model, x = tiny(), images()

    def under_autocast(x):
        with torch.autocast(device.type, torch.bfloat16):
            return model(x).float()

    under_autocast(x).square().sum().backward()
    expected = gradients(model)
    model.zero_grad()
    torch.compile(under_autocast, fullgraph=True, backend="aot_eager")(x).square().sum().backward()
    assert_same(gradients(model), expected, 0.02)
    assert graphs() == 1


def test_writing_into_an_output_in_compiled_code_changes_no_gradient():
    layer, x = pr.nn.Linear(4, 4), torch.randn(5, 4)

    def residual(x):
        output = layer(x)
        output += x
        return output

    residual(x).square().sum().backward()
    expected = gradients(layer)
    layer.zero_grad()
    torch.compile(residual, fullgraph=True, backend="aot_eager")(x).square().sum().backward()
    assert_same(gradients(layer), expected, 1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # its own
@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv1d(2, 3, 1), nn.LSTM(4, 3), nn.GRU(4, 3)], ids=str)
def test_compiled_autograd_gives_eagers_gradients_also_where_outputs_were_written_into(layer, device):
    layer, x = pr.convert(copy.deepcopy(layer).to(device).double()), torch.randn(5, 2, 4).double()

    def backward():
        output = layer(x)
        output = output[0] if isinstance(output, tuple) else output
        output.mul_(2).square().sum().backward()

    backward()
    expected = gradients(layer)
    layer.zero_grad()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(backward, backend="aot_eager")()
    assert_same(gradients(layer), expected, 1e-9)


def test_check_compiles_nothing():
    compiled = torch.compile(tiny(), fullgraph=True, backend="aot_eager")
    assert pr.check(compiled, images()).outputs_equal
    assert graphs() == 0


def test_inductor_reads_and_writes_pairs_as_the_convolutions_lay_them_out(cpu_code):
    """Where a view hides the layout from Inductor, it transposes every operand tile by tile, at five times the cost."""
    torch.manual_seed(0)
    layers = [(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(2)]
    model = pr.convert(nn.Sequential(*(part for layer in layers for part in layer)))
    x = torch.randn(4, 8, 16, 16)
    compiled = torch.compile(lambda x: model(x).mean((2, 3)), dynamic=False)
    _, (_, backward) = run_and_get_code(lambda: compiled(x).square().sum().backward())
    assert "convolution_backward" in backward
    assert "rsqrt" in backward
    assert "transpose_mxn" not in backward


def test_inductor_lays_out_the_pairs_as_the_output_where_the_gradient_lies_otherwise(cpu_code):
    """The gradient of a mean, or of a part of a concatenation, would have D∘g transposed, at five times the cost."""
    torch.manual_seed(0)
    model = pr.convert(nn.Conv2d(8, 8, 3, padding=1, bias=False))
    x = torch.randn(4, 8, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    compiled = torch.compile(lambda x: model(x).mean((2, 3)), dynamic=False)
    _, (_, backward) = run_and_get_code(lambda: compiled(x).square().sum().backward())
    assert "rsqrt" in backward
    assert "transpose_mxn" not in backward


def test_inductor_adds_what_lies_along_the_vectors_in_one_pass(cpu_code):
    """An `addmm` would have it written to memory, and copied: for the logits of GPT-2, a tenth of the layer's time."""
    torch.manual_seed(0)
    model = pr.nn.Linear(8, 16, bias=False)
    compiled = torch.compile(model, dynamic=False)
    x = torch.randn(4, 8, requires_grad=True)
    _, (_, backward) = run_and_get_code(lambda: compiled(x).square().sum().backward())
    assert backward.count("extern_kernels.mm(") == 2
    assert "addmm" not in backward
