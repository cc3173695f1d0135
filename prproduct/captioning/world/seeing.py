"""The small fixed encoder: regions of a picture, found and described by its pixels alone.

A region is a patch of colour on the grey ground, set apart by rows or columns without colour; the whole picture is one
more. Its vector has what is inside its box, in 6×6 pixels, and where the box is.
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


def _boxes(coloured: NDArray[np.bool_], top: int = 0, left: int = 0) -> list[tuple[int, int, int, int]]:
    """Top, bottom, left and right of each patch: cut apart along empty rows, then empty columns, and again."""
    for axis in (0, 1):
        runs = _runs(np.asarray(coloured.any(1 - axis)))
        if runs != [(0, coloured.shape[axis])]:
            return [
                box
                for first, last in runs
                for box in _boxes(
                    coloured[first:last] if axis == 0 else coloured[:, first:last],
                    top + first * (axis == 0),
                    left + first * (axis == 1),
                )
            ]
    height, width = coloured.shape
    return [(top, top + height, left, left + width)] if coloured.sum() >= SMALLEST else []


def _runs(filled: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First place and end of each run of True."""
    edges = np.flatnonzero(np.diff(np.pad(filled.astype(np.int8), 1))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


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
