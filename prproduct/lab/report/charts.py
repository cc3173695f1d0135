"""Charts as SVG with text as text and CSS variables as colours, so that they follow the page's light or dark mode.

A product has the same colour and dash pattern everywhere. Colours differ for colour-blind readers, and dashes in print.
"""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from prproduct.lab.report.content import Chart, IntervalPanel, LinePanel, Panel, display


class Colour(NamedTuple):
    """A CSS variable: its name, and its values in light and in dark mode."""

    name: str
    light: str
    dark: str


# Okabe and Ito's colours, some made darker or lighter for contrast.
BLUE = Colour("blue", "#0072b2", "#5db3ee")
RED = Colour("red", "#d55e00", "#ff8a3d")
GREEN = Colour("green", "#00875f", "#2fc79a")
PURPLE = Colour("purple", "#b0598b", "#e29cc6")
AMBER = Colour("amber", "#b07a00", "#e8b33f")
SKY = Colour("sky", "#3c9dd0", "#8fd0f5")
GREY = Colour("grey", "#5a6068", "#a7adb5")
INK = Colour("ink", "#1f2328", "#e3e6ea")
SOFT = Colour("soft", "#596069", "#9aa2ac")
RULE = Colour("rule", "#dde1e6", "#343b44")
COLOURS = (BLUE, RED, GREEN, PURPLE, AMBER, SKY, GREY, INK, SOFT, RULE)


class Style(NamedTuple):
    """The colour of a product's lines, and their dash lengths; empty for solid lines."""

    colour: Colour
    dashes: tuple[float, ...]


KNOWN = {
    "p": Style(BLUE, ()),
    "pr": Style(RED, ()),
    "r": Style(GREEN, (5, 2)),
    "no-length": Style(PURPLE, (6, 2, 1.5, 2)),
    "no-direction": Style(AMBER, (1.5, 1.5)),
    "no-direction-w": Style(GREY, (3, 2)),
    "pr-w": Style(SKY, (8, 2)),
}
_OTHERS = [
    Style(colour, dashes) for dashes in ((4, 1.5), (2, 1), (7, 2, 2, 2)) for colour in (SKY, GREY, GREEN, PURPLE)
]

WIDTH, HEIGHT = 4.0, 2.7  # inches of 72 units, about a pixel of the page each: three panels fill a row of a desktop
_TEXT = 10.0
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": _TEXT,
    "axes.edgecolor": RULE.light,
    "axes.labelcolor": SOFT.light,
    "text.color": INK.light,
    "xtick.color": SOFT.light,
    "ytick.color": SOFT.light,
    "grid.color": RULE.light,
    "axes.titlesize": _TEXT,
    "axes.labelsize": _TEXT,
    "xtick.labelsize": _TEXT - 1,
    "ytick.labelsize": _TEXT - 1,
    "axes.unicode_minus": True,
}


def styles(products: Iterable[str]) -> dict[str, Style]:
    """Return {product: style}; known products always have the same style, others get theirs in the order of names.

    >>> styles(["tempered:0.5", "pr"])["pr"].colour.name
    'red'
    """
    others = sorted(set(products) - set(KNOWN))
    return {**KNOWN, **{product: _OTHERS[place % len(_OTHERS)] for place, product in enumerate(others)}}


def variables() -> str:
    """Return the CSS of the colours in light and dark mode; print is light."""
    light, dark = (";".join(f"--{c.name}:{c[i]}" for c in COLOURS) for i in (1, 2))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def panel_svg(panel: Panel, known: dict[str, Style], key: str) -> str:
    """Return one panel as an SVG element for a page that defines the variables; `key` makes its ids unique.

    >>> from prproduct.lab.report.content import Line
    >>> svg = panel_svg(LinePanel("test error", "epoch", (Line("pr", (1, 2), (9.0, 8.5)),)), styles(["pr"]), "a")
    >>> svg.startswith("<svg"), "test error" in svg, "var(--red)" in svg
    (True, True, True)
    """
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": key}):
        figure = Figure(figsize=(WIDTH, _height(panel)), layout="constrained")
        _draw(figure.subplots(), panel, known)
        return _svg(figure, panel.title)


def chart_svg(chart: Chart, known: dict[str, Style]) -> str:
    """Return all panels and their legend as one SVG file that defines the variables.

    >>> from prproduct.lab.report.content import Line
    >>> panel = LinePanel("test error", "epoch", (Line("pr", (1, 2), (9.0, 8.5)),))
    >>> ">PR<" in chart_svg(Chart("errors", (panel, panel)), styles(["pr"]))
    True
    """
    columns = min(len(chart.panels), 2 if len(chart.panels) in (2, 4) else 3)
    rows = math.ceil(len(chart.panels) / columns)
    height = max(_height(panel) for panel in chart.panels) * rows + 0.4
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": "chart"}):
        figure = Figure(figsize=(WIDTH * columns, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, panel in zip(grid, chart.panels, strict=False):
            _draw(axes, panel, known)
        for axes in grid[len(chart.panels) :]:
            axes.set_visible(False)
        own = [known[product] for product in chart.products]
        handles = [Line2D([], [], color=s.colour.light, linewidth=1.8, linestyle=_dash(s)) for s in own]
        figure.legend(handles, [display(p) for p in chart.products], loc="outside upper left", ncols=6, frameon=False)
        drawn = _svg(figure, " · ".join(panel.title for panel in chart.panels))
    start = drawn.index(">") + 1
    ground = "svg{background:#fff}@media screen and (prefers-color-scheme:dark){svg{background:#14181d}}"
    return f"{drawn[:start]}<style>{variables()}{ground}text{{font-family:sans-serif}}</style>{drawn[start:]}\n"


def _height(panel: Panel) -> float:
    return HEIGHT if isinstance(panel, LinePanel) else 0.9 + _row_height(panel) * len(panel.intervals)


def _row_height(panel: IntervalPanel) -> float:
    """Return the inches that each interval takes with its label, which may have several lines."""
    return 0.45 + 0.17 * max(_wrapped(interval.label).count("\n") + 1 for interval in panel.intervals)


def _wrapped(label: str) -> str:
    return textwrap.fill(label, 46)  # characters that fit the width of a panel


def _draw(axes: Axes, panel: Panel, known: dict[str, Style]) -> None:
    axes.set_title(panel.title, loc="left", parse_math=False)  # a layer may be called $\sin$
    axes.set_xlabel(panel.x_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)
    if isinstance(panel, LinePanel):
        _draw_lines(axes, panel, known)
    else:
        _draw_intervals(axes, panel, known)


def _draw_lines(axes: Axes, panel: LinePanel, known: dict[str, Style]) -> None:
    axes.grid(axis="y", linewidth=0.8)
    if panel.names:
        axes.set_xticks(range(1, len(panel.names) + 1), panel.names, rotation=30, ha="right", rotation_mode="anchor")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.ticklabel_format(axis="y", useOffset=False)
    for line in panel.lines:
        style = known[line.product]
        colour = style.colour.light
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
        few = sum(map(math.isfinite, line.y)) <= 12  # a line of one point is invisible
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linewidth=1.8,
            linestyle=_dash(style),
            marker="o" if few else None,
            markersize=3,
        )
    if limits := panel.limits or _limits_of_points(panel):
        axes.set_ylim(*limits)


def _limits_of_points(panel: LinePanel) -> tuple[float, float] | None:
    """Return limits for panels with a single place, at least 10 % around the points: noise must not look large."""
    values = [value for line in panel.lines for value in (*line.y, *line.low, *line.high) if math.isfinite(value)]
    if len({place for line in panel.lines for place in line.x}) != 1 or not values:
        return None
    low, high = min(values), max(values)
    margin = max(high - low, 0.2 * max(abs(low), abs(high)), 1e-6) / 2
    return low - margin, high + margin


def _draw_intervals(axes: Axes, panel: IntervalPanel, known: dict[str, Style]) -> None:
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    inch = 1 / _row_height(panel)  # rows are 1 apart
    axes.set_ylim(len(panel.intervals) - 1 + 0.28 * inch, 0.19 * inch - 1)
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    for row, interval in enumerate(panel.intervals):
        colour = known[interval.product].colour.light
        axes.plot([0, 0], [row - 0.09 * inch, row + 0.09 * inch], color=SOFT.light, linewidth=1)
        if interval.low is not None and interval.high is not None:
            axes.plot([interval.low, interval.high], [row, row], color=colour, linewidth=1.8, solid_capstyle="butt")
        spots = [row] * len(interval.points)
        axes.plot(interval.points, spots, "o", color=colour, alpha=0.5, markersize=5, markeredgewidth=0)
        axes.plot([interval.mean], [row], "D", color=colour, markersize=6)
        # Above its row, so that the interval has the whole width on a narrow screen.
        axes.annotate(
            _wrapped(interval.label),
            (0, row - 0.19 * inch),
            (0, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            parse_math=False,
        )


def _dash(style: Style) -> Any:
    return (0, style.dashes) if style.dashes else "-"


def _svg(figure: Figure, title: str) -> str:
    """Return the figure's SVG element without a fixed size, with variables for colours and the page's font."""
    stream = io.StringIO()
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    svg = text[text.index("<svg") :].strip()
    for colour in COLOURS:
        svg = svg.replace(colour.light, f"var(--{colour.name})")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # it would apply to the whole page
    svg = re.sub(
        r"font: ([\d.]+)px [^;\"]*|font-family: [^;\"]*; ", lambda f: f"font-size: {f[1]}px" if f[1] else "", svg
    )
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r' id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick|legend|FillBetween)[^"]*"', "", svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size, "matplotlib writes a viewBox"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {size[1]} {size[2]}" role="img" aria-label="{html.escape(title)}">'
    )
    return opening + re.sub(r"\n\s*", "\n", svg[svg.index(">") + 1 :])


def swatch(style: Style) -> str:
    """Return a short line in a product's style as SVG, for the page's legend."""
    dashes = f' stroke-dasharray="{" ".join(f"{1.8 * length:g}" for length in style.dashes)}"' if style.dashes else ""
    return (
        f'<svg viewBox="0 0 28 8" aria-hidden="true"><path d="M0 4H28" stroke="var(--{style.colour.name})" '
        f'stroke-width="2.4"{dashes}/></svg>'
    )
