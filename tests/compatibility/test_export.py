"""torch.export and ONNX: standard operations only, the same outputs, and no product in what comes out."""

import onnx
import onnxruntime
import pytest
import torch
from networks import assert_same, gradients, images, small, step
from torch import nn

import prproduct as pr


@pytest.mark.parametrize("training", [False, True])
def test_an_exported_program_has_torchs_own_operations_and_the_same_outputs(training):
    model, x = small().train(training), images()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    on_sizes = {"<built-in function getitem>", "<built-in function mul>", "_operator"}  # as in the native program
    assert {str(target).split(".")[0] for target in called} <= {"aten", *on_sizes}
    for count in (6, 4):
        torch.testing.assert_close(program.module()(images(count)), model(images(count)))


def test_training_an_exported_program_is_training_under_p():
    model, x = small(), images()
    exported = torch.export.export(model, (x,)).module()
    exported(x).square().mean().backward()
    assert_same(gradients(exported), step(small(None), x)[1], 1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch's exporter, of itself
def test_onnxruntime_computes_the_same_outputs_from_standard_operators(tmp_path):
    model, x, file = small().eval(), images(), tmp_path / "model.onnx"
    torch.onnx.export(
        model,
        (x,),
        file,
        input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        dynamo=True,
        verbose=False,
    )
    graph = onnx.load(file)
    assert {node.domain for node in graph.graph.node} == {""}
    assert not graph.functions
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (6, 2):
        (output,) = session.run(None, {"x": images(count).numpy()})
        torch.testing.assert_close(torch.from_numpy(output), model(images(count)).detach(), rtol=1e-4, atol=1e-5)


def test_a_product_with_its_own_value_is_exported_with_it():
    model, x = small("r"), images()
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # as for torch's own
def test_recurrent_layers_are_exported():
    torch.manual_seed(0)
    model, x = pr.convert(nn.LSTM(4, 5, batch_first=True)).eval(), torch.randn(2, 3, 4)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    native = torch.export.export(nn.LSTM(4, 5, batch_first=True).eval(), (x,), dynamic_shapes=shapes)
    assert len(program.graph.nodes) == len(native.graph.nodes), "the steps were unrolled"
    for count in (2, 5):
        images = torch.randn(count, 3, 4)
        torch.testing.assert_close(program.module()(images)[0], model(images)[0])
