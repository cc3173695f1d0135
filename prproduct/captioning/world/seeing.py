"""The small fixed encoder: regions of a picture, found and described by its pixels alone.

A region is a patch of colour on the grey ground, and so is the whole picture, which comes last. Its vector has what is
inside its box, in 6×6 pixels, and where the box is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GRID = 6
WIDTH = GRID * GRID * 3 + 4
COLOURED = 0.3  # the largest less the smallest channel; noise on grey reaches 0.2
SMALLEST = 12  # pixels of a patch


def regions_of(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Vectors (regions, 112) of a picture (height, width, 3), patches from left to right.

    >>> picture = np.full((64, 64, 3), 200, np.uint8)
    >>> picture[10:20, 30:50] = 200, 0, 0
    >>> regions = regions_of(picture)
    >>> regions.shape, regions[0, -4:].tolist()  # the middle of the box and its size
    ((2, 112), [0.625, 0.234375, 0.3125, 0.15625])
    """
    pixels = (picture / 255).astype(np.float32)
    height, width = pixels.shape[:2]
    boxes = sorted(_boxes(np.ptp(pixels, axis=2) > COLOURED), key=lambda box: box[2])
    return np.stack([_vector(pixels, box) for box in (*boxes, (0, height, 0, width))])


def _boxes(coloured: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Top, bottom, left and right of each connected patch."""
    # Every pixel takes the largest number of its neighbours until nothing changes: then a patch has one number.
    numbers = np.where(coloured, np.arange(1, coloured.size + 1).reshape(coloured.shape), 0)
    while True:
        padded = np.pad(numbers, 1)
        around = np.max([padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:], numbers], axis=0)
        spread = np.where(coloured, around, 0)
        if np.array_equal(spread, numbers):
            break
        numbers = spread
    boxes = []
    for number, count in zip(*np.unique(numbers[coloured], return_counts=True), strict=True):
        if count >= SMALLEST:
            rows, columns = np.nonzero(numbers == number)
            boxes.append((int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1))
    return boxes


def _vector(pixels: NDArray[np.float32], box: tuple[int, int, int, int]) -> NDArray[np.float32]:
    top, bottom, left, right = box
    height, width = pixels.shape[:2]
    rows, columns = (_cells(*ends) for ends in ((top, bottom), (left, right)))
    inside = rows @ pixels[top:bottom, left:right].transpose(2, 0, 1) @ columns.T  # (3, GRID, GRID)
    place = [(left + right) / 2 / width, (top + bottom) / 2 / height, (right - left) / width, (bottom - top) / height]
    return np.concatenate([inside.ravel(), np.array(place, np.float32)])


def _cells(first: int, last: int) -> NDArray[np.float32]:
    """How much of each cell each pixel is, (GRID, pixels): its share of `GRID` equal parts of the box."""
    edges = np.linspace(0, last - first, GRID + 1)
    pixel = np.arange(last - first)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return (overlap.clip(0) * GRID / (last - first)).astype(np.float32)
