"""A self-contained HTML page of captioned pictures, which shows the attention of each word that is pointed at.

A word contains its attention overlay, a PNG of one pixel per region (about 100 bytes), which the browser stretches
smoothly over the picture. There is no script: hovering and focus are CSS. `page.html.j2` is the template.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from prproduct.captioning.inference import TrainedCaptioner
from prproduct.captioning.use.attention import overlays
from prproduct.captioning.use.pictures import CaptionedPicture


class Card(NamedTuple):
    """The part of the page for one picture; images are data URLs."""

    path: str
    name: str
    ratio: float  # width / height
    source: str
    captions: list[tuple[str, list[tuple[str, str]]]]  # label, and each word with its attention overlay


def card(path: str, captioned: CaptionedPicture, labels: Sequence[str]) -> Card:
    """The card of a picture with one caption per label."""
    captions = [
        (label, [(word, _data_url(o, "PNG")) for word, o in zip(one.words, overlays(one.attention), strict=True)])
        for label, one in zip(labels, captioned.captions, strict=True)
    ]
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    width, height = captioned.image.size
    source = _data_url(captioned.image.convert("RGB"), "JPEG", quality=80)
    return Card(path, name, width / height, source, captions)


def page(cards: Sequence[Card], captioners: Sequence[TrainedCaptioner], unreadable: Sequence[tuple[str, str]]) -> str:
    """The HTML of all cards; `unreadable` are the names of pictures that could not be read, with the reason."""
    environment = Environment(loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined)
    template = environment.get_template("page.html.j2")
    return template.render(cards=cards, captioners=captioners, unreadable=unreadable)


def _data_url(image: Image.Image, form: str, **options: int) -> str:
    content = io.BytesIO()
    image.save(content, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
