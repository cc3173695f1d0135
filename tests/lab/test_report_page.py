"""Pages: no name is taken for markup, both formats say the same, and nothing is loaded from elsewhere."""

import os
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from prproduct.lab.errors import InputError
from prproduct.lab.report import charts, content, files
from prproduct.lab.report.charts import COLOURS, chart_svg, panel_svg, styles
from prproduct.lab.report.content import (
    Bullets,
    Card,
    Chart,
    Code,
    Folded,
    Heading,
    Interval,
    IntervalPanel,
    Line,
    LinePanel,
    Paragraph,
    Section,
    Strong,
    Table,
)
from prproduct.lab.report.markdown import markdown
from prproduct.lab.report.page import html

EVIL = '<script>alert("x")</script> & |`_*$\\frac{'
LINES = LinePanel(EVIL, "epoch", (Line("pr", (1, 2, 3), (3.0, 2.0, float("nan")), (2.5, 1.5, 1.0), (3.5, 2.5, 2.0)),))
INTERVALS = IntervalPanel("differences", "points", (Interval(EVIL, "tempered:0.5", (-0.2, 0.1), -0.05, -1.0, 0.9),))
SECTIONS = [
    Section(
        f"Summary {EVIL}",
        (
            Paragraph((EVIL, Code(EVIL), Strong(EVIL))),
            Bullets((EVIL, "two")),
            Table(EVIL, ("name", EVIL), "lr", (Heading(EVIL), (Code(EVIL), "−0.27"))),
            Chart(EVIL, (LINES, INTERVALS, LINES)),
            Card(EVIL, ((EVIL, EVIL),), b"a picture"),
            Folded(EVIL, (Chart(EVIL, (LINES,)), Card(EVIL, ((EVIL, Strong(EVIL)),)))),
        ),
    ),
    Section(f"Summary {EVIL}", (Paragraph("of the same name", note=True),)),
]


@pytest.fixture(scope="module")
def page():
    return html(EVIL, EVIL, SECTIONS)


def test_no_text_becomes_markup_anywhere_on_the_page(page):
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 12
    names = re.findall(r'id="([^"]*)"', page)
    assert len(names) == len(set(names)), "two elements of one name: a clip path would cut another chart"


def test_the_page_asks_for_nothing_from_elsewhere(page):
    addresses = re.findall(r'(?:src|href|xlink:href|url)\s*[=(]\s*"?([^")\s>]+)', page)
    assert addresses
    assert all(address.startswith(("#", "data:,", "data:image/jpeg;base64,")) for address in addresses), addresses
    assert "@import" not in page


def test_charts_keep_their_text_and_take_their_colours_from_the_page():
    svg = panel_svg(LINES, styles(["pr"]), "a")
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert EVIL in texts, "a dollar sign began a formula"
    assert "epoch" in texts
    assert "var(--red)" in svg
    assert not [colour for colour in COLOURS if colour.light in svg]
    assert not re.search(r"#[0-9a-f]{6}", svg)


def test_a_chart_in_a_file_of_its_own_is_whole_xml_with_its_legend_and_colours():
    drawn = chart_svg(Chart("", (LINES, INTERVALS)), styles(["pr", "tempered:0.5"]))
    texts = [
        "".join(node.itertext()) for node in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {"PR", "tempered:0.5"} <= set(texts)
    assert "--red:" in drawn


def test_a_long_label_is_wrapped_and_does_not_run_into_the_next_chart():
    name = "mlp on digits (precision bf16, batch size 128, optimizer adam, learning rate 0.02, limit train 5000)"
    panel = IntervalPanel("PR − P", "points", tuple(Interval(name, "pr", (0.1,), 0.1, -0.1, 0.3) for _ in range(3)))
    axes = Figure(figsize=(charts.WIDTH, charts._height(panel)), layout="constrained").subplots()
    charts._draw(axes, panel, styles(["pr"]))
    axes.figure.canvas.draw()
    labels = [text.get_window_extent() for text in axes.texts]
    assert max(label.x1 for label in labels) <= axes.get_window_extent().x1 + 10
    assert all(above.y0 > below.y1 for above, below in pairwise(labels)), "two labels overlap"
    assert labels[0].y1 <= axes.get_window_extent().y1


def test_a_product_looks_the_same_on_every_page_and_unlike_all_others():
    few, many = styles(["pr"]), styles(["pr", "p", "tempered:0.5", "tempered:0.9", "mine"])
    assert few["pr"] == many["pr"]
    assert len(set(many.values())) == len(many)


def test_both_formats_hold_every_text_and_number():
    sections = [
        Section(
            "Results",
            (
                Paragraph(("plain ", Code("code"), Strong(" strong"))),
                Bullets(("first", "second")),
                Table("caption", ("product", "error"), "lr", (Heading("group"), ("PR", "6.23 ± 0.10"))),
                Chart("of errors", (LinePanel("test error", "epoch", (Line("pr", (1,), (2.0,)),)),)),
                Folded("opened", (Card("dog.jpg", (("people", "a dog"),)), Paragraph("inside"))),
            ),
        )
    ]
    text, charts = markdown("Title", "lead", sections, "figures")
    page = html("Title", "lead", sections)
    words = [
        "Title",
        "lead",
        "Results",
        "plain",
        "code",
        "strong",
        "first",
        "second",
        "caption",
        "group",
        "6.23 ± 0.10",
    ]
    for word in [*words, "of errors", "product", "opened", "dog.jpg", "people", "a dog", "inside"]:
        assert word in text, word
        assert word in page, word
    assert list(charts) == ["01.svg"]
    assert "![test error](<figures/01.svg>)" in text
    assert "| product | error |\n| --- | ---: |\n| **group** |  |\n| PR | 6.23 ± 0.10 |" in text


def test_markdown_escapes_what_would_be_markup_and_keeps_a_table_in_its_columns():
    table = Table("c", ("a", "b"), "ll", ((Code("x|`y`"), "1|2_3"),))
    text, _ = markdown("t", "", [Section("s", (table,))], "f")
    assert "| `` x\\|`y` `` | 1\\|2\\_3 |" in text
    assert "\\<script\\>" in markdown("t", EVIL, [], "f")[0]


def test_a_row_that_does_not_fit_its_table_is_refused():
    with pytest.raises(ValueError, match="2 cells, the header has 1"):
        Table("", ("a",), "l", (("1", "2"),))


def test_numbers_have_true_signs_and_what_is_missing_is_a_dash():
    assert content.number(float("nan")) == content.number(None) == "–"
    assert content.number(-1.0, sign=True) == "−1.00"
    assert content.p_text(0.0) == "< 0.001"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("report.pdf", "a report is written as .html, .htm, .md"),
        ("report", "a report is written as"),
        ("folder.html", "is a folder; give the name of a file"),
        ("nowhere/report.html", "nowhere: no such folder"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(tmp_path, name, line):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match=line) as error:
        files.write("t", "l", SECTIONS[1:], tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_a_full_disk_leaves_the_old_report_and_nothing_half_written(tmp_path, monkeypatch, name):
    target = tmp_path / name
    target.write_text("the old one")

    def full(path):
        os.truncate(path, 10)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prproduct.lab.files.sync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        files.write("t", "l", SECTIONS[1:], target)
    assert target.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folded_charts_and_pictures_are_files_beside_markdown_and_charts_of_the_page(tmp_path):
    panel = LinePanel("error", "epoch", (Line("tempered:0.5", (1, 2), (2.0, 1.0)),))
    sections = [Section("s", (Folded("f", (Chart("c", (panel,)), Card("dog", (("P", "a dog"),), b"JPEG"))),))]
    assert [chart.caption for chart in content.charts(sections)] == ["c"], "its product would have no colour"
    files.write("t", "l", sections, tmp_path / "my report.md")
    links = re.findall(r"\]\(<(.*)>\)", (tmp_path / "my report.md").read_text())
    assert [Path(link).suffix for link in links] == [".svg", ".jpg"]
    ElementTree.parse(tmp_path / links[0])
    assert (tmp_path / links[1]).read_bytes() == b"JPEG"


def test_a_single_epoch_is_a_point_in_the_middle_with_room_around_it():
    panel = LinePanel("test error, %", "epoch", (Line("p", (1,), (50.0,)), Line("pr", (1,), (49.99,))))
    axes = Figure().subplots()
    charts._draw(axes, panel, charts.styles(["p", "pr"]))
    left, right = axes.get_xlim()
    assert left + right == pytest.approx(2)
    assert [tick for tick in axes.get_xticks() if left <= tick <= right] == [1]
    low, high = axes.get_ylim()
    assert low < 46
    assert high > 54


def test_names_of_layers_stand_on_the_axis():
    panel = LinePanel("a", "layer", (Line("p", (1, 2), (1.0, 2.0)),), names=("fc1", "fc"))
    svg = charts.panel_svg(panel, charts.styles(["p"]), "a")
    assert ">fc1<" in svg
    assert ">fc<" in svg
