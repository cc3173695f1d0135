"""The page in a real Chromium: on a phone, on a desktop, in the dark, and on paper."""

import pytest
from chromium import FIGURES, REASON, SKIPPED, check_page, check_paper
from made_runs import made_run

from prproduct.classification import report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(SKIPPED, reason=REASON)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for product, error in {"p": 0.25, "pr": 0.245, "no-direction": 0.6}.items():
        for seed in range(3):
            place = folder / "a folder of a rather long name & <b>others</b>" / product / f"seed-{seed}"
            wobble = 0.004 * ((seed + len(product)) % 3)
            made_run(place, product, seed, error + wobble, arch="resnet8", data="cifar10", layers=("conv1", "fc"))
    made_run(folder / "diverged", "pr", 5, arch="resnet8", data="cifar10", ended="diverged")
    report.write([folder], folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_the_page_fits_its_window_shows_all_figures_and_loads_nothing(chromium, page, width, scheme):
    check_page(chromium, page, width, scheme)
    assert len(chromium.evaluate(FIGURES)) >= 8


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
    check_paper(chromium, page)
