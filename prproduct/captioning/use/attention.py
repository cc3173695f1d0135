"""The attention of each word drawn over the picture: regions with little attention are covered by grey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib import font_manager
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from prproduct.captioning.inference import GeneratedCaption
from prproduct.lab.errors import InputError

# Middle grey: black would not be visible over a night picture, nor white over snow.
GREY, MOST_OPAQUE = 110, 0.9
# All in pixels.
WIDTH = 1464  # of the figure
TILE = 230  # the longer side of a picture
NARROWEST = 120  # the width of a tile at least, so that a word fits below it
GAP, LINE, FONT_SIZE = 12, 30, 19


def overlays(attention: NDArray[np.float32]) -> list[Image.Image]:
    """A grey picture with alpha for each word, one pixel per region, more opaque for less attention (words, regions).

    The region with the most attention is transparent, so uniform attention covers nothing. Regions are a square grid in
    row-major order, as encoders return them.

    >>> [(overlay.size, overlay.getpixel((0, 1))) for overlay in overlays(np.array([[0.1, 0.3, 0.6, 0.0]], np.float32))]
    [((2, 2), (110, 0))]
    """
    words, regions = attention.shape
    side = math.isqrt(regions)
    if side * side != regions:
        raise InputError(f"attention over {regions} regions, which are no square grid; it cannot be drawn")
    most = attention.max(1, initial=1e-12)[:, None]
    opacity = np.rint(255 * MOST_OPAQUE * (1 - attention / most)).astype(np.uint8).reshape(words, side, side)
    return [Image.fromarray(np.stack([np.full_like(one, GREY), one], -1)) for one in opacity]


def covered(image: Image.Image, overlay: Image.Image) -> Image.Image:
    """The picture with an overlay stretched over it."""
    stretched = overlay.getchannel("A").resize(image.size, Image.Resampling.BILINEAR)
    return Image.composite(Image.new("RGB", image.size, (GREY,) * 3), image.convert("RGB"), stretched)


def draw(image: Image.Image, captions: Sequence[tuple[str, GeneratedCaption]]) -> Image.Image:
    """A figure with, for each label, the caption, the picture, and the picture with each word's attention."""
    scale = TILE / max(image.size)
    small = image.convert("RGB").resize([max(1, round(scale * side)) for side in image.size], Image.Resampling.LANCZOS)
    blocks = [_block(small, label, caption) for label, caption in captions]
    figure = Image.new("RGB", (WIDTH, sum(block.height for block in blocks) + GAP), "white")
    top = 0
    for block in blocks:
        figure.paste(block, (0, top))
        top += block.height
    return figure


def _block(small: Image.Image, label: str, caption: GeneratedCaption) -> Image.Image:
    """The part of the figure for one caption."""
    lines = _wrapped(f"{label}: {caption.caption or '(no words)'}", WIDTH - 2 * GAP)
    tiles = [("", small)]
    tiles += [(word, covered(small, o)) for word, o in zip(caption.words, overlays(caption.attention), strict=True)]
    cell, row = max(small.width, NARROWEST) + GAP, small.height + LINE + GAP
    columns = (WIDTH - GAP) // cell
    height = GAP + LINE * len(lines) + GAP + row * -(-len(tiles) // columns)
    block = Image.new("RGB", (WIDTH, height), "white")
    pen = ImageDraw.Draw(block)
    for number, line in enumerate(lines):
        pen.text((GAP, GAP + LINE * number), line, "black", _font())
    top = GAP + LINE * len(lines) + GAP
    for number, (word, tile) in enumerate(tiles):
        left = GAP + (number % columns) * cell + (cell - GAP - tile.width) // 2
        upper = top + (number // columns) * row
        block.paste(tile, (left, upper))
        pen.text((left + tile.width / 2, upper + tile.height + 4), word, "black", _font(), anchor="ma")
    return block


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` pixels, broken at blanks."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _font().getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@lru_cache
def _font() -> ImageFont.FreeTypeFont:
    """Matplotlib's font, which has the letters of more languages than Pillow's default font."""
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), FONT_SIZE)
