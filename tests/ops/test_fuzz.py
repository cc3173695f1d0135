"""Random shapes, strides, groups, paddings and dtypes: the C++ kernels against the rule in plain torch.

`make sanitize` runs these under AddressSanitizer and UBSan.
"""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from op_cases import PRODUCTS, assert_equal_to_rounding, both_gradients

import prproduct as pr
from prproduct.ops import kernels

ANY_PRODUCT = st.sampled_from(PRODUCTS)
DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**31)
NEAR_PARALLEL = 1000.0  # vectors of two features often are, and 1/|sin θ| multiplies the rounding of p


def strided(shape, dtype, kind):
    """A tensor of this shape whose memory is contiguous, transposed, strided or expanded."""
    if kind == "transposed":
        return torch.randn(shape[::-1], dtype=dtype).permute(*range(len(shape))[::-1])
    if kind == "strided":
        return torch.randn(*shape[:-1], shape[-1] * 2 + 1, dtype=dtype)[..., 1::2]
    if kind == "expanded":
        return torch.randn(1, *shape[1:], dtype=dtype).expand(shape)
    return torch.randn(shape, dtype=dtype)


LAYOUTS = st.sampled_from(["contiguous", "transposed", "strided", "expanded"])


@given(
    rows=st.integers(0, 70),
    inputs=st.integers(0, 40),
    outputs=st.integers(0, 70),
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    threads=st.sampled_from([1, 3]),
    dtype=DTYPES,
    product=ANY_PRODUCT,
    bias=st.booleans(),
    seed=SEEDS,
)
def test_linear(rows, inputs, outputs, layouts, threads, dtype, product, bias, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    x, w = (
        strided(shape, dtype, kind).requires_grad_()
        for shape, kind in zip([(rows, inputs), (outputs, inputs)], layouts, strict=False)
    )
    y = pr.functional.linear(x, w, torch.randn(outputs, dtype=dtype) if bias else None, product=product)
    got, expected = both_gradients(y, (x, w), strided(y.shape, dtype, layouts[2]))
    assert_equal_to_rounding(got, expected, dtype, NEAR_PARALLEL)


@st.composite
def geometries(draw):
    axes = draw(st.integers(1, 3))
    each = {
        name: draw(st.tuples(*[numbers] * axes))
        for name, numbers in {
            "size": st.integers(1, 7),
            "kernel": st.integers(1, 4),
            "stride": st.integers(1, 3),
            "padding": st.integers(0, 4),
            "dilation": st.integers(1, 3),
        }.items()
    }
    groups, multiplier = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return axes, each, groups, multiplier, draw(st.booleans()), draw(st.booleans())


@given(
    geometry=geometries(),
    batch=st.integers(0, 3),
    channels=st.integers(1, 3),
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    threads=st.sampled_from([1, 3]),
    dtype=DTYPES,
    product=ANY_PRODUCT,
    seed=SEEDS,
)
def test_convolutions(geometry, batch, channels, layouts, threads, dtype, product, seed):
    axes, each, groups, multiplier, transposed, last = geometry
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    x_shape = (batch, channels * groups, *each["size"])
    w_shape = (multiplier * groups, channels, *each["kernel"])
    options = {name: each[name] for name in ("stride", "padding", "dilation")} | {"groups": groups}
    op = getattr(pr.functional, f"conv{'_transpose' if transposed else ''}{axes}d")
    if transposed:
        w_shape = (channels * groups, multiplier, *each["kernel"])
        options["output_padding"] = tuple(min(s, d) - 1 for s, d in zip(each["stride"], each["dilation"], strict=True))
    x, w = (strided(shape, dtype, kind) for shape, kind in zip((x_shape, w_shape), layouts, strict=False))
    if last and axes > 1:
        x = x.contiguous(memory_format=torch.channels_last if axes == 2 else torch.channels_last_3d)
    x, w = x.requires_grad_(), w.requires_grad_()
    try:
        y = op(x, w, torch.randn(multiplier * groups, dtype=dtype), **options, product=product)
    except RuntimeError:  # no output of these sizes
        assume(False)
    got, expected = both_gradients(y, (x, w), strided(y.shape, dtype, layouts[2]))
    assert_equal_to_rounding(got, expected, dtype, NEAR_PARALLEL)


@given(
    kind=st.sampled_from(["LSTM", "GRU", "RNN"]),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    inputs=st.integers(1, 5),
    size=st.integers(1, 9),
    bias=st.booleans(),
    product=st.sampled_from(["pr", "no-length", "pr-w"]),
    seed=SEEDS,
)
def test_recurrent_layers(kind, lengths, inputs, size, bias, product, seed):
    torch.manual_seed(seed)
    layer = getattr(pr.nn, kind)(inputs, size, bias=bias, bidirectional=True, product=product).double()
    x = torch.randn(max(lengths), len(lengths), inputs, dtype=torch.float64, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    output = layer(packed)[0].data
    got, expected = both_gradients(output, (x, *layer.parameters()), torch.randn_like(output))
    assert_equal_to_rounding(got, expected, torch.float64, NEAR_PARALLEL)


@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 600),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    product=ANY_PRODUCT,
    seed=SEEDS,
)
def test_half_types(rows, inputs, outputs, dtype, product, seed):
    torch.manual_seed(seed)
    x, w = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((rows, inputs), (outputs, inputs)))
    y = pr.functional.linear(x, w, product=product)
    got, expected = both_gradients(y, (x, w), torch.randn(y.shape).to(dtype))
    assert_equal_to_rounding(got, expected, dtype)


TENSOR_SHAPES = st.lists(st.integers(0, 4), max_size=5)


@given(
    shapes=st.tuples(*[TENSOR_SHAPES] * 4),
    numbers=st.lists(st.integers(-2, 2**62), max_size=3),
    groups=st.integers(-1, 2**62),
    seed=SEEDS,
)
def test_arguments_of_any_kind_give_a_result_or_an_error(shapes, numbers, groups, seed):
    """No input from Python may crash the process."""
    assert kernels.library()
    torch.manual_seed(seed)
    grad, input, weight, output = (torch.randn(shape) for shape in shapes)
    call = ("pr", 0.0, 1e-6, True, True)
    ops = torch.ops.prproduct
    for attempt in (
        lambda: ops.linear_backward(grad, input, weight, None, output, *call),
        lambda: ops.linear_value(grad, input, weight, "r", 0.0, 1e-6),
        lambda: ops.convolution_backward(
            grad, input, weight, None, output, numbers, numbers, numbers, False, numbers, groups, *call
        ),
        lambda: ops.convolution_value(
            grad, input, weight, numbers, numbers, numbers, True, numbers, groups, "r", 0.0, 1e-6
        ),
        lambda: ops.recurrent_forward("gru", input, weight, grad, [output], numbers, True),
    ):
        try:
            attempt()
        except RuntimeError as error:
            assert "\n" not in str(error).strip()  # noqa: PT017
