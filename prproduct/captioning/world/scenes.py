"""Scenes: one to three things that do not touch, each with a colour, a shape, a size and a place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

COLOURS = ("red", "green", "blue", "yellow", "purple", "cyan")
SHAPES = ("circle", "square", "triangle", "cross")
RADII = {"small": 0.09, "large": 0.17}  # of the picture's width
GAP = 0.05  # between two things, and to the edge


class Thing(NamedTuple):
    """What there is to see; x grows to the right and y downwards, from 0 to 1."""

    colour: str
    shape: str
    size: str
    x: float
    y: float

    @property
    def radius(self) -> float:
        """Half its width."""
        return RADII[self.size]


Scene = tuple[Thing, ...]


def draw(generator: np.random.Generator) -> Scene:
    """A scene at random.

    >>> scene = draw(np.random.default_rng(0))
    >>> 1 <= len(scene) <= 3, scene[0].colour in COLOURS
    (True, True)
    """
    things: list[Thing] = []
    wanted = int(generator.integers(1, 4))
    while len(things) < wanted:  # there is room: two things leave two corners to a small one
        size = str(generator.choice(list(RADII)))
        margin = RADII[size] + GAP
        x, y = generator.uniform(margin, 1 - margin, 2).tolist()
        thing = Thing(str(generator.choice(COLOURS)), str(generator.choice(SHAPES)), size, x, y)
        if all(_apart(thing, other) for other in things):
            things.append(thing)
    return tuple(things)


def _apart(one: Thing, other: Thing) -> bool:
    return max(abs(one.x - other.x), abs(one.y - other.y)) > one.radius + other.radius + GAP
