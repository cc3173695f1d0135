"""What a report says, as text: for tests that look for a sentence or a row; and the runs that it is made from."""

from prproduct.lab.report import files
from prproduct.lab.report.content import Bullets, Card, Folded, Heading, Paragraph, Table, plain


def found_in(places):
    """The runs in folders, all of which can be read."""
    found, broken = files.find_all(places)
    assert not broken
    return found


def text_of(sections):
    """All that sections say; a row of a table is a line, its cells are separated by ` | `."""
    lines = [line for section in sections for line in (f"# {section.title}", *lines_of(section.blocks))]
    return "\n".join(lines).replace("\u00a0", " ")


def lines_of(blocks):
    lines = []
    for block in blocks:
        if isinstance(block, Paragraph):
            lines.append(plain(block.text))
        elif isinstance(block, Bullets):
            lines += map(plain, block.items)
        elif isinstance(block, Folded):
            lines += [block.title, *lines_of(block.blocks)]
        elif isinstance(block, Card):
            lines += [block.title, *(f"{label}: {plain(text)}" for label, text in block.lines)]
        elif isinstance(block, Table):
            lines += [plain(block.caption), " | ".join(block.header)]
            lines += [row.text if isinstance(row, Heading) else " | ".join(map(plain, row)) for row in block.rows]
    return lines
