"""The products' names for readers, and the order in which tables, legends and lists have them."""

from __future__ import annotations

from collections.abc import Iterable

ORDER = ("p", "r", "pr", "no-length", "no-direction", "no-direction-w", "pr-w")  # the paper's first


def display(product: str) -> str:
    """A product's name for readers.

    >>> display("pr"), display("no-length")
    ('PR', 'no-length')
    """
    return product.upper() if product in ("p", "r", "pr") else product


def ordered(products: Iterable[str]) -> list[str]:
    """The products, each once, in the usual order; others follow by name.

    >>> ordered(["tempered:0.5", "pr", "p", "pr"])
    ['p', 'pr', 'tempered:0.5']
    """
    places = {product: place for place, product in enumerate(ORDER)}
    return sorted(set(products), key=lambda product: (places.get(product, len(places)), product))
