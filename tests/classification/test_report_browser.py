"""The page in a real Chromium: on a phone, on a desktop, in the dark, and on paper."""

import os
import re

import pytest
from chromium import PROGRAM, browser
from made_runs import made_run

from prproduct.classification import report

WANTED = os.environ.get("PRPRODUCT_BROWSER") == "1"
pytestmark = pytest.mark.skipif(
    PROGRAM is None and not WANTED, reason="no chromium is installed; PRPRODUCT_BROWSER=1 makes its absence an error"
)
SIZES = """[...document.querySelectorAll(".panels svg")].map(svg => {
  const box = svg.getBoundingClientRect(); return [box.width, box.height, box.left, box.right] })"""
TABLES = """[...document.querySelectorAll(".scroll")].map(box => [box.getBoundingClientRect().right, box.scrollWidth,
  box.clientWidth, getComputedStyle(box).overflowX])"""
LUMINANCE = """(element => getComputedStyle(element).backgroundColor)(document.body)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    assert PROGRAM, "PRPRODUCT_BROWSER=1, but no chromium is installed: apt-get install chromium"
    folder = tmp_path_factory.mktemp("page")
    for product, error in {"p": 0.25, "pr": 0.245, "no-direction": 0.6}.items():
        for seed in range(3):
            place = folder / "a folder of a rather long name & <b>others</b>" / product / f"seed-{seed}"
            wobble = 0.004 * ((seed + len(product)) % 3)
            made_run(place, product, seed, error + wobble, arch="resnet8", data="cifar10", layers=("conv1", "fc"))
    made_run(folder / "diverged", "pr", 5, arch="resnet8", data="cifar10", ended="diverged")
    report.write([folder], folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_the_page_fits_its_window_shows_all_figures_and_loads_nothing(chromium, page, width, scheme):
    chromium.open(page, width, scheme=scheme)
    root = "document.documentElement"
    assert chromium.evaluate(f"{root}.scrollWidth") <= chromium.evaluate(f"{root}.clientWidth"), "it scrolls sideways"
    assert chromium.evaluate("innerWidth") == width
    figures = chromium.evaluate(SIZES)
    assert len(figures) >= 8
    assert all(w > 150 and h > 50 and left >= 0 and right <= width for w, h, left, right in figures), figures
    tables = chromium.evaluate(TABLES)
    assert all(right <= width for right, *_ in tables)
    assert all(overflow == "auto" for *_, overflow in tables)
    asked = [event["request"]["url"] for event in chromium.of("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [page]
    complaints = chromium.of("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert complaints == []
    dark = [int(value) < 60 for value in re.findall(r"\d+", chromium.evaluate(LUMINANCE))[:3]]
    assert all(dark) if scheme == "dark" else not any(dark)
    assert chromium.screenshot().startswith(b"\x89PNG")


def test_text_in_figures_can_be_read_on_a_phone(chromium, page):
    chromium.open(page, 390)
    sizes = chromium.evaluate(
        '[...document.querySelectorAll("figure .panels text")].map(text => text.getBoundingClientRect().height)'
    )
    assert len(sizes) > 50
    assert min(sizes) >= 9


def test_headings_of_the_navigation_lead_to_sections(chromium, page):
    chromium.open(page, 1280)
    missing = '[...document.querySelectorAll("nav a")].filter(a => !document.querySelector(a.hash)).length'
    assert chromium.evaluate(missing) == 0
    assert chromium.evaluate('document.querySelectorAll("nav a").length') >= 4


def test_paper_is_light_and_cuts_no_table(chromium, page):
    chromium.open(page, 1280, scheme="dark")
    chromium.call("Emulation.setEmulatedMedia", media="print")
    chromium.call("Emulation.setDeviceMetricsOverride", width=700, height=1000, deviceScaleFactor=1, mobile=False)
    tables = chromium.evaluate(TABLES)
    assert tables
    assert all(wanted <= there + 1 for _, wanted, there, _ in tables), "a table is wider than a sheet of A4"
    assert chromium.evaluate(LUMINANCE) == "rgb(255, 255, 255)"
    pdf = chromium.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    chromium.call("Emulation.setEmulatedMedia", media="")
