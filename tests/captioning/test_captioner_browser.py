"""The captioners' page in a real Chromium: on a phone, on a desktop, in the dark, and on paper."""

import pytest
from chromium import FIGURES, REASON, SKIPPED, check_page, check_paper
from made_captioners import made_run
from PIL import Image

from prproduct.captioning import report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(SKIPPED, reason=REASON)]
PICTURES = "[...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().right])"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captioners")
    for product, cider in {"p": 0.5, "r": 0.4, "pr": 0.55}.items():
        for seed in range(2):
            place = folder / "a folder of a rather long name & <b>others</b>" / product / f"seed-{seed}"
            made_run(place / "xe", "xe", product, seed, cider + seed / 50, angles=0.1)
            made_run(place / "rl", "rl", product, seed, cider + 0.1, angles=0.2)
    made_run(folder / "diverged", "xe", "pr", 5, ended="diverged")
    for name, size in (("dog.jpg", (900, 300)), ("cat.jpg", (40, 700))):
        Image.new("RGB", size, "teal").save(folder / name)
    report.write([folder], folder / "report.html", pictures=folder)
    return (folder / "report.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light")])
def test_the_captioners_page_fits_its_window_and_loads_nothing(chromium, page, width, scheme):
    check_page(chromium, page, width, scheme)
    assert len(chromium.evaluate(FIGURES)) >= 8


@pytest.mark.parametrize("width", [390, 1280])
def test_pictures_of_examples_are_shown_inside_of_the_window(chromium, page, width):
    chromium.open(page, width)
    pictures = chromium.evaluate(PICTURES)
    assert len(pictures) == 2
    assert all(natural > 0 and right <= width for natural, right in pictures), pictures


def test_printed_captioners_cut_no_table(chromium, page):
    check_paper(chromium, page)
