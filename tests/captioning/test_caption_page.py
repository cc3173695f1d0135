"""What is drawn for a caption: the attention of each word over its picture, figures, and the page."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from painted_pictures import paint
from PIL import Image
from small_dataset import InMemory

from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.inference import GeneratedCaption, Search, generate_captions
from prproduct.captioning.model import Captioner
from prproduct.captioning.use import attention, page
from prproduct.captioning.use.pictures import CaptionedPicture
from prproduct.lab.errors import InputError

pytestmark = pytest.mark.usefixtures("tiny_encoders")


def described(words, where, regions=4):
    """Each word looks at one region."""
    weights = np.zeros((len(words), regions), np.float32)
    weights[np.arange(len(words)), where] = 1
    return GeneratedCaption(0, " ".join(words), tuple(words), weights)


def test_the_most_attended_region_stays_clear_and_grey_covers_the_rest():
    grey = Image.new("RGB", (80, 40), (200, 200, 200))
    for where, (x, y) in enumerate([(10, 5), (70, 5), (10, 35), (70, 35)]):
        (overlay,) = attention.overlays(described(["dog"], [where]).attention)
        seen = np.asarray(attention.covered(grey, overlay))[..., 0]
        assert seen[y, x] == 200
        assert (seen[39 - y, 79 - x], seen[y, 79 - x]) == (119, 119)
    flat = attention.overlays(np.full((1, 9), 1 / 9, np.float32))[0]
    assert np.array_equal(np.asarray(attention.covered(grey, flat)), np.asarray(grey))


def test_a_figure_has_a_tile_for_each_word_below_its_neighbours():
    white = Image.new("RGB", (60, 60), (255, 255, 255))
    said = described(["a"] * 8, [0] * 8)
    figure = np.asarray(attention.draw(white, [("pr", said)]))[..., 0]
    step, row = attention.TILE + attention.GAP, attention.TILE + attention.LINE + attention.GAP
    top = 2 * attention.GAP + attention.LINE
    for tile in range(12):
        x, y = attention.GAP + tile % 6 * step + attention.TILE - 5, top + tile // 6 * row + attention.TILE - 5
        assert (figure[y, x] < 130) == (0 < tile < 9), tile  # the first is the picture itself
    assert figure.shape == (top + 2 * row + attention.GAP, attention.WIDTH)


@pytest.mark.parametrize("size", [(8, 4000), (4000, 8), (8, 8)])
def test_figures_and_cards_of_the_oddest_pictures_without_a_word(size):
    image = Image.new("RGB", size)
    image.thumbnail((640, 640))
    nothing = described([], [])
    assert attention.draw(image, [("pr", nothing), ("p", nothing)]).height > 2 * attention.LINE
    card = page.card("x", CaptionedPicture(None, image, (nothing,)), ["pr"])
    assert "(no words)" in page.page([card], [], [])


def test_regions_that_are_no_grid_are_not_drawn():
    with pytest.raises(InputError, match="attention over 5 regions, which are no square grid"):
        attention.overlays(np.ones((1, 5), np.float32))


@pytest.mark.parametrize(("word", "words"), [("1\u00a01/2", ("1\u00a01/2",) * 3), (None, ())], ids=["word", "empty"])
def test_a_word_with_a_no_break_space_is_one_word_with_one_attention(word, words):
    """The tokenizer makes such a word of "1 1/2"."""
    vocabulary = Vocabulary(("a", "1\u00a01/2", "UNK"))
    model = Captioner(len(vocabulary), 6, hidden=4, embedding=4, attention=4).eval()
    with torch.no_grad():
        model.output.bias[vocabulary.encode([word])[0] if word else 0] = 100
    features, search = InMemory({7: np.ones((4, 6), np.float32)}), Search(beams=1, longest=3)
    (said,) = generate_captions(model, vocabulary, features, [7], search)
    assert (said.words, said.attention.shape) == (words, (len(words), 4))
    image = Image.new("RGB", (60, 60))
    card = page.card("x", CaptionedPicture(None, image, (said,)), ["pr"])
    assert tuple(text for text, _ in card.captions[0][1]) == words


class Elements(HTMLParser):
    """The texts, and the attributes of all elements."""

    def __init__(self, text):
        super().__init__()
        self.text, self.elements = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_self_contained_and_escapes_names(lab, caption, tmp_path):
    file = paint(tmp_path / "<img src=x onerror=1>&\"'.png", "red", (900, 600))
    output = tmp_path / "deep" / "page.html"
    assert caption(file, "--run", lab / "p", "--run", lab / "pr", "-o", output)[0] == 0
    content = output.read_text()
    found = Elements(content)
    tags = [tag for tag, _ in found.elements]
    assert tags.count("img") == 1 + 2 * 2  # the picture, and the overlays of two words of two captions
    assert not re.search(r"https?://|<script|<link", content)
    assert all(text in found.text for text in ("P, cross-entropy", "PR, cross-entropy", "all", "red", file.name))
    sources = [attributes["src"] for tag, attributes in found.elements if tag == "img"]
    sizes = [Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).size for source in sources]
    assert sizes == [(640, 427), *[(2, 2)] * 4]
    assert next(a["alt"] for tag, a in found.elements if tag == "img") == file.name
    assert next(a["title"] for tag, a in found.elements if tag == "h2") == str(file)
