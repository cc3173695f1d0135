"""A report as one HTML file without scripts or other files, for screens, phones and paper, light or dark.

The markup is in page.html.j2, the style in page.css; this module gives them the content and the charts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from prproduct.lab.report import content
from prproduct.lab.report.charts import panel_svg, styles, swatch, variables
from prproduct.lab.report.content import Chart, IntervalPanel, Panel, Section, Text, display

_COLUMNS_OF_A4 = 12  # a table with more is printed in a smaller font


def html(title: str, lead: Text, sections: Sequence[Section]) -> str:
    """Return the page: a title, a line below it, and the sections, of which the first is highlighted.

    >>> page = html("A & B", "two runs", [Section("What <came> out", (content.Paragraph("nothing"),))])
    >>> "<title>A &amp; B</title>" in page, "What &lt;came&gt; out" in page, "<script" in page
    (True, True, False)
    """
    known = styles(product for chart in content.charts(sections) for product in chart.products)

    css = resources.files("prproduct.lab.report").joinpath("page.css").read_text(encoding="utf-8")

    def svg(panel: Panel, key: str) -> Markup:
        return Markup(panel_svg(panel, known, key))

    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            lead=lead,
            sections=list(zip(sections, _anchors(sections), strict=True)),
            style=Markup(f"{variables()}\n{css}"),
            columns_of_a4=_COLUMNS_OF_A4,
            svg=svg,
            swatch=lambda product: Markup(swatch(known[product])),
        )
    )


def _environment() -> Environment:
    loader = PackageLoader("prproduct.lab.report", package_path="")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    filters: dict[str, Any] = {
        "base64": lambda data: base64.b64encode(data).decode(),
        "display": display,
        "grid": _grid,
        "kind": lambda block: type(block).__name__,
        "pieces": content.pieces,
    }
    environment.filters |= filters
    return environment


def _anchors(sections: Sequence[Section]) -> list[str]:
    """Return a unique id for each section, made from its title."""
    names: list[str] = []
    for section in sections:
        base = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names


def _grid(chart: Chart) -> str:
    """Return the CSS class that says how many panels of a chart share a row: "one", "two", or "" for as many as fit."""
    if len(chart.panels) == 1:
        return "one"
    intervals = any(isinstance(panel, IntervalPanel) for panel in chart.panels)
    return "two" if intervals or len(chart.panels) in (2, 4) else ""
