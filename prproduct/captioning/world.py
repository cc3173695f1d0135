"""The toy world: a captioning data set without any download, for quick runs and tests.

Images are rendered scenes of coloured shapes (`scenes`), captions are sentences that are true of them. A small fixed
encoder finds regions by their pixels alone: a region is a patch of colour on the grey background, and the whole picture
is one more. A region's vector is its box, resampled to 6×6 pixels, and the position and size of the box. Since scenes
are known, so is whether a generated caption is true.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.data.prepared import SPLITS, CaptionSet, Described, encode
from prproduct.captioning.data.vocabulary import UNKNOWN, Vocabulary
from prproduct.captioning.input_files import ImageId
from prproduct.captioning.scenes import WORDS, Scene, Thing, describe_scene, draw_scene, is_true, render

__all__ = ["VOCABULARY", "Scene", "Thing", "World", "caption_is_true", "is_true", "regions_of"]

IDS_PER_SPLIT = 1_000_000  # an image's id does not depend on the sizes of the splits
VOCABULARY = Vocabulary((*WORDS, UNKNOWN))

GRID = 6
WIDTH = GRID * GRID * 3 + 4
COLOURED = 0.3  # least difference between the largest and the smallest channel; noise on grey reaches 0.2
SMALLEST = 12  # pixels of a patch


@dataclass(frozen=True)
class World:
    """A toy world with this many images in each split, all determined by the seed and the image ids.

    >>> world = World(train=3, val=1, test=1)
    >>> image = world.captions.of("val")[0]
    >>> len(image.references), is_true(world.scene(image.id), image.references[0])
    (5, True)
    >>> len(world.features.of(image.id)) - 1 == len(world.scene(image.id))  # a region for each thing, and the picture
    True
    """

    train: int = 2000
    val: int = 200
    test: int = 200
    seed: int = 0

    @cached_property
    def captions(self) -> CaptionSet:
        """All images, each with five true sentences."""
        images = []
        for number, split in enumerate(SPLITS):
            for image in range(number * IDS_PER_SPLIT, number * IDS_PER_SPLIT + getattr(self, split)):
                sentences = describe_scene(self.scene(image), self._generator(image, 1))
                images.append(Described(image, f"{image}.png", split, sentences, sentences))
        return encode(images, VOCABULARY)

    @cached_property
    def features(self) -> WorldFeatures:
        """The features of all pictures."""
        return WorldFeatures(self)

    def scene(self, image: int) -> Scene:
        """The scene of an image."""
        return draw_scene(self._generator(image, 0))

    def picture(self, image: int) -> NDArray[np.uint8]:
        """The picture (64, 64, 3) of an image."""
        return render(self.scene(image), self._generator(image, 2))

    def _generator(self, image: int, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, image, stream])


@dataclass(frozen=True, eq=False)
class WorldFeatures:
    """Features of a world's pictures, computed on first access."""

    world: World
    _computed: dict[int, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    width = WIDTH

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of all images."""
        counts = (getattr(self.world, split) for split in SPLITS)
        return tuple(number * IDS_PER_SPLIT + index for number, count in enumerate(counts) for index in range(count))

    def __contains__(self, image: object) -> bool:
        split, index = divmod(image, IDS_PER_SPLIT) if isinstance(image, int) else (-1, 0)
        return 0 <= split < len(SPLITS) and index < getattr(self.world, SPLITS[split])

    def of(self, image: ImageId) -> NDArray[np.float32]:
        """The features (regions, width) of an image."""
        image = int(image)
        if image not in self._computed:
            self._computed[image] = regions_of(self.world.picture(image))
        return self._computed[image]

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with the world's settings and with the encoder."""
        digest = hashlib.sha256(f"world {self.width} {self.world}".encode())
        for image in self.ids[:8]:
            digest.update(self.of(image).tobytes())
        return digest.hexdigest()[:16]


def caption_is_true(image: ImageId, caption: str) -> float:
    """1.0 if a caption is true of an image of the default world, otherwise 0.0."""
    return float(is_true(World().scene(int(image)), caption))


def regions_of(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Vectors (regions, 112) of a picture (height, width, 3): its patches from left to right, then the whole picture.

    >>> picture = np.full((64, 64, 3), 200, np.uint8)
    >>> picture[10:20, 30:50] = 200, 0, 0
    >>> regions = regions_of(picture)
    >>> regions.shape, regions[0, -4:].tolist()  # the centre of the box and its size
    ((2, 112), [0.625, 0.234375, 0.3125, 0.15625])
    """
    pixels = (picture / 255).astype(np.float32)
    height, width = pixels.shape[:2]
    boxes = sorted(_boxes(np.ptp(pixels, axis=2) > COLOURED), key=lambda box: box[2])
    return np.stack([_vector(pixels, box) for box in (*boxes, (0, height, 0, width))])


def _boxes(coloured: NDArray[np.bool_], top: int = 0, left: int = 0) -> list[tuple[int, int, int, int]]:
    """Top, bottom, left and right of each patch, found by splitting at empty rows and columns, recursively."""
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
    """Start and end (exclusive) of each run of True."""
    edges = np.flatnonzero(np.diff(np.pad(filled.astype(np.int8), 1))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _vector(pixels: NDArray[np.float32], box: tuple[int, int, int, int]) -> NDArray[np.float32]:
    """The vector (112,) of a box: its pixels averaged over a 6×6 grid, its centre and its size."""
    top, bottom, left, right = box
    height, width = pixels.shape[:2]
    rows, columns = (_cells(*ends) for ends in ((top, bottom), (left, right)))
    inside = rows @ pixels[top:bottom, left:right].transpose(2, 0, 1) @ columns.T  # (3, GRID, GRID)
    position = [
        (left + right) / 2 / width,
        (top + bottom) / 2 / height,
        (right - left) / width,
        (bottom - top) / height,
    ]
    return np.concatenate([inside.ravel(), np.array(position, np.float32)])


def _cells(first: int, last: int) -> NDArray[np.float32]:
    """Averaging weights (GRID, pixels): the overlap of each pixel with each of `GRID` equal parts of an interval."""
    edges = np.linspace(0, last - first, GRID + 1)
    pixel = np.arange(last - first)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return (overlap.clip(0) * GRID / (last - first)).astype(np.float32)
