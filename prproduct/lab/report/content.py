"""The content of a report, independent of HTML or Markdown: sections of paragraphs, lists, tables, charts and cards.

Text is plain and escaped by the writers, since names of folders and layers may hold any character; `Code` and `Strong`
are the only markup. The functions at the end return names, numbers and settings as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ORDER = ("p", "r", "pr", "no-length", "no-direction", "no-direction-w", "pr-w")  # the paper's first


@dataclass(frozen=True)
class Code:
    """Text in a fixed-width font: a name, a command."""

    text: str


@dataclass(frozen=True)
class Strong:
    """Emphasised text."""

    text: str


Inline = str | Code | Strong
Text = Inline | tuple[Inline, ...]


def pieces(text: Text) -> tuple[Inline, ...]:
    """Return a text as a sequence of its parts.

    >>> pieces("a"), pieces(("a", Code("b")))
    (('a',), ('a', Code(text='b')))
    """
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """Return a text without markup.

    >>> plain((Strong("no"), " spread"))
    'no spread'
    """
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces(text))


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; a note is in a smaller font."""

    text: Text
    note: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[Text, ...]


@dataclass(frozen=True)
class Heading:
    """A row of a table that is the heading of the rows below it."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; `align` has an l or an r for each column."""

    caption: Text
    header: tuple[str, ...]
    align: str
    rows: tuple[tuple[Text, ...] | Heading, ...]

    def __post_init__(self) -> None:
        for row in (self.header, self.align, *self.rows):
            if not isinstance(row, Heading) and len(row) != len(self.header):
                raise ValueError(f"a row has {len(row)} cells, the header has {len(self.header)}: {row}")


@dataclass(frozen=True)
class Line:
    """One product's values over epochs or steps; NaN leaves a gap. `low` and `high` are the edges of its band."""

    product: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class LinePanel:
    """Lines in one pair of axes."""

    title: str
    x_label: str
    lines: tuple[Line, ...]
    limits: tuple[float, float] | None = None  # of the vertical axis
    names: tuple[str, ...] = ()  # of the places 1, 2, … on the horizontal axis, instead of numbers

    @property
    def products(self) -> tuple[str, ...]:
        """The products whose values it shows."""
        return tuple(line.product for line in self.lines)


@dataclass(frozen=True)
class Interval:
    """Single differences, their mean, and its confidence interval or None."""

    label: str
    product: str
    points: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class IntervalPanel:
    """Intervals below each other, with a line at 0."""

    title: str
    x_label: str
    intervals: tuple[Interval, ...]

    @property
    def products(self) -> tuple[str, ...]:
        """The products whose values it shows."""
        return tuple(interval.product for interval in self.intervals)


Panel = LinePanel | IntervalPanel


@dataclass(frozen=True)
class Chart:
    """Panels that share a legend."""

    caption: Text
    panels: tuple[Panel, ...]

    @property
    def products(self) -> tuple[str, ...]:
        """The products whose values it shows, each once."""
        return tuple(dict.fromkeys(product for panel in self.panels for product in panel.products))


@dataclass(frozen=True)
class Card:
    """Labelled lines about one thing, beside its picture if there is one."""

    title: str
    lines: tuple[tuple[str, Text], ...]
    picture: bytes | None = None  # a JPEG


@dataclass(frozen=True)
class Folded:
    """Blocks that are hidden until the reader opens them."""

    title: str
    blocks: tuple[Paragraph | Bullets | Table | Chart | Card, ...]


Block = Paragraph | Bullets | Table | Chart | Card | Folded


@dataclass(frozen=True)
class Section:
    """A heading and its blocks; level 3 is a part of the section before."""

    title: str
    blocks: tuple[Block, ...]
    level: int = 2


def charts(sections: Sequence[Section]) -> Iterator[Chart]:
    """Yield all charts, in order."""
    for section in sections:
        for block in section.blocks:
            inner = block.blocks if isinstance(block, Folded) else (block,)
            yield from (one for one in inner if isinstance(one, Chart))


def display(product: str) -> str:
    """Return a product's name for readers.

    >>> display("pr"), display("no-length")
    ('PR', 'no-length')
    """
    return product.upper() if product in ("p", "r", "pr") else product


def ordered(products: Iterable[str]) -> list[str]:
    """Return the products, each once, in the paper's order; others follow by name.

    >>> ordered(["tempered:0.5", "pr", "p", "pr"])
    ['p', 'pr', 'tempered:0.5']
    """
    places = {product: place for place, product in enumerate(ORDER)}
    return sorted(set(products), key=lambda product: (places.get(product, len(places)), product))


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return a number with a typographic minus sign; a dash for None, NaN and infinity.

    >>> number(-0.274), number(0.2, sign=True), number(None), number(-0.001, sign=True)
    ('−0.27', '+0.20', '–', '0.00')
    """
    if value is None or not math.isfinite(value):
        return "–"
    rounded = f"{value:.{digits}f}"
    if not float(rounded):
        return rounded.removeprefix("-")
    return (("+" if sign and value > 0 else "") + rounded).replace("-", "−")


def p_text(value: float | None) -> str:
    """Return a p value with two significant digits at most.

    >>> p_text(0.04231), p_text(0.31), p_text(0.00002), p_text(None)
    ('0.042', '0.31', '< 0.001', '–')
    """
    if value is None:
        return "–"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def plus_minus(mean: float, std: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return a mean and its standard deviation, which a single value does not have.

    >>> plus_minus(6.234, 0.1), plus_minus(6.234, None, sign=True)
    ('6.23 ± 0.10', '+6.23')
    """
    return number(mean, digits, sign=sign) + ("" if std is None else f" ± {number(std, digits)}")


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> seconds_text(4.24), seconds_text(71), seconds_text(7380)
    ('4.2 s', '1 min 11 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def written(value: object) -> str:
    """Return a setting's value as text.

    >>> written(True), written([81, 122]), written(5e-4)
    ('yes', '81 and 122', '0.0005')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return f"{value:g}".replace("-", "−") if isinstance(value, float) else str(value)
