"""A report as Markdown, with its charts and pictures as files in a folder."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from prproduct.lab.report import content
from prproduct.lab.report.charts import chart_svg, styles
from prproduct.lab.report.content import (
    Block,
    Bullets,
    Card,
    Chart,
    Code,
    Folded,
    Heading,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
)


def markdown(title: str, lead: Text, sections: Sequence[Section], folder: str) -> tuple[str, dict[str, str | bytes]]:
    """Return the text, and {name in `folder`: content} of its charts and pictures.

    >>> text, shown = markdown("A_B", "two runs", [Section("What came out", (Paragraph("n*o*thing"),))], "figures")
    >>> print(text, shown)
    # A\\_B
    <BLANKLINE>
    two runs
    <BLANKLINE>
    ## What came out
    <BLANKLINE>
    n\\*o\\*thing
     {}
    """
    known = styles(product for chart in content.charts(sections) for product in chart.products)
    parts, shown = [f"# {escape(title)}", _text(lead)], dict[str, str | bytes]()

    def show(alt: str, content: str | bytes) -> str:
        name = f"{len(shown) + 1:02d}.{'svg' if isinstance(content, str) else 'jpg'}"
        shown[name] = content
        return f"![{escape(alt)}](<{_link(folder)}/{name}>)"

    def add(block: Block) -> None:
        if isinstance(block, Chart):
            alt = " · ".join(panel.title for panel in block.panels)
            parts.extend([_text(block.caption), show(alt, chart_svg(block, known))])
        elif isinstance(block, Card):
            parts.append(f"**{escape(block.title)}**")
            if block.picture is not None:
                parts.append(show(block.title, block.picture))
            parts.append("\n".join(f"- {escape(label)}: {_text(text)}" for label, text in block.lines))
        elif isinstance(block, Folded):
            parts.append(f"<details><summary>{html.escape(block.title)}</summary>")
            for one in block.blocks:
                add(one)
            parts.append("</details>")
        else:
            parts.append(_block(block))

    for section in sections:
        parts.append(f"{'#' * section.level} {escape(section.title)}")
        for block in section.blocks:
            add(block)
    return "\n\n".join(parts) + "\n", shown


def escape(text: str) -> str:
    """Return text with all Markdown syntax escaped, also within tables.

    >>> escape("a|b_c <d>")
    'a\\\\|b\\\\_c \\\\<d\\\\>'
    """
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(text.split("\n")))


def _text(text: Text) -> str:
    written = []
    for piece in content.pieces(text):
        if isinstance(piece, str):
            written.append(escape(piece))
        else:
            written.append(_code(piece.text) if isinstance(piece, Code) else f"**{escape(piece.text)}**")
    return "".join(written)


def _code(text: str) -> str:
    """Return code between more backticks than it contains in a row, with bars escaped for tables."""
    text = " ".join(text.split("\n")).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""


def _block(block: Paragraph | Bullets | Table) -> str:
    if isinstance(block, Paragraph):
        return _text(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_text(item)}" for item in block.items)
    rule = " | ".join("---:" if side == "r" else "---" for side in block.align)
    rows = [" | ".join(map(_text, _cells(row, len(block.align)))) for row in block.rows]
    lines = "\n".join(f"| {line} |" for line in [" | ".join(map(escape, block.header)), rule, *rows])
    return f"{_text(block.caption)}\n\n{lines}"


def _cells(row: tuple[Text, ...] | Heading, columns: int) -> tuple[Text, ...]:
    return (Strong(row.text), *[""] * (columns - 1)) if isinstance(row, Heading) else row


def _link(folder: str) -> str:
    return folder.replace("\\", "\\\\").replace("<", "\\<").replace(">", "\\>")
