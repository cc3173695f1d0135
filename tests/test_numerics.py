"""Numbers that must behave: parallel, zero and one-dimensional vectors, extreme norms, half types, large biases."""

import math

import pytest
import torch
from compare import PRODUCTS, assert_close, gradients, relative_error
from hypothesis import given
from hypothesis import strategies as st

from prproduct import functional, reference
from prproduct.ops import angles

pytestmark = pytest.mark.usefixtures("device")

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
OPS = {
    "linear": lambda x, w, b, **options: functional.linear(x, w, b, **options),
    "conv": lambda x, w, b, **options: functional.conv1d(x[..., None], w[..., None], b, **options)[..., 0],
    "conv_transpose": lambda x, w, b, **options: functional.conv_transpose1d(
        x[..., None], w.T[..., None], b, **options
    )[..., 0],
}


def direction_part(gradient: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """What a gradient has orthogonal to its vector, row by row, in float64."""
    gradient, unit = gradient.double(), torch.nn.functional.normalize(vector.double(), dim=-1)
    return gradient - (gradient * unit).sum(-1, keepdim=True) * unit


def nearly_parallel(count: int, dim: int, dtype: torch.dtype, norms: tuple[float, float] = (-4, 4)):
    """Rows of x and w at angles log-uniform in [1e-8, π/2] to each other or to the opposite, with log-uniform norms."""
    w = torch.nn.functional.normalize(torch.randn(count, dim).double(), dim=1)
    orthogonal = torch.randn(count, dim).double()
    orthogonal -= (orthogonal * w).sum(1, keepdim=True) * w
    orthogonal = torch.nn.functional.normalize(orthogonal, dim=1)
    exponents = torch.empty(count, 1).double().uniform_(-8, math.log10(math.pi / 2))
    theta, sign = 10**exponents, torch.randint(0, 2, (count, 1)) * 2 - 1
    x = theta.cos() * w * sign + theta.sin() * orthogonal
    scale_x, scale_w = (10 ** torch.empty(count, 1).double().uniform_(*norms) for _ in range(2))
    return (x * scale_x).to(dtype), (w * scale_w).to(dtype)


def pairwise(x: torch.Tensor, w: torch.Tensor, product: str = "pr") -> tuple[torch.Tensor, torch.Tensor]:
    """∂/∂x and ∂/∂w of the product of each row of x with the same row of w: one group of a convolution a pair."""
    count, dim = x.shape
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    output = functional.conv1d(x.view(1, count * dim, 1), w.view(count, dim, 1), groups=count, product=product)
    output.sum().backward()
    return x.grad, w.grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 3, 8, 64, 512, 4096])
def test_the_direction_gradient_never_outgrows_the_other_vector(dtype, dim):
    """‖direction part‖ ≤ ‖x‖(1 + small) at every angle: docs/numerics.md has the same sweep in numbers."""
    norms = (-2, 2) if dtype == torch.float16 else (-4, 4)
    x, w = nearly_parallel(2000 if dim < 100 else 200, dim, dtype, norms)
    finite = (x.isfinite() & w.isfinite()).all(1) & ((x.double() * w.double()).sum(1).abs() < 6e4)
    x, w = x[finite], w[finite]
    few = slice(None, 100)
    by_gemm = gradients(functional.linear, x[few], w[few], upstream=torch.eye(len(x[few])).to(dtype))[1:]
    for (of_x, of_w), data, weights in ((pairwise(x, w), x, w), (by_gemm, x[few], w[few])):
        for gradient, vector, other in ((of_w, weights, data), (of_x, data, weights)):
            assert gradient.isfinite().all()
            lengths = direction_part(gradient, vector).norm(dim=1) / other.double().norm(dim=1).clamp_min(1e-300)
            assert lengths.max() < 1.2


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.03), (torch.float16, 0.004)]
)
def test_gradients_of_ordinary_layers_are_as_exact_as_their_dtype(dtype, tolerance):
    x, w, b = torch.randn(32, 40).to(dtype), (torch.randn(24, 40) / 6).to(dtype), torch.randn(24).to(dtype)
    wide = gradients(reference.linear, x.double(), w.double(), b.double())
    native = gradients(torch.nn.functional.linear, x, w, b)
    exact = gradients(torch.nn.functional.linear, x.double(), w.double(), b.double())
    for got, expected, torchs, truth in zip(gradients(functional.linear, x, w, b), wide, native, exact, strict=True):
        assert relative_error(got, expected) <= max(tolerance, 2 * relative_error(torchs, truth))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [1.0, -1.0, 2.5, -0.3])
def test_parallel_vectors_get_what_the_inner_product_gives(op, dtype, factor):
    w = torch.randn(4, 6).to(dtype)
    x = (w.double() * factor).to(dtype)
    diagonal = torch.eye(4).to(dtype)
    got = gradients(OPS[op], x, w, None, upstream=diagonal)
    assert_close(
        got[1:], gradients(OPS[op], x, w, None, upstream=diagonal, product="p")[1:], 4 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("product", ["pr", "tempered:0.3", "pr-w"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_one_dimensional_vectors_get_what_the_inner_product_gives(op, dtype, product):
    x, w = torch.randn(5, 1).to(dtype), torch.randn(3, 1).to(dtype)
    expected = gradients(OPS[op], x, w, None, product="p")
    assert_close(gradients(OPS[op], x, w, None, product=product), expected, 4 * torch.finfo(dtype).eps)


def test_a_pointwise_convolution_of_one_channel_gets_what_the_inner_product_gives():
    x, w = torch.randn(2, 1, 4, 4), torch.randn(3, 1, 1, 1)
    expected = gradients(functional.conv2d, x, w, product="p")
    assert_close(gradients(functional.conv2d, x, w), expected, 1e-6)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
def test_zero_vectors_have_the_gradients_that_each_product_states(op, dtype, product):
    x, w = torch.randn(3, 5).to(dtype), torch.randn(4, 5).to(dtype)
    x[1], w[2] = 0, 0
    output, of_x, of_w = gradients(OPS[op], x, w, None, upstream=torch.ones(3, 4).to(dtype), product=product)
    assert output[1].count_nonzero() == output[:, 2].count_nonzero() == 0
    flat = product in ("r", "no-direction")
    nonzero_x, nonzero_w = x[[0, 2]].double().sum(0), w[[0, 1, 3]].double().sum(0)
    expected_x = nonzero_w * (not flat)
    expected_w = nonzero_x * (not flat and product != "no-direction-w")
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(of_x[1].double(), expected_x, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(of_w[2].double(), expected_w, rtol=tolerance, atol=tolerance)
    assert of_x.isfinite().all()
    assert of_w.isfinite().all()


def test_windows_of_zeros_leave_the_rest_of_the_image_exact():
    """ReLU makes whole windows zero; the literal equations, with such windows taken out, are the oracle."""
    x = torch.randn(2, 3, 8, 8).double()
    x[:, :, 2:7, 3:8] = 0
    w = torch.randn(4, 3, 3, 3).double()
    for product in PRODUCTS:
        got = gradients(functional.conv2d, x, w, padding=1, product=product)
        assert_close(got, gradients(reference.conv2d, x, w, padding=1, product=product), 1e-12)


def test_one_outlier_does_not_ruin_the_windows_beside_it():
    x, w = torch.randn(1, 2, 12, 12), torch.randn(3, 2, 3, 3)
    x[0, 0, 5, 2] = 1e6
    got = gradients(functional.conv2d, x, w)
    wide = gradients(reference.conv2d, x.double(), w.double())
    far = (slice(None), slice(None), slice(None), slice(6, None))
    assert relative_error(got[1][far], wide[1][far]) < 1e-6


finite = st.floats(-1, 1).map(lambda value: value if abs(value) > 1e-3 else 0.0)


@st.composite
def rows(draw, dim: int):
    """A small matrix whose rows are zero, one-hot, repeated, opposite or arbitrary, each at its own scale."""
    base = draw(st.lists(finite, min_size=dim, max_size=dim))
    matrix = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["zero", "base", "opposite", "free", "one-hot"]))
        free = draw(st.lists(finite, min_size=dim, max_size=dim))
        row = {
            "zero": [0.0] * dim,
            "base": base,
            "opposite": [-value for value in base],
            "free": free,
            "one-hot": [1.0, *[0.0] * (dim - 1)],
        }[kind]
        matrix.append((row, draw(st.floats(-1, 1))))
    return matrix


@given(data=st.data())
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_finite_vectors_never_give_nan_or_inf(op, dtype, data):
    """Scales reach to where squares are still representable: 1e±18 in float32 and bfloat16, 1e±150 in float64."""
    reach = {torch.float64: 150, torch.float32: 18, torch.bfloat16: 18, torch.float16: 4}[dtype]
    dim = data.draw(st.integers(1, 6))
    x, w = (
        torch.tensor(
            [[v * 10 ** (scale * reach) for v in row] for row, scale in data.draw(rows(dim))], dtype=torch.float64
        )
        for _ in range(2)
    )
    x, w = x.to(dtype), w.to(dtype)
    product = data.draw(st.sampled_from(PRODUCTS))
    native = gradients(OPS[op], x, w, None, product="p", upstream=torch.ones(len(x), len(w), dtype=dtype))
    if not all(t.isfinite().all() for t in (x, w, *native)):
        return
    for got in gradients(OPS[op], x, w, None, product=product, upstream=torch.ones(len(x), len(w), dtype=dtype)):
        assert got.isfinite().all()


@pytest.mark.parametrize("op", OPS)
def test_fp16_does_not_overflow_between_the_two_halves(op):
    """D∘g·w is 1e5 here, out of fp16's reach; the gradient, which the correction brings back to ‖w‖, is not."""
    w = torch.tensor([[9000.0, 1200.0]], dtype=torch.float16)
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float16)
    got = gradients(OPS[op], x, w, None, upstream=torch.ones(1, 1).half())
    exact = gradients(reference.linear, x.double(), w.double(), upstream=torch.ones(1, 1).double())
    assert_close(got[1:], exact[1:], 0.05)


def test_fp16_keeps_small_gradients_beside_one_near_parallel_pair():
    x, w = torch.randn(16, 8).half(), torch.randn(6, 8).half()
    w[0] = x[0] + 0.2 * torch.randn(8).half()
    upstream = torch.full((16, 6), 2e-6).half()
    got = gradients(functional.linear, x, w, upstream=upstream)
    exact = gradients(reference.linear, x.double(), w.double(), upstream=upstream.double())
    assert_close(got[1:], exact[1:], 0.05)


@pytest.mark.parametrize(("dtype", "times", "tolerance"), [(torch.float32, 1e4, 1e-4), (torch.bfloat16, 100, 0.05)])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dim", [2, 3, 8, 256])
def test_a_bias_that_dwarfs_the_product_does_not_spoil_the_angle(op, dim, dtype, times, tolerance):
    x, w = torch.randn(16, dim).to(dtype), torch.randn(12, dim).to(dtype)
    bias = (times * torch.randn(12) * (x.double() @ w.double().T).std()).to(dtype)
    got = gradients(OPS[op], x, w, bias)
    exact = gradients(reference.linear, x.double(), w.double(), bias.double())
    without = gradients(OPS[op], x, w, None)
    for with_bias, truth, plain in zip(got[1:3], exact[1:3], without[1:], strict=True):
        assert relative_error(with_bias, truth) < max(tolerance, 1.5 * relative_error(plain, truth))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_data_vectors_drowned_by_the_bias_are_not_turned_by_noise(dtype):
    """A few tiny rows beside ordinary ones: their p is lost in output − bias, and the floor rises to say so."""
    x, w, bias = torch.randn(64, 6), torch.randn(5, 6), 0.5 * torch.randn(5)
    x[::8] *= 1e-6
    x, w, bias = x.to(dtype), w.to(dtype), bias.to(dtype)
    for row in range(0, 64, 8):
        upstream = torch.zeros(64, 5).to(dtype)
        upstream[row, 2] = 1
        of_x = gradients(functional.linear, x, w, bias, upstream=upstream)[1][row]
        assert direction_part(of_x[None], x[row][None]).norm() < 1.2 * w[2].double().norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("op", OPS)
def test_one_bad_number_spoils_no_more_than_in_the_native_layer(op, bad, dtype):
    """In the data, in the gradient of the output, and in a row whose gradient is masked."""
    x, w, upstream = torch.randn(4, 5).to(dtype), torch.randn(3, 5).to(dtype), torch.randn(4, 3).to(dtype)
    spoiled, masked = x.clone(), upstream.clone()
    spoiled[1, 2], masked[2, 0] = bad, bad
    for data, grad in ((spoiled, upstream), (x, masked)):
        native = gradients(OPS[op], data, w, None, upstream=grad, product="p")
        got = gradients(OPS[op], data, w, None, upstream=grad)
        if data is spoiled:  # the gradient for the bad vector itself is the product's business
            native[1][1], got[1][1] = 0, 0
        for ours, torchs in zip(got[1:], native[1:], strict=True):
            assert ours[torchs.isfinite()].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_vectors_whose_squares_overflow_are_as_the_inner_product(dtype):
    x, w = torch.randn(4, 5).to(dtype), torch.randn(3, 5).to(dtype)
    x[1] *= 1e25
    for op in OPS.values():
        got, inner = gradients(op, x, w, None), gradients(op, x, w, None, product="p")
        assert all(t.isfinite().all() for t in got)
        assert_close([got[1][1], got[2]], [inner[1][1], inner[2]], 4 * torch.finfo(dtype).eps)


def test_a_kernel_of_one_group_does_not_spoil_another_group():
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 2, 3, 3)
    clean = gradients(functional.conv2d, x, w, groups=2)[1]
    w[0, 0, 0, 0] = math.inf
    assert_close([gradients(functional.conv2d, x, w, groups=2)[1][:, 2:]], [clean[:, 2:]], 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_r_of_parallel_vectors_is_their_product(dtype):
    """|sin θ| is the root of some eps of noise there, and counts as 0 where it cannot be told from it."""
    x, w = (torch.rand(100, 1) + 0.5).to(dtype), (torch.rand(7, 1) + 0.5).to(dtype)
    wide_eps = torch.finfo(torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype).eps
    for dim, tolerance in ((1, 4 * torch.finfo(dtype).eps), (8, torch.finfo(dtype).eps + math.sqrt(8 * wide_eps))):
        got = functional.linear(x.expand(100, dim), w.expand(7, dim), product="r")
        torch.testing.assert_close(got.double(), dim * x.double() @ w.double().T, rtol=tolerance, atol=0)


def test_float32_in_fewer_bits_raises_the_floor():
    """p then has 10 or 7 bits, whatever its dtype says. There is no GPU here: the rule itself is asked."""
    coarse, fine = 4 * 2**-10, 32 * torch.finfo(torch.float32).eps
    convolution, matmul = torch.backends.cudnn.conv, torch.backends.cuda.matmul

    def floors():
        return [angles.floor_of_sin_square(torch.float32, "cuda", is_convolution) for is_convolution in (True, False)]

    try:
        for allow, precision in ((True, "highest"), (False, "high")):
            torch.backends.cudnn.allow_tf32 = allow
            torch.set_float32_matmul_precision(precision)
            assert floors() == ([coarse, fine] if allow else [fine, coarse])
        for pair in (("tf32", "ieee"), ("ieee", "tf32")):  # torch's newer settings, after which the older ones raise
            convolution.fp32_precision, matmul.fp32_precision = pair
            assert floors() == [coarse if one == "tf32" else fine for one in pair]
            compiled = torch.compile(lambda t: t * angles.floor_of_sin_square(t.dtype, "cuda", True), backend="eager")
            assert compiled(torch.ones(())) == torch.tensor(floors()[0])
            torch._dynamo.reset()
        for precision, floor in (("highest", fine), ("high", coarse), ("medium", 4 * 2**-7)):
            torch.set_float32_matmul_precision(precision)
            assert angles.floor_of_sin_square(torch.float32, "cpu", False) == floor
            assert angles.floor_of_sin_square(torch.float32, "cpu", True) == fine
            assert angles.floor_of_sin_square(torch.float64, "cpu", False) == 128 * torch.finfo(torch.float64).eps
    finally:  # the defaults, by the older settings, which set what the newer ones left apart
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("exponent", [-18, -12, 12, 18])
def test_float32_norms_far_from_one_keep_their_accuracy(exponent):
    x, w = torch.randn(6, 9), torch.randn(4, 9)
    for scale_x, scale_w in ((exponent, 0), (0, exponent), (exponent, -exponent)):
        a, b = x * 10.0**scale_x, w * 10.0**scale_w
        for op in OPS.values():
            got = gradients(op, a, b, None)
            assert_close(got[1:], gradients(reference.linear, a.double(), b.double())[1:], 5e-6)
