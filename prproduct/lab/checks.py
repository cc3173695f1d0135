"""Checks of single options: a wrong value is an InputError that names the option and what it may be."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prproduct.lab.errors import InputError
from prproduct.products import resolve


def check_known(name: str, value: str, known: Iterable[str]) -> None:
    """Raise InputError for a value that is not one of the known ones.

    >>> check_known("optimizer", "rprop", ("sgd", "adam"))
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: optimizer 'rprop' is not known; there are sgd, adam
    """
    known = tuple(known)
    if value not in known:
        raise InputError(f"{name} {value!r} is not known; there are {', '.join(known)}")


def check_least(name: str, value: float | None, least: float) -> None:
    """Raise InputError for a number below `least`, for NaN and for infinity; None, an option not given, passes.

    >>> check_least("epochs", 0, 1)
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: epochs is 0, it must be at least 1
    """
    if value is not None and not least <= value < math.inf:
        raise InputError(f"{name} is {value}, it must be at least {least}")


def check_positive(name: str, value: float | None) -> None:
    """Raise InputError for anything but a number above 0; None, an option not given, passes.

    >>> check_positive("learning_rate", math.inf)
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: learning_rate is inf, it must be a number above 0
    """
    if value is not None and not 0 < value < math.inf:
        raise InputError(f"{name} is {value}, it must be a number above 0")


def product_name(product: str) -> str:
    """Return the one name of a product; InputError for a string that names none.

    >>> product_name("tempered:.50")
    'tempered:0.5'
    >>> product_name("q")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: unknown product 'q': choose one of p, pr, ...
    """
    try:
        return str(resolve(product))
    except ValueError as error:
        raise InputError(str(error)) from None
