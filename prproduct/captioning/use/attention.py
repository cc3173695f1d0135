"""Where each word looked, drawn over the picture: fog lies over the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib import font_manager
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from prproduct.captioning.describing import Description
from prproduct.lab.errors import InputError

# Of middle grey: darkness cannot be seen over a picture of the night, nor light over one of snow.
FOG, THICKEST = 110, 0.9
WIDTH, TILE, NARROWEST, GAP, LINE, LETTERS = 1464, 230, 120, 12, 30, 19  # pixels; a word needs the narrowest tile


def shades(attention: NDArray[np.float32]) -> list[Image.Image]:
    """For each word a picture of a pixel a region, grey, and the more opaque the less the word looked there.

    The region that it looked at most is clear, so that one that looked everywhere alike leaves everything as it is.
    Regions are a square grid, row by row, as encoders give them.

    >>> [(shade.size, shade.getpixel((0, 1))) for shade in shades(np.array([[0.1, 0.3, 0.6, 0.0]], np.float32))]
    [((2, 2), (110, 0))]
    """
    words, regions = attention.shape
    side = math.isqrt(regions)
    if side * side != regions:
        raise InputError(f"attention over {regions} regions, which are no square grid; it cannot be drawn")
    most = attention.max(1, initial=1e-12)[:, None]
    opacity = np.rint(255 * THICKEST * (1 - attention / most)).astype(np.uint8).reshape(words, side, side)
    return [Image.fromarray(np.stack([np.full_like(one, FOG), one], -1)) for one in opacity]


def shaded(image: Image.Image, shade: Image.Image) -> Image.Image:
    """The picture behind a shade that is stretched over it."""
    stretched = shade.getchannel("A").resize(image.size, Image.Resampling.BILINEAR)
    return Image.composite(Image.new("RGB", image.size, (FOG,) * 3), image.convert("RGB"), stretched)


def draw(image: Image.Image, said: Sequence[tuple[str, Description]]) -> Image.Image:
    """The picture, and for each label the caption and the picture as each of its words saw it."""
    scale = TILE / max(image.size)
    small = image.convert("RGB").resize([max(1, round(scale * side)) for side in image.size], Image.Resampling.LANCZOS)
    blocks = [_block(small, label, description) for label, description in said]
    figure = Image.new("RGB", (WIDTH, sum(block.height for block in blocks) + GAP), "white")
    top = 0
    for block in blocks:
        figure.paste(block, (0, top))
        top += block.height
    return figure


def _block(small: Image.Image, label: str, description: Description) -> Image.Image:
    lines = _wrapped(f"{label}: {description.caption or '(no words)'}", WIDTH - 2 * GAP)
    tiles = [("", small)]
    tiles += [(w, shaded(small, s)) for w, s in zip(description.words, shades(description.attention), strict=True)]
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
    """Matplotlib's font, which has the letters of most languages; Pillow's own has those of a few."""
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), LETTERS)
