"""What passes cannot be written in: refused with the place in the source, and why."""

import re

import pytest

from prproduct.kernels.compiler.numbers import FLOAT32
from prproduct.kernels.compiler.translation import TranslationError, translate
from prproduct.kernels.compiler.words import at, fill_eight, integers, one_of, part_of_pass, rounded_to


def widened(first, last, share, given):
    total = one_of(given)
    total += 1.0
    total = rounded_to(0.0, total) + at(first, 0, 1.0)[0]


def changed(first, last, share, given):
    total = 1
    total += 2.5 * first


def mixed(first, last, share, given):
    at(first, 0, one_of(given))[0] = one_of(given) * first


def unknown(first, last, share, given):
    first.imag  # noqa: B018


def looped(first, last, share, given):
    while first < last:
        first += 1


def listed(first, last, share, given):
    for k in [1, 2]:
        first += k


def foreign(first, last, share, given):
    first = divmod(first, last)


def keyword(first, last, share, given):
    first = max(first, last, key=None)


@part_of_pass()  # noqa: RET503
def half(a):
    """Something, or nothing."""
    if a > 0:
        return a


@part_of_pass()
def either(a):
    """Something, or nothing, or something else."""
    if a > 1:
        return None
    if a > 0:
        return a
    return 1.0 * a


def halved(first, last, share, given):
    half(last)


def returned(first, last, share, given):
    either(last)


def misplaced(first, last, share, given):
    one, two = integers(given)
    at(one, two, 1.0)


def downwards(first, last, share, given):
    for k in range(10, 6, -1):
        first += k


def retied(first, last, share, given):
    pair = (first, last)
    if share:
        pair = (last, first)
    first += pair[0]


def stepped(first, last, share, given):
    one, two = integers(given)[::2]
    at(one, two, 1.0)


def beyond(first, last, share, given):
    at(integers(given)[3], 0, 1.0)


def huge(first, last, share, given):
    first += 2**63


def floating(first, last, share, given):
    at(first, 0, 1.0)[1.0 * last] = 1.0


def narrowed(first, last, share, given):
    fill_eight(at(first, 0, one_of(given)), 1.0)


@part_of_pass()
def endless(a):
    """Never done."""
    return endless(a)


def recursive(first, last, share, given):
    endless(last)


def nameless(first, last, share, given):
    first += nothing  # noqa: F821


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (downwards, "passes have no range that goes down"),
        (retied, "pair is a tuple, and stays as it is"),
        (stepped, "passes have no slices with steps"),
        (beyond, "range object index out of range"),
        (huge, "is no int64"),
        (floating, "double is no integer"),
        (narrowed, "double behind a pointer to float"),
        (recursive, "endless calls itself"),
        (nameless, "nothing is not known here"),
        (widened, "total was float, and cannot become double"),
        (changed, "total was i64, and cannot become double"),
        (mixed, "float and i64 do not go together"),
        (unknown, "imag"),
        (looped, "passes have no While"),
        (listed, "passes have no For"),
        (foreign, "passes cannot call divmod"),
        (keyword, "passes call without keywords"),
        (halved, "half has to end with what it returns"),
        (returned, "either returned i64 before"),
        (misplaced, "zip"),
    ],
)
def test_what_is_refused_says_where(function, why):
    with pytest.raises(TranslationError, match=rf"test_refused_passes\.py:\d+: .*{re.escape(why)}") as refused:
        translate(function, "refused", 1, FLOAT32)
    line = int(re.search(r":(\d+): ", str(refused.value))[1])
    inside = {halved: half.function, returned: either.function, recursive: endless.function}
    place = inside.get(function, function).__code__
    assert place.co_firstlineno < line <= place.co_firstlineno + 7


def defaulted(first, last, share, given=0):
    pass


def test_only_plain_arguments_of_functions_with_a_source():
    with pytest.raises(TranslationError, match="defaulted may have plain arguments only"):
        translate(defaulted, "refused", 1, FLOAT32)
    renamed = type(half.function)(half.function.__code__, {}, "renamed")
    with pytest.raises(TranslationError, match="not the source of renamed; has it changed since it was imported"):
        translate(renamed, "refused", 1, FLOAT32)


def test_words_and_parts_say_that_they_are_not_for_python():
    with pytest.raises(TypeError, match="at means something in compiled passes only"):
        at(0, 0, 1.0)
    with pytest.raises(TypeError, match="half is a part of compiled passes"):
        half(1)
