"""What passes are written in: compiled functions against Python's own results."""

import itertools
import math

import numpy as np
import pytest

from prproduct.kernels import programs
from prproduct.kernels.compiler.entries import Pass
from prproduct.kernels.compiler.numbers import FLOAT64
from prproduct.kernels.compiler.translation import translate
from prproduct.kernels.compiler.words import (
    at,
    behind,
    copy_eight,
    each,
    fill_eight,
    integers,
    one_of,
    part_of_pass,
    rounded_to,
)

FACTOR = np.float32(2.5)
TWO, HALF = 2, 0.5


def run(function, *arguments, size=8, first=0, last=0, share=0, results=8):
    """What a pass writes to the memory that its first integer is the address of; arrays are given by theirs."""
    result = np.zeros(results, {4: np.float32, 8: np.float64}[size])
    given = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in (result, *arguments)]
    entry = Pass(function, len(given))[size]
    entry.call(first, last, share, entry.pack(*given))
    return result.tolist()


def divide(first, last, share, given):
    (result,) = integers(given)
    out = at(result, 0, 1.0)
    out[0] = rounded_to(1.0, first // last)
    out[1] = rounded_to(1.0, first % last)


@pytest.mark.parametrize(("a", "b"), [*itertools.product([-7, -6, -1, 0, 1, 6, 7], [-3, -1, 1, 2, 3])])
def test_division_and_remainder_are_pythons(a, b):
    assert run(divide, first=a, last=b)[:2] == [a // b, a % b]


def compare(first, last, share, given):
    result, values = integers(given)
    out, x = at(result, 0, 1.0), at(values, 0, 1.0)
    a, b = x[0], x[1]
    out[0] = 1.0 if a < b else 0.0
    out[1] = 1.0 if a == b else 0.0
    out[2] = 1.0 if a != b else 0.0
    out[3] = min(a, b)
    out[4] = max(a, b)
    out[5] = 1.0 if a == a and not a >= b else 0.0
    out[6] = 1.0 if a < b < 2.0 else 0.0
    out[7] = 1.0 if np.isfinite(a) or b < 0.0 else 0.0


VALUES = [-1.0, 0.0, 1.5, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize(("a", "b"), [*itertools.product(VALUES, VALUES)])
def test_comparisons_are_pythons_with_nan_too(a, b):
    expected = [a < b, a == b, a != b, min(a, b), max(a, b), a == a and not a >= b, a < b < 2.0]
    expected.append(math.isfinite(a) or b < 0.0)
    np.testing.assert_array_equal(run(compare, np.array([a, b])), [float(e) for e in expected])


def flow(first, last, share, given):
    (result,) = integers(given)
    out = at(result, 0, 1.0)
    for k in range(first, last):
        if k % 5 == 4:
            continue
        if k > 20:
            break
        for j in range(0, k, 3):
            out[0] += 1.0 * j
        k = 100
    out[1] = 1.0 * k
    for k in range(share):
        out[2] = 1.0 * k
        if k == 3:
            return
    out[3] = 1.0


@pytest.mark.parametrize(("last", "share"), [(0, 2), (10, 3), (40, 4), (40, 9)])
def test_loops_go_on_end_and_return_as_in_python(last, share):
    if last == 0:
        assert run(flow, first=5, last=0, share=share)[2:4] == [1.0, 1.0]
        return
    total = sum(j for k in range(last) if k % 5 != 4 and k <= 20 for j in range(0, k, 3))
    expected = [total, 21.0 if last > 21 else 9.0, min(share - 1, 3), float(share <= 3)]
    assert run(flow, last=last, share=share)[:4] == expected


@part_of_pass()
def both(a, b, swapped):
    """A tuple either way."""
    return (b, a) if swapped else (a, b)


@part_of_pass()
def start_of(memory, one):
    """A pointer, by way of two returns."""
    if memory:
        return at(memory, 1, one)
    return at(memory, 0, one)


@part_of_pass(reassociates=True)
def summed(count, x, factor, one):
    """Factors may be many or one."""
    total = one - one
    for k in range(count):
        total += x[k] * each(factor, k)
    return total


def parts(first, last, share, given):
    result, values = integers(given)
    one = one_of(given)
    out, x = at(result, 0, one), start_of(values, one)
    a, b = both(x[0], x[1], share)
    pair = both(a, b, 1)
    out[0], out[1] = a, b
    out[2] = pair[0]
    out[3] = summed(last, x, x, one)
    out[4] = summed(last, x, one + one, one)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("share", [0, 1])
def test_parts_return_numbers_pointers_and_tuples(size, share):
    x = np.arange(5.0, dtype={4: np.float32, 8: np.float64}[size])
    first, second = (2.0, 1.0) if share else (1.0, 2.0)
    assert run(parts, x, size=size, last=4, share=share)[:5] == [first, second, second, 30.0, 20.0]


def literals(first, last, share, given):
    result, values = integers(given)
    one = one_of(given)
    out, x = at(result, 0, one), at(values, 0, one)
    third = x[0] / 3.0 if first else 0.0
    total = 0.0
    total += third
    out[0] = third * FACTOR * TWO + HALF
    at(result, 1, 1.0)[0] = total + first
    out[1 + TWO**2] = rounded_to(one, total)
    if programs.ADD == 0 and TWO > 3:
        out[7] = one


def test_a_literal_takes_the_type_of_what_it_meets():
    result = np.array(run(literals, np.array([1.0], np.float32), size=4, first=1), np.float32)
    third = np.float32(1.0) / np.float32(3.0)
    assert result[0] == third * np.float32(5.0) + np.float32(0.5)
    assert result[2:4].view(np.float64)[0] == float(third) + 1
    assert result[5] == third
    assert result[7] == 0.0


def words(first, last, share, given):
    result, source = integers(given)[:2]
    one = one_of(given)
    out = at(result, 0, one)
    fill_eight(out, one + one)
    if integers(given)[first]:
        copy_eight(at(out, 8, one), at(source, 0, one))
    at(behind(given) - 8 * 3, 0, np.int64(0))[2] = 7
    bits = at(result, 2 * 16, np.int32(0))
    bits[0] = (bits[0] + 3) << 2


def test_words_move_eight_numbers_and_reach_other_types():
    source = np.arange(8.0)
    result = np.zeros(17)
    entry = Pass(words, 3)[8]
    given = np.array([result.ctypes.data, source.ctypes.data, 1])
    entry.call(2, 0, 0, given.tobytes())
    assert result[:16].tolist() == [2.0] * 8 + source.tolist()
    assert result[16:].view(np.int32)[0] == 12


def functions(first, last, share, given):
    result, values = integers(given)
    out, x = at(result, 0, 1.0), at(values, 0, 1.0)
    out[0] = np.sqrt(x[0])
    out[1] = np.exp(x[0])
    out[2] = np.log(x[0])
    out[3] = abs(-x[0])
    out[4] = x[0] ** 1.5
    out[5] = 1.0 * (~first)


def test_functions_are_numpys():
    expected = [math.sqrt(3), math.exp(3), math.log(3), 3.0, 3.0**1.5, ~5]
    np.testing.assert_allclose(run(functions, np.array([3.0]), first=5)[:6], expected, rtol=1e-15)


def bools(first, last, share, given):
    (result,) = integers(given)
    out = at(result, 0, 1.0)
    out[first == 1] = 1.0 * ((first == 1) + (last == 1))
    out[2] = 1.0 * ((first == 1) * (last == 1))
    out[3] = 1.0 if (first == 0) < (last == 1) else 0.0
    out[4] = 1.0 * max(first == 0, last == 1)
    out[5] = 1.0 * -(first == 1)
    out[6] = 1.0 * ~(first == 1)


def test_bools_count_as_integers():
    assert run(bools, first=1, last=1)[1:7] == [2.0, 1.0, 1.0, 1.0, -1.0, -2.0]


@part_of_pass()
def noted(out, value):
    """Which of two was asked."""
    out[0] += 1.0
    if value > 3:
        return value
    else:  # noqa: RET505  both ways end here
        return -value


def asked(first, last, share, given):
    (result,) = integers(given)
    out = at(result, 0, 1.0)
    if 10 < first < noted(out, 7):
        out[1] = 1.0
    if first == 0 or noted(out, 2) == -2:
        pass
    if first == 0 and noted(out, 2) == -2:
        out[2] = 1.0


def test_what_is_decided_is_not_asked_further():
    assert run(asked, first=0)[:3] == [1.0, 0.0, 1.0]


def narrow(first, last, share, given):
    result, source = integers(given)
    n = at(source, 0, np.int32(0))
    at(result, 0, 1.0)[0] = 1.0 * (n[0] + n[0])
    at(result, 1, 1.0)[0] = 1.0 * integers(given)[-2 + 2 * 0 :][0 - 1]


def test_integers_of_32_bits_are_widened_when_they_are_read():
    source = np.array([2_000_000_000], np.int32)
    assert run(narrow, source)[:2] == [4e9, float(source.ctypes.data)]


def test_the_same_source_gives_the_same_code():
    assert translate(parts, "twice", 2, FLOAT64) == translate(parts, "twice", 2, FLOAT64)
