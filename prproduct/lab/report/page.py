"""A report as one HTML page that needs nothing else: no network, no script, on a phone, on paper, light or dark."""

from __future__ import annotations

import base64
import html as escaping
import re
from collections.abc import Sequence
from importlib import resources

from prproduct.lab.report import content
from prproduct.lab.report.charts import Style, panel_svg, styles, swatch, variables
from prproduct.lab.report.content import (
    Block,
    Bullets,
    Card,
    Chart,
    Code,
    Folded,
    Heading,
    IntervalPanel,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    display,
)

_A4 = 12  # columns of numbers that a sheet holds at the usual size


def html(title: str, lead: Text, sections: Sequence[Section]) -> str:
    """The page: a title, a line below it, and sections, the first of which stands out.

    >>> page = html("A & B", "two runs", [Section("What <came> out", (Paragraph("nothing"),))])
    >>> "<title>A &amp; B</title>" in page, "What &lt;came&gt; out" in page, "<script" in page
    (True, True, False)
    """
    known = styles(product for chart in content.charts(sections) for product in chart.products)
    names = _anchors(sections)
    links = "".join(
        f'<a href="#{name}">{escape(section.title)}</a> '
        for section, name in zip(sections, names, strict=True)
        if section.level == 2
    )
    body = "\n".join(
        f'<section id="{name}"{" class=first" if place == 0 else ""}>\n'
        f"<h{section.level}>{escape(section.title)}</h{section.level}>\n"
        + "\n".join(_block(block, known, f"part-{place}-{number}") for number, block in enumerate(section.blocks))
        + "\n</section>"
        for place, (section, name) in enumerate(zip(sections, names, strict=True))
    )
    css = resources.files("prproduct.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{variables()}
{css}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{_text(lead)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def escape(text: str) -> str:
    """Text that is nothing but text in HTML, also in attributes.

    >>> escape('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return escaping.escape(text, quote=True)


def _anchors(sections: Sequence[Section]) -> list[str]:
    """Ids from titles, each once."""
    names: list[str] = []
    for section in sections:
        base = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names


def _text(text: Text) -> str:
    tags = {Code: "code", Strong: "strong"}
    written = []
    for piece in content.pieces(text):
        if isinstance(piece, str):
            written.append(escape(piece))
        else:
            tag = tags[type(piece)]
            written.append(f"<{tag}>{escape(piece.text)}</{tag}>")
    return "".join(written)


def _block(block: Block, known: dict[str, Style], key: str) -> str:
    if isinstance(block, Paragraph):
        return f"<p{' class=note' if block.note else ''}>{_text(block.text)}</p>"
    if isinstance(block, Bullets):
        return "<ul>\n" + "\n".join(f"<li>{_text(item)}</li>" for item in block.items) + "\n</ul>"
    if isinstance(block, Card):
        return _card(block)
    if isinstance(block, Folded):
        inner = "\n".join(_block(one, known, f"{key}-{place}") for place, one in enumerate(block.blocks))
        return f"<details><summary>{escape(block.title)}</summary>\n{inner}\n</details>"
    return _table(block, key) if isinstance(block, Table) else _chart(block, known, key)


def _card(card: Card) -> str:
    lines = "\n".join(f"<dt>{escape(label)}</dt><dd>{_text(text)}</dd>" for label, text in card.lines)
    shown = ""
    if card.picture is not None:
        content = base64.b64encode(card.picture).decode()
        shown = f'<img src="data:image/jpeg;base64,{content}" alt="{escape(card.title)}">\n'
    return f'<article class="card">\n{shown}<div><h4>{escape(card.title)}</h4>\n<dl>\n{lines}\n</dl></div>\n</article>'


def _table(table: Table, key: str) -> str:
    marks = [" class=r" if side == "r" else "" for side in table.align]
    header = "".join(f"<th scope=col{mark}>{escape(name)}</th>" for mark, name in zip(marks, table.header, strict=True))
    rows = []
    for row in table.rows:
        if isinstance(row, Heading):
            rows.append(
                f"<tr class=group><th colspan={len(marks)} scope=rowgroup><span>{escape(row.text)}</span></th></tr>"
            )
        else:
            cells = "".join(f"<td{mark}>{_text(cell)}</td>" for mark, cell in zip(marks, row, strict=True))
            rows.append(f"<tr>{cells}</tr>")
    written = "\n".join(rows)
    wide = " class=wide" if len(marks) > _A4 else ""
    return (
        f'<p class="note caption" id="{key}">{_text(table.caption)}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{key}"><table{wide}>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{written}\n</tbody>\n</table></div>"
    )


def _chart(chart: Chart, known: dict[str, Style], key: str) -> str:
    legend = "".join(f"<li>{swatch(known[product])}{escape(display(product))}</li>" for product in chart.products)
    panels = "\n".join(panel_svg(panel, known, f"{key}-{place}") for place, panel in enumerate(chart.panels))
    intervals = any(isinstance(panel, IntervalPanel) for panel in chart.panels)
    shape = " one" if len(chart.panels) == 1 else " two" if intervals or len(chart.panels) in (2, 4) else ""
    return (
        f"<figure>\n<figcaption>{_text(chart.caption)}</figcaption>\n"
        f'<ul class="legend">{legend}</ul>\n<div class="panels{shape}">\n{panels}\n</div>\n</figure>'
    )
