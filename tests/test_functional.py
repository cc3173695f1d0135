"""The ops against torch's own (forward, bit for bit) and against the literal equations (every gradient)."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compare import PRODUCTS, assert_close, gradients
from hypothesis import given
from hypothesis import strategies as st

import prproduct as pr
from prproduct import functional, reference

pytestmark = pytest.mark.usefixtures("device")

CONVOLUTIONS = [
    ("conv1d", (2, 4, 9), (4, 1, 3), {"stride": 2, "padding": 4, "dilation": 2, "groups": 4}),
    ("conv1d", (1, 3, 12), (2, 3, 5), {"padding": 7}),
    ("conv2d", (2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
    ("conv2d", (2, 4, 7, 6), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    ("conv2d", (2, 3, 8, 8), (3, 1, 3, 3), {"stride": 3, "groups": 3}),
    ("conv2d", (2, 5, 4, 4), (3, 5, 1, 1), {}),
    ("conv3d", (2, 2, 5, 4, 4), (3, 2, 2, 3, 2), {"stride": (1, 2, 1), "padding": (1, 2, 0)}),
    (
        "conv_transpose1d",
        (2, 4, 5),
        (4, 3, 3),
        {"stride": 2, "padding": 1, "groups": 2, "output_padding": 1, "dilation": 2},
    ),
    ("conv_transpose1d", (2, 3, 4), (3, 2, 2), {"dilation": 3, "output_padding": 2}),
    (
        "conv_transpose2d",
        (2, 4, 5, 4),
        (4, 3, 3, 2),
        {"stride": (2, 1), "padding": 1, "output_padding": (1, 1), "dilation": 2},
    ),
    ("conv_transpose2d", (2, 4, 3, 3), (4, 1, 4, 4), {"stride": 4, "groups": 4}),
    (
        "conv_transpose3d",
        (2, 2, 3, 4, 3),
        (2, 3, 2, 3, 2),
        {"stride": (2, 3, 1), "padding": (0, 1, 1), "output_padding": (1, 2, 0)},
    ),
]
CONVOLUTION_IDS = [f"{op}-{number}" for number, (op, *_) in enumerate(CONVOLUTIONS)]


def tensors_for(op: str, input_shape, weight_shape, groups: int = 1, dtype=torch.float64, **_):
    outputs = weight_shape[1] * groups if "transpose" in op else weight_shape[0]
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in (input_shape, weight_shape, (outputs,))]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("leading", [(5,), (), (2, 3), (2, 1, 3), (0,)], ids=str)
def test_linear_equals_the_literal_equations(product, with_bias, leading):
    x, w, b = (
        torch.randn(*leading, 7).double(),
        torch.randn(4, 7).double(),
        torch.randn(4).double() if with_bias else None,
    )
    got = gradients(functional.linear, x, w, b, product=product)
    assert_close(got, gradients(reference.linear, x, w, b, product=product), 1e-12)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize(("op", "input_shape", "weight_shape", "options"), CONVOLUTIONS, ids=CONVOLUTION_IDS)
def test_convolutions_equal_the_literal_equations(op, input_shape, weight_shape, options, with_bias, product):
    x, w, b = tensors_for(op, input_shape, weight_shape, **options)
    b = b if with_bias else None
    got = gradients(getattr(functional, op), x, w, b, product=product, **options)
    assert_close(got, gradients(getattr(reference, op), x, w, b, product=product, **options), 1e-12)


@st.composite
def convolution(draw):
    dims, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    per_axis = st.lists(st.integers(1, 3), min_size=dims, max_size=dims).map(tuple)
    kernel, stride, dilation = draw(per_axis), draw(per_axis), draw(per_axis)
    padding = draw(st.lists(st.integers(0, 4), min_size=dims, max_size=dims).map(tuple))
    spatial = [1 + d * (k - 1) + draw(st.integers(0, 4)) for k, d in zip(kernel, dilation, strict=True)]
    batch, ins, outs = draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    transposed = draw(st.booleans())
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        options["padding"] = tuple(min(p, d * (k - 1) // 2) for p, d, k in zip(padding, dilation, kernel, strict=True))
        options["output_padding"] = tuple(
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
        )
    weight_shape = (groups * ins, outs, *kernel) if transposed else (groups * outs, ins, *kernel)
    op = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    return op, (batch, groups * ins, *spatial), weight_shape, options


@given(case=convolution())
def test_any_convolution_equals_the_literal_equations(case):
    """A window of one value is parallel to its kernel: the literal formula is undefined there, and not asked."""
    op, input_shape, weight_shape, options = case
    x, w, b = tensors_for(op, input_shape, weight_shape, **options)
    got = gradients(getattr(functional, op), x, w, b, **options)
    expected = gradients(getattr(reference, op), x, w, b, **options)
    assert torch.equal(got[0], gradients(getattr(F, op), x, w, b, **options)[0])
    assert all(t.isfinite().all() for t in got)
    if all(t.isfinite().all() for t in expected):
        assert_close(got, expected, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize(("op", "input_shape", "weight_shape", "options"), CONVOLUTIONS, ids=CONVOLUTION_IDS)
def test_convolution_forward_is_torchs_bit_for_bit(op, input_shape, weight_shape, options, with_bias, dtype):
    x, w, b = tensors_for(op, input_shape, weight_shape, dtype=dtype, **options)
    b = b if with_bias else None
    expected = getattr(F, op)(x, w, b, **options)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        if memory_format is torch.channels_last and x.dim() != 4:
            continue
        x, w = x.to(memory_format=memory_format), w.to(memory_format=memory_format)
        expected = getattr(F, op)(x, w, b, **options)
        got = getattr(functional, op)(x, w.requires_grad_(), b, **options)
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
        w = w.detach()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias_shape", [None, (33,), (1,), (8, 33)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_linear_forward_is_torchs_bit_for_bit(bias_shape, dtype, transposed):
    """Also for a transposed, non-contiguous input, and for every bias that torch broadcasts."""
    x, w = torch.randn(8, 65).to(dtype), torch.randn(33, 65).to(dtype).requires_grad_()
    x = x.T.contiguous().T if transposed else x
    b = None if bias_shape is None else torch.randn(bias_shape).to(dtype).requires_grad_()
    got = functional.linear(x, w, b)
    assert torch.equal(got, F.linear(x, w, b))
    got.sum().backward()
    assert b is None or torch.equal(b.grad, torch.autograd.grad(F.linear(x, w, b).sum(), b)[0])


def test_a_single_weight_vector_is_taken_as_torch_takes_it():
    x, w = torch.randn(5, 7).double(), torch.randn(7).double()
    for data in (x, x[0], x[None]):
        got = gradients(functional.linear, data, w)
        assert torch.equal(got[0], F.linear(data, w))
        expected = gradients(lambda data, w: reference.linear(data, w[None]).squeeze(-1), data, w)
        assert_close(got, expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "input_shape", "weight_shape", "options"), CONVOLUTIONS, ids=CONVOLUTION_IDS)
def test_autocast_gives_torchs_dtype_and_bits(op, input_shape, weight_shape, options, dtype):
    x, w, b = tensors_for(op, input_shape, weight_shape, dtype=torch.float32, **options)
    w.requires_grad_()
    with torch.autocast(torch.get_default_device().type, dtype=dtype):
        got, expected = getattr(functional, op)(x, w, b, **options), getattr(F, op)(x, w, b, **options)
        mine, native = functional.linear(x, torch.eye(x.shape[-1])), F.linear(x, torch.eye(x.shape[-1]))
    assert got.dtype == expected.dtype == mine.dtype == dtype
    assert torch.equal(got, expected)
    assert torch.equal(mine, native)
    got.sum().backward()
    assert w.grad.dtype == torch.float32


def test_autocast_leaves_float64_and_disabled_regions_alone():
    x, w = torch.randn(3, 4), torch.randn(2, 4).requires_grad_()
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        assert functional.linear(x.double(), w.double()).dtype == torch.float64
        with torch.autocast(torch.get_default_device().type, enabled=False):
            assert functional.linear(x, w).dtype == torch.float32
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        functional.linear(x, w).sum().backward()
    inside = w.grad.clone()
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        output = functional.linear(x, w).sum()
    w.grad = None
    output.backward()
    assert torch.equal(inside, w.grad)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding_by_name_is_torchs(dims, kernel, dilation):
    x, w = torch.randn(2, 4, *(11,) * dims).double(), torch.randn(6, 2, *(kernel,) * dims).double()
    options = {"dilation": dilation, "groups": 2}
    for padding in ("same", "valid"):
        with warnings.catch_warnings(action="ignore"):  # torch warns that 'same' may copy
            expected = getattr(F, f"conv{dims}d")(x, w, padding=padding, **options)
            native = gradients(getattr(F, f"conv{dims}d"), x, w, padding=padding, **options)
        assert torch.equal(getattr(functional, f"conv{dims}d")(x, w, padding=padding, **options), expected)
        assert_close(
            gradients(getattr(functional, f"conv{dims}d"), x, w, padding=padding, product="p", **options), native, 0
        )
        got = gradients(getattr(functional, f"conv{dims}d"), x, w, padding=padding, **options)
        reach = dilation * (kernel - 1) if padding == "same" else 0
        wide = lambda x, w: reference.conv1d(F.pad(x, (reach // 2, reach - reach // 2) * dims), w, **options)  # noqa: E731, B023
        assert_close(got, gradients(wide, x, w), 1e-9)


@pytest.mark.parametrize(("op", "input_shape", "weight_shape", "options"), CONVOLUTIONS, ids=CONVOLUTION_IDS)
def test_unbatched_input_is_a_batch_of_one(op, input_shape, weight_shape, options):
    x, w, b = tensors_for(op, input_shape, weight_shape, **options)
    got = gradients(getattr(functional, op), x[0], w, b, **options)
    output, of_x, *rest = gradients(getattr(functional, op), x[:1], w, b, upstream=None, **options)
    assert_close(got, [output[0], of_x[0], *rest], 1e-14)


@pytest.mark.parametrize("product", PRODUCTS)
def test_an_empty_batch_has_zero_gradients(product):
    for op, input_shape, weight_shape, options in CONVOLUTIONS:
        x, w, b = tensors_for(op, (0, *input_shape[1:]), weight_shape, **options)
        output, of_x, of_w, of_b = gradients(getattr(functional, op), x, w, b, product=product, **options)
        assert output.shape == getattr(F, op)(x, w, b, **options).shape
        assert of_x.shape == x.shape
        assert of_w.count_nonzero() == of_b.count_nonzero() == 0


def test_linear_without_inputs_or_outputs():
    for ins, outs in ((0, 3), (3, 0), (0, 0)):
        got = gradients(functional.linear, torch.randn(2, ins), torch.randn(outs, ins), torch.randn(outs))
        assert [t.shape for t in got] == [(2, outs), (2, ins), (outs, ins), (outs,)]


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("product", PRODUCTS)
def test_frozen_tensors_get_no_gradient_and_change_nothing_for_the_other(frozen, product):
    tensors = [torch.randn(5, 7).double(), torch.randn(4, 7).double(), torch.randn(4).double()]
    whole = gradients(functional.linear, *tensors, product=product)[1:]
    leaves = [t.clone().requires_grad_(position != frozen) for position, t in enumerate(tensors)]
    output = functional.linear(*leaves, product=product)
    same = torch.Generator("cpu").manual_seed(1)
    output.backward(torch.randn(output.shape, generator=same, dtype=torch.float64, device="cpu").to(output))
    assert leaves[frozen].grad is None
    assert all(leaf.grad is None or torch.equal(leaf.grad, grad) for leaf, grad in zip(leaves, whole, strict=True))


def test_one_stride_for_all_axes_may_come_in_a_list():
    x, w = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3).requires_grad_()
    assert torch.equal(functional.conv2d(x, w, stride=[2], padding=[1]), F.conv2d(x, w, stride=[2], padding=[1]))


BAD_CALLS = [
    (F.linear, functional.linear, (torch.ones(2, 3), torch.ones(4, 5)), {}),
    (F.linear, functional.linear, (torch.ones(2, 3), torch.ones(4, 3).double()), {}),
    (F.linear, functional.linear, (torch.ones(2, 3), torch.ones(4, 3), torch.ones(5)), {}),
    (F.conv2d, functional.conv2d, (torch.ones(2, 3, 5, 5), torch.ones(4, 2, 3, 3)), {}),
    (F.conv2d, functional.conv2d, (torch.ones(2, 3), torch.ones(4, 3, 3, 3)), {}),
    (F.conv2d, functional.conv2d, (torch.ones(2, 3, 5, 5), torch.ones(4, 3, 3)), {}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 2, 2), torch.ones(1, 1, 3, 3)), {}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)), {"stride": (1, 2, 3)}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)), {"stride": 0}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)), {"stride": 1.5}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)), {"stride": ()}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3)), {"padding": "same"}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)), {"stride": 2, "padding": "same"}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)), {"padding": "wide"}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 3, 5, 5), torch.ones(4, 3, 3, 3)), {"groups": 2}),
    (F.conv2d, functional.conv2d, (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3).double()), {}),
    (
        F.conv_transpose2d,
        functional.conv_transpose2d,
        (torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)),
        {"output_padding": 3},
    ),
    (F.conv_transpose2d, functional.conv_transpose2d, (torch.ones(1, 2, 5, 5), torch.ones(1, 1, 3, 3)), {}),
]


@pytest.mark.parametrize(("native", "ours", "tensors", "options"), BAD_CALLS)
@pytest.mark.parametrize("product", ["pr", "r"])
def test_bad_arguments_get_torchs_own_error(native, ours, tensors, options, product):
    with pytest.raises((RuntimeError, ValueError, TypeError)) as expected:
        native(*tensors, **options)
    with pytest.raises(expected.type) as got:
        ours(*(t.requires_grad_() for t in tensors), product=product, **options)
    # How the arguments were passed, by name or by place, is part of torch's message for wrong types.
    assert str(got.value).split(" - got ")[0] == str(expected.value).split(" - got ")[0]


def test_integers_are_torchs_business_unless_the_product_has_its_own_forward():
    x, w = torch.ones(2, 3, dtype=torch.long), torch.ones(4, 3, dtype=torch.long)
    assert torch.equal(functional.linear(x, w), F.linear(x, w))
    with pytest.raises(TypeError, match=r"product r needs real floating-point tensors, got torch.int64"):
        functional.linear(x, w, product="r")


def test_complex_tensors_have_no_angle_here():
    x, w = torch.randn(2, 3, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    assert torch.equal(functional.linear(x, w, product="p"), F.linear(x, w))
    with pytest.raises(TypeError, match=r"product pr needs real floating-point tensors, got torch.complex64"):
        functional.linear(x, w)


def test_lists_for_tensors_get_torchs_own_error():
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        functional.linear([[1.0, 2.0]], torch.ones(1, 2))
    with pytest.raises(TypeError, match=r"conv1d\(\) received an invalid combination of arguments - got \(list"):
        functional.conv1d([[1.0, 2.0]], torch.ones(1, 1, 1))


def test_numpy_integers_are_whole_numbers():
    x, w = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3).requires_grad_()
    assert torch.equal(functional.conv2d(x, w, stride=np.int64(2)), F.conv2d(x, w, stride=2))
    for op in (functional.conv2d, F.conv2d):
        with pytest.raises(TypeError):
            op(x, w, padding=np.ones(2))


def test_a_bias_with_more_axes_than_the_output_is_taken_as_torch_takes_it():
    x, w, b = torch.randn(4).double(), torch.randn(5, 4).double(), torch.randn(1, 5).double()
    got = gradients(functional.linear, x, w, b)
    assert torch.equal(got[0], F.linear(x, w, b))
    assert_close(got, gradients(lambda x, w, b: reference.linear(x, w) + b[0], x, w, b), 1e-12)


def test_a_bias_along_the_rows_of_one_weight_vectors_output_is_taken_as_torch_takes_it():
    x, w, b = torch.randn(3, 2, 4).double().transpose(0, 1), torch.randn(4).double(), torch.randn(3).double()
    got = gradients(functional.linear, x, w, b)
    assert torch.equal(got[0], F.linear(x, w, b))
    assert_close(got, gradients(lambda x, w, b: reference.linear(x, w[None])[..., 0] + b, x, w, b), 1e-12)


def test_the_product_is_named_by_keyword_only():
    with pytest.raises(TypeError):
        pr.functional.linear(torch.ones(1, 2), torch.ones(1, 2), None, "pr")


def test_a_convolution_is_known_by_its_very_arguments():
    """Not by equal ones: a float stride is an error however often the same whole number was given."""
    x, w, one = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True), (1, 1)
    for _ in range(2):
        assert torch.equal(functional.conv2d(x, w, None, one, one, one), F.conv2d(x, w, None, 1, 1, 1))
    with pytest.raises(TypeError):
        functional.conv2d(x, w, None, (1.0, 1.0), one, one)
    for groups in ([1], 1.0, True):
        with pytest.raises(TypeError):
            functional.conv2d(x, w, None, one, one, one, groups)
    assert functional.conv2d(x, w, None, one, one, one, 1).shape == (2, 4, 8, 8)
    with pytest.raises((TypeError, RuntimeError)):
        functional.conv3d(x[:, :, None], w[:, :, None], None, one, one, one)
    assert functional.conv2d(x[0], w, None, one, one, one).shape == (4, 8, 8)


def test_a_list_of_strides_may_change_between_calls():
    x, w, stride = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True), [1, 1]
    assert functional.conv2d(x, w, None, stride, (0, 0), (1, 1)).shape == (2, 4, 6, 6)
    stride[0] = 2
    assert functional.conv2d(x, w, None, stride, (0, 0), (1, 1)).shape == (2, 4, 3, 6)


def test_a_layers_stride_may_change_between_calls():
    layer, x = pr.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 9, 9)
    assert layer(x).shape == (2, 4, 7, 7)
    layer.stride = (2, 3)
    assert layer(x).shape == (2, 4, 4, 3)
