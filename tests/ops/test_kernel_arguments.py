"""Wrong arguments of `torch.ops.prproduct`: each is refused in one line, before any memory is touched."""

import pytest
import torch

from prproduct.ops import kernels

assert kernels.library()
GEOMETRY = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0]}


HUGE_FRAME = {  # a small output of an input with much more padding than memory
    "padding": [2**30, 2**30],
    "stride": [2**31 - 1, 2**31 - 1],
    "grad": torch.ones(2, 6, 2, 2),
    "output": torch.ones(2, 6, 2, 2),
}


def linear(**changed):
    tensors = {
        "grad": torch.ones(4, 3),
        "input": torch.ones(4, 5),
        "weight": torch.ones(3, 5),
        "bias": None,
        "output": torch.ones(4, 3),
    }
    call = {"product": "pr", "parameter": 0.0, "floor": 1e-6, "wants_input": True, "wants_weight": True}
    return torch.ops.prproduct.linear_backward(**(tensors | call | changed))


def convolution(**changed):
    tensors = {
        "grad": torch.ones(2, 6, 7, 7),
        "input": torch.ones(2, 4, 7, 7),
        "weight": torch.ones(6, 4, 3, 3),
        "bias": None,
        "output": torch.ones(2, 6, 7, 7),
    }
    call = {"product": "pr", "parameter": 0.0, "floor": 1e-6, "wants_input": True, "wants_weight": True}
    return torch.ops.prproduct.convolution_backward(**(tensors | GEOMETRY | {"groups": 1} | call | changed))


def recurrent(**changed):
    call = {
        "cell": "lstm",
        "input_gates": torch.ones(6, 8),
        "weight": torch.ones(8, 2),
        "bias": None,
        "state": [torch.ones(3, 2), torch.ones(3, 2)],
        "batch_sizes": [3, 2, 1],
        "reverse": False,
    }
    return torch.ops.prproduct.recurrent_forward(**(call | changed))


def recurrent_back(**changed):
    call = {
        "cell": "lstm",
        "input_gates": torch.ones(6, 8),
        "hidden_gates": torch.ones(6, 8),
        "before": [torch.ones(6, 2), torch.ones(6, 2)],
        "weight": torch.ones(8, 2),
        "bias": None,
        "grad_output": torch.ones(6, 2),
        "grad_state": [torch.ones(3, 2), torch.ones(3, 2)],
        "batch_sizes": [3, 2, 1],
        "reverse": False,
        "product": "pr",
        "parameter": 0.0,
        "floor": 1e-6,
    }
    return torch.ops.prproduct.recurrent_backward(**(call | changed))


def test_the_right_arguments_are_taken():
    assert linear()[0].shape == (4, 5)
    assert convolution()[1].shape == (6, 4, 3, 3)
    assert recurrent()[0].shape == (6, 2)
    assert len(recurrent_back()) == 4


@pytest.mark.parametrize(
    ("call", "changed", "message"),
    [
        (linear, {"grad": torch.ones(4, 2)}, r"grad has shape \(4, 2\), expected \(4, 3\)"),
        (linear, {"output": torch.ones(3, 3)}, r"output has shape \(3, 3\), expected \(4, 3\)"),
        (linear, {"weight": torch.ones(3, 4)}, r"weight has shape \(3, 4\), expected \(3, 5\)"),
        (linear, {"input": torch.ones(2, 4, 5)}, "must have 2 dimensions"),
        (linear, {"grad": torch.ones(())}, "must have 2 dimensions"),
        (linear, {"bias": torch.ones(4)}, r"bias has shape \(4,\), expected \(3,\)"),
        (linear, {"input": torch.ones(4, 5).double()}, "input does not have the dtype of the other tensors"),
        (linear, {"grad": torch.ones(4, 3).long()}, "does not have the dtype of the other tensors"),
        (linear, {"product": "none"}, "no kernel for product 'none'"),
        (linear, {"product": ""}, "no kernel for product ''"),
        (convolution, {"grad": torch.ones(2, 6, 7, 6)}, "grad has shape"),
        (convolution, {"output": torch.ones(2, 6, 7)}, "output has shape"),
        (convolution, {"groups": 0}, "groups must be at least 1"),
        (convolution, {"groups": -3}, "groups must be at least 1"),
        (convolution, {"groups": 3}, "do not fit with 3 groups"),
        (convolution, {"stride": [0, 1]}, "stride must be at least 1, not 0"),
        (convolution, {"stride": [1]}, "stride has 1 numbers, expected 2"),
        (convolution, {"dilation": [1, -1]}, "dilation must be at least 1"),
        (convolution, {"padding": [-1, 1]}, "padding must be at least 0"),
        (convolution, {"padding": [2**40, 1]}, "padding must be"),
        (convolution, HUGE_FRAME, "a padded plane of .* numbers is too large"),
        (convolution, {"output_padding": [0]}, "output_padding has 1 numbers"),
        (convolution, {"padding": [0, 0], "dilation": [9, 9]}, "no output of input"),
        (convolution, {"weight": torch.ones(6, 4, 3)}, "weight has 3 dimensions, expected 4"),
        (convolution, {"weight": torch.ones(6, 4, 0, 3)}, "weight is empty"),
        (convolution, {"input": torch.ones(7, 7)}, "1 to 3 spatial dimensions"),
        (convolution, {"input": torch.ones(1, 1, 1, 1, 1, 1)}, "1 to 3 spatial dimensions"),
        (convolution, {"bias": torch.ones(5)}, "bias has shape"),
        (recurrent, {"cell": "none"}, "no recurrent cell 'none'"),
        (recurrent, {"state": [torch.ones(3, 2)]}, "lstm has 2 states, not 1"),
        (recurrent, {"state": []}, "lstm has 2 states, not 0"),
        (recurrent, {"state": [torch.ones(3, 2), torch.ones(2, 2)]}, "state has shape"),
        (recurrent, {"weight": torch.ones(8, 3)}, "weight has shape"),
        (recurrent, {"bias": torch.ones(3)}, "bias has shape"),
        (recurrent, {"batch_sizes": [2, 3, 1]}, "batch_sizes must not grow"),
        (recurrent, {"batch_sizes": [4, 1, 1]}, "batch_sizes must not grow, nor exceed"),
        (recurrent, {"batch_sizes": [3, 2]}, "add up to 5, not to the 6 rows"),
        (recurrent, {"batch_sizes": [3, 3, -1]}, "batch_sizes must not"),
        (recurrent, {"input_gates": torch.ones(6, 8).bfloat16()}, "take float32 and float64"),
        (recurrent_back, {"hidden_gates": torch.ones(6, 7)}, "hidden_gates has shape"),
        (recurrent_back, {"before": [torch.ones(6, 2)]}, "before has 1 states"),
        (recurrent_back, {"before": [torch.ones(6, 2), torch.ones(5, 2)]}, "before has shape"),
        (recurrent_back, {"grad_output": torch.ones(6, 3)}, "grad_output has shape"),
        (recurrent_back, {"product": "p"}, "no kernel for product 'p'"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(call, changed, message):
    with pytest.raises(RuntimeError, match=message) as refused:
        call(**changed)
    assert len(str(refused.value).splitlines()) == 1


def test_loading_the_library_leaves_subnormal_numbers_alone():
    """A library linked with -ffast-math would flush them to zero in the whole process."""
    tiny = torch.tensor(1e-40)
    assert (tiny * 1.0).item() > 0.0
    assert 1e-310 * 1.0 > 0.0


def test_a_storage_that_was_freed_under_its_tensor_is_refused():
    weight = torch.ones(3, 5)
    weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="weight has a storage of 0 bytes, which was resized"):
        linear(weight=weight)
