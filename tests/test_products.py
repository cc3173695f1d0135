"""The products as mathematics: the paper's theorems, their limits, and 50-digit arithmetic."""

import math
import pickle
from dataclasses import dataclass

import mpmath
import pytest
import torch
from compare import PRODUCTS, assert_close, gradients, relative_error
from hypothesis import assume, given
from hypothesis import strategies as st

import prproduct as pr
from prproduct.products import PR, Gains, P, Pair, Product, R, Tempered, resolve

angles = st.floats(-4, math.log10(math.pi / 2)).map(lambda exponent: 10.0**exponent)
lengths = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)
dimensions = st.integers(2, 40)


def vectors_at(theta: float, weight_length: float, input_length: float, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random x and w, as matrices of one row, with the given lengths and the angle theta between them."""
    basis, _ = torch.linalg.qr(torch.randn(dim, 2, dtype=torch.float64))
    w, orthogonal = basis.T
    x = math.cos(theta) * w + math.sin(theta) * orthogonal
    return (input_length * x)[None], (weight_length * w)[None]


def halves(gradient: torch.Tensor, vector: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts of a gradient along a vector and orthogonal to it."""
    along = (gradient * vector).sum() / vector.square().sum() * vector
    return along, gradient - along


@given(theta=st.floats(0.01, 2 * math.pi - 0.01), weight_length=lengths, input_length=lengths)
def test_pr_turns_every_angle_with_the_same_force(theta, weight_length, input_length):
    """Equations 9 and 10: ∂PR/∂θ = ‖w‖‖x‖·sign(−sin θ), while ∂P/∂θ = −‖w‖‖x‖·sin θ."""
    assume(abs(math.sin(theta)) > 1e-2)
    for product, expected in (("pr", math.copysign(1, -math.sin(theta))), ("p", -math.sin(theta))):
        angle = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        x = torch.tensor([[input_length, 0.0]], dtype=torch.float64)
        w = weight_length * torch.stack([angle.cos(), angle.sin()])[None]
        pr.functional.linear(x, w, product=product).sum().backward()
        assert angle.grad.item() == pytest.approx(expected * weight_length * input_length, rel=1e-9)


@given(theta=angles, weight_length=lengths, input_length=lengths, dim=dimensions, flipped=st.booleans())
def test_pr_keeps_the_length_gradient_and_gives_the_direction_gradient_the_length_of_x(
    theta, weight_length, input_length, dim, flipped
):
    """Equation 11, for ∂/∂w and, with the roles exchanged, for ∂/∂x."""
    x, w = vectors_at(math.pi - theta if flipped else theta, weight_length, input_length, dim)
    _, of_x, of_w = gradients(pr.functional.linear, x, w, upstream=torch.ones(1, 1).double())
    tolerance = 1e-14 / theta**2
    for gradient, vector, other in ((of_w, w, x), (of_x, x, w)):
        along, across = halves(gradient, vector)
        expected_along, rejection = halves(other, vector)
        assert relative_error(along, expected_along) <= tolerance + 1e-11
        assert across.norm().item() == pytest.approx(other.norm().item(), rel=tolerance + 1e-11)
        assert torch.nn.functional.cosine_similarity(across, rejection).item() == pytest.approx(1)


@given(theta=st.floats(0.05, math.pi - 0.05), dim=dimensions)
def test_pr_is_sin_times_p_plus_cos_times_r(theta, dim):
    """Equation 7 with its held factors, for the value and for both gradients."""
    x, w = vectors_at(theta, 1.7, 0.6, dim)
    one = torch.ones(1, 1).double()
    p, r, both = (gradients(pr.functional.linear, x, w, upstream=one, product=name) for name in ("p", "r", "pr"))
    mixed = [math.sin(theta) * of_p + abs(math.cos(theta)) * of_r for of_p, of_r in zip(p, r, strict=True)]
    assert_close(mixed, both, 1e-12)


@given(theta=st.floats(1e-6, math.pi - 1e-6), dim=dimensions)
def test_r_is_the_length_of_x_minus_that_of_its_rejection(theta, dim):
    x, w = vectors_at(theta, 3.0, 2.0, dim)
    value = pr.functional.linear(x, w, product="r").item()
    assert value == pytest.approx(math.copysign(6.0 * (1 - math.sin(theta)), math.cos(theta)), rel=1e-7, abs=1e-12)


def test_tempered_runs_from_p_to_pr():
    x, w = torch.randn(5, 7).double(), torch.randn(3, 7).double()
    for power, end in ((0.0, "p"), (1.0, "pr")):
        tempered = gradients(pr.functional.linear, x, w, product=Tempered(power))
        assert_close(tempered, gradients(pr.functional.linear, x, w, product=end), 1e-14)


@given(theta=st.floats(0.1, 3.0), power=st.floats(0, 1))
def test_tempered_direction_gradient_has_its_stated_length(theta, power):
    x, w = vectors_at(theta, 2.0, 5.0, 6)
    of_w = gradients(pr.functional.linear, x, w, upstream=torch.ones(1, 1).double(), product=Tempered(power))[2]
    assert halves(of_w, w)[1].norm().item() == pytest.approx(5.0 * math.sin(theta) ** (1 - power), rel=1e-9)


def exact_gains(product: str, cos: mpmath.mpf, sin: mpmath.mpf) -> tuple[tuple, tuple]:
    """(length, direction) for w and for x, from the definitions, in as many digits as mpmath works with."""
    native = (1, 1)
    both = {
        "p": native,
        "pr": (1, 1 / sin),
        "r": ((1 - sin) / abs(cos), abs(cos) / sin),
        "tempered:0.3": (1, sin ** -mpmath.mpf(0.3)),
        "no-direction": (1, 0),
    }
    weight_only = {"no-length": (0, 1), "no-direction-w": (1, 0), "pr-w": (1, 1 / sin)}
    return (both[product], both[product]) if product in both else (weight_only[product], native)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("theta", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_gradients_equal_fifty_digit_arithmetic_down_to_the_floor(product, theta):
    """s² is 1 − cos², so its relative error is some eps/s²; nothing better can be had from p and the norms."""
    tolerance = 20 * torch.finfo(torch.float64).eps / theta**2 + 1e-15
    for dim in (2, 5, 40):
        x, w = vectors_at(theta, 3.0, 0.2, dim)
        got = gradients(pr.functional.linear, x, w, upstream=torch.ones(1, 1).double(), product=product)[1:]
        with mpmath.workdps(50):
            xs, ws = ([mpmath.mpf(value) for value in t[0].tolist()] for t in (x, w))
            p, a, b = (mpmath.fdot(one, other) for one, other in ((ws, xs), (ws, ws), (xs, xs)))
            cos = p / mpmath.sqrt(a * b)
            of_w, of_x = exact_gains(product, cos, mpmath.sqrt(1 - cos**2))
            for gradient, vector, other, square, (length, direction) in (
                (got[1], ws, xs, a, of_w),
                (got[0], xs, ws, b, of_x),
            ):
                along = [p / square * value for value in vector]
                exact = [length * pv + direction * (ov - pv) for pv, ov in zip(along, other, strict=True)]
                errors = [value - e for value, e in zip(gradient[0].tolist(), exact, strict=True)]
                error = mpmath.sqrt(mpmath.fdot(errors, errors) / mpmath.fdot(other, other))
                assert error < tolerance, f"dim {dim}: {float(error):.2e}"


@pytest.mark.parametrize("product", PRODUCTS)
def test_every_product_is_found_by_the_name_it_prints(product):
    found = resolve(product)
    assert str(found) == product
    assert resolve(found) is found
    assert pickle.loads(pickle.dumps(found)) == found


def test_unknown_products_are_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match=r"unknown product 'prr': choose one of p, pr, r, tempered, no-length"):
        pr.functional.linear(torch.ones(1, 2), torch.ones(1, 2), product="prr")
    for nonsense in ("tempered:much", "pr:2", ""):
        with pytest.raises(ValueError, match="unknown product"):
            resolve(nonsense)
    with pytest.raises(TypeError, match=r"a name or a Product object such as products.PR\(\)"):
        pr.nn.Linear(2, 2, product=PR)


@pytest.mark.parametrize("power", [-0.1, 1.5, math.nan, math.inf])
def test_a_power_outside_p_and_pr_is_refused(power):
    with pytest.raises(ValueError, match=r"must be a number from 0 \(p\) to 1 \(pr\)"):
        resolve(f"tempered:{power}")
    with pytest.raises(ValueError, match=r"must be a number from 0 \(p\) to 1 \(pr\), not '0.5'"):
        Tempered("0.5")


def test_a_product_without_a_name_goes_by_that_of_its_class():
    class Nameless(PR):
        pass

    assert repr(pr.nn.Linear(2, 2, product=Nameless())).endswith("product=Nameless)")


def test_only_r_has_a_forward_of_its_own():
    assert [name for name in PRODUCTS if not resolve(name).has_native_forward] == ["r"]
    assert not R.has_native_forward
    assert P.has_native_forward


@dataclass(frozen=True)
class Custom(Product):
    """A product of a user's own, with a forward of its own: w is turned twice as much, x is not stretched."""

    name = "custom"

    def gains(self, pair: Pair) -> Gains:
        return Gains(length=pair.cos.abs(), direction=2.0)

    def input_gains(self, pair: Pair, weight_gains: Gains) -> Gains:
        return Gains(length=0.0, direction=1.0)

    def value(self, pair: Pair):
        return pair.sin


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (pr.nn.Linear(3, 4, product=Custom()), (2, 3)),
        (pr.nn.Conv1d(4, 6, 3, groups=2, product=Custom()), (2, 4, 9)),
        (pr.nn.Conv2d(4, 6, 3, padding=1, product=Custom()), (2, 4, 5, 5)),
        (pr.nn.Conv3d(2, 3, 2, product=Custom()), (2, 2, 3, 3, 3)),
        (pr.nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2, product=Custom()), (2, 4, 5)),
        (pr.nn.ConvTranspose2d(2, 3, 2, stride=2, product=Custom()), (2, 2, 3, 3)),
        (pr.nn.ConvTranspose3d(2, 3, 2, product=Custom()), (2, 2, 2, 2, 2)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_a_custom_product_serves_in_every_layer(layer, shape):
    layer = layer.double()
    x = torch.randn(shape).double().requires_grad_()
    native = torch.nn.functional.linear(x, layer.weight) if x.dim() == 2 else None
    output = layer(x)
    if native is not None:
        lengths = x.norm(dim=1, keepdim=True) * layer.weight.norm(dim=1)
        sin = (1 - (native / lengths) ** 2).sqrt()
        torch.testing.assert_close(output, native * sin + layer.bias)
    output.sum().backward()
    # Without its length half, the gradient for x is orthogonal to x, as a whole; ∂/∂w is not.
    if x.dim() == 2:
        torch.testing.assert_close((x.grad * x).sum(-1), torch.zeros(len(x)).double(), atol=1e-12, rtol=0)
    assert layer.weight.grad.abs().sum() > 0
    assert "product=custom" in repr(layer)


@dataclass(frozen=True)
class Wrong(Product):
    name = "wrong"
    result: object

    def gains(self, pair: Pair) -> Gains:
        return self.result  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (Gains(1.0, torch.ones(3)), r"product wrong: gains\(\) returned a direction gain of shape \(3,\), .*\(2, 4\)"),
        (Gains(torch.ones(2, 1), 1.0), r"product wrong: gains\(\) returned a length gain of shape \(2, 1\)"),
        (Gains("1", 1.0), r"a length gain of type str"),
        (1.0, r"must return Gains\(length, direction\), not float"),
        ((1.0, 2.0), r"must return Gains\(length, direction\), not tuple"),
        (None, r"must return Gains\(length, direction\), not NoneType"),
    ],
)
def test_a_custom_product_that_returns_nonsense_is_told_so(result, message):
    output = pr.functional.linear(torch.ones(2, 3), torch.ones(4, 3).requires_grad_(), product=Wrong(result))
    with pytest.raises((ValueError, TypeError), match=message):
        output.sum().backward()


def test_a_product_without_gains_is_told_so():
    class Empty(Product):
        name = "empty"

    output = pr.functional.linear(torch.ones(2, 3), torch.ones(4, 3).requires_grad_(), product=Empty())
    with pytest.raises(TypeError, match=r"Empty defines no gains\(self, pair\)"):
        output.sum().backward()


def test_a_custom_value_of_a_wrong_shape_is_told_so():
    class Flat(P):
        name = "flat"

        def value(self, pair: Pair):
            return torch.ones(7)

    with pytest.raises(ValueError, match=r"product flat: value\(\) returned a factor of shape \(7,\)"):
        pr.functional.linear(torch.ones(2, 3), torch.ones(4, 3), product=Flat())
