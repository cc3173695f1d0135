"""The small world as data: captions as `prproduct data captions` prepares them, and features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.data.prepared import SPLITS, CaptionSet, Described, encode
from prproduct.captioning.data.vocabulary import UNKNOWN, Vocabulary
from prproduct.captioning.metrics.fields import ImageId
from prproduct.captioning.world import pictures, scenes, seeing, sentences
from prproduct.captioning.world.scenes import Scene
from prproduct.lab.errors import InputError

WORLD = "world"  # its name as captions
TRUE = "true"  # the score of its captions: which share of them is true
Judge = Callable[[ImageId, str], float]
ROOM = 1_000_000  # ids of a split: images stay the same, however many there are
VOCABULARY = Vocabulary((*sentences.WORDS, UNKNOWN))


@dataclass(frozen=True)
class World:
    """So many images of each split, all decided by the seed and an image's id.

    >>> from prproduct.captioning.world import is_true
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

    def __post_init__(self) -> None:
        for split in SPLITS:
            if not 0 <= getattr(self, split) <= ROOM:
                raise InputError(f"a world with {getattr(self, split)} {split} images; there are 0 to {ROOM:,}")
        if self.seed < 0:
            raise InputError(f"a world with seed {self.seed}; it must be at least 0")

    @cached_property
    def captions(self) -> CaptionSet:
        """Every image with five sentences that are true of it."""
        images = []
        for place, split in enumerate(SPLITS):
            for image in range(place * ROOM, place * ROOM + getattr(self, split)):
                said = sentences.describe(self.scene(image), self._generator(image, 1))
                images.append(Described(image, f"{image}.png", split, said, said))
        return encode(images, VOCABULARY)

    @cached_property
    def features(self) -> SeenFeatures:
        """What the small encoder sees in each picture."""
        return SeenFeatures(self)

    def scene(self, image: int) -> Scene:
        """What there is in an image."""
        return scenes.draw(self._generator(image, 0))

    def picture(self, image: int) -> NDArray[np.uint8]:
        """How it looks, (64, 64, 3)."""
        return pictures.render(self.scene(image), self._generator(image, 2))

    def _generator(self, image: int, purpose: int) -> np.random.Generator:
        split = image // ROOM
        if not 0 <= split < len(SPLITS) or image % ROOM >= getattr(self, SPLITS[split]):
            raise InputError(f"no image {image} in a world of {self.train}, {self.val} and {self.test} images")
        return np.random.default_rng([self.seed, image, purpose])


@dataclass(frozen=True, eq=False)
class SeenFeatures:
    """Features of a world's pictures, computed when they are first asked for."""

    world: World
    _seen: dict[int, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    width = seeing.WIDTH

    @property
    def ids(self) -> tuple[int, ...]:
        """All images."""
        counts = (getattr(self.world, split) for split in SPLITS)
        return tuple(place * ROOM + number for place, count in enumerate(counts) for number in range(count))

    def __contains__(self, image: object) -> bool:
        split, number = divmod(image, ROOM) if isinstance(image, int) else (-1, 0)
        return 0 <= split < len(SPLITS) and number < getattr(self.world, SPLITS[split])

    def of(self, image: ImageId) -> NDArray[np.float32]:
        """The features (regions, width) of an image."""
        image = int(image)
        if image not in self._seen:
            self._seen[image] = seeing.regions_of(self.world.picture(image))
        return self._seen[image]

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with what decides the features."""
        digest = hashlib.sha256(f"world {self.width} {self.world}".encode())
        for image in self.ids[:8]:
            digest.update(self.of(image).tobytes())
        return digest.hexdigest()[:16]


def judges_of(captions: str) -> dict[str, Judge]:
    """Scores that only these captions have: in the small world, whether a caption is true of an image.

    >>> judges_of("world")["true"](0, "a purple elephant")
    0.0
    """
    return {TRUE: _is_true} if captions == WORLD else {}


def _is_true(image: ImageId, caption: str) -> float:
    return float(sentences.is_true(World().scene(int(image)), caption))
