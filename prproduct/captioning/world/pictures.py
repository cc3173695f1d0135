"""Pictures of scenes: uneven light, colours that vary, and noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.world.scenes import Scene, Thing

SIDE = 64  # pixels
FINER = 2  # by which pixels are divided, so that edges are smooth
COLOUR_VALUES = {
    "red": (0.85, 0.15, 0.15),
    "green": (0.15, 0.65, 0.20),
    "blue": (0.15, 0.30, 0.85),
    "yellow": (0.90, 0.80, 0.10),
    "purple": (0.60, 0.20, 0.75),
    "cyan": (0.10, 0.75, 0.80),
}


def render(scene: Scene, generator: np.random.Generator) -> NDArray[np.uint8]:
    """A picture (64, 64, 3) of a scene; light, shades and noise are drawn.

    >>> picture = render((Thing("red", "square", "large", 0.5, 0.5),), np.random.default_rng(0))
    >>> picture.shape, bool(picture[32, 32, 0] > 2 * picture[32, 32, 1])
    ((64, 64, 3), True)
    """
    side = SIDE * FINER
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    slope = generator.uniform(-0.1, 0.1, 2)
    light = generator.uniform(0.75, 0.95) + slope[0] * (x - 0.5) + slope[1] * (y - 0.5)
    canvas = np.repeat(light[..., None], 3, axis=2)
    for thing in scene:
        shade = np.array(COLOUR_VALUES[thing.colour]) + generator.uniform(-0.06, 0.06, 3)
        canvas[_covers(thing, x, y)] = shade
    canvas = canvas.reshape(SIDE, FINER, SIDE, FINER, 3).mean((1, 3))
    canvas += generator.normal(0, 0.03, canvas.shape)
    return (canvas.clip(0, 1) * 255).round().astype(np.uint8)


def _covers(thing: Thing, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    across, down = (x - thing.x) / thing.radius, (y - thing.y) / thing.radius
    away = np.maximum(abs(across), abs(down))
    if thing.shape == "circle":
        return across**2 + down**2 <= 1
    if thing.shape == "square":
        return away <= 0.9
    if thing.shape == "triangle":
        return (2 * abs(across) <= down + 1) & (down <= 1)
    return (away <= 1) & (np.minimum(abs(across), abs(down)) <= 0.35)  # a cross
