"""Charts of training: errors and losses over epochs, angles and gradient parts of each layer over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prproduct.classification.report.comparison import Group
from prproduct.lab.report.content import Block, Chart, Line, LinePanel, Paragraph, Section, display, number, ordered
from prproduct.lab.report.files import angles_of
from prproduct.lab.report.observations import BAND, ByLayer, Values, by_layer, epoch_lines, lines

_CURVES = {
    "test_error": ("test error, %", 100.0),
    "train_error": ("training error, %", 100.0),
    "test_loss": ("test loss", 1.0),
    "train_loss": ("training loss", 1.0),
}
NAMED = 12  # up to so many layers are named on an axis; more are numbered
# A layer whose value changes less than this over training is described in a sentence instead of a panel: with an axis
# that fits the values, and with a fixed axis.
FLAT, FLAT_IN_LIMITS = 0.005, 0.03
PANELS = 12  # at most so many layers have a panel of their own; the chart by depth has all


def training(group: Group) -> Chart:
    """Return the chart of errors and losses over the epochs, as in the paper's appendix."""
    panels = []
    for key, (title, scale) in _CURVES.items():
        drawn = epoch_lines(group.counted, key, scale)
        panels.append(LinePanel(title, "epoch", drawn, _limits(group, drawn)))
    caption = f"{BAND} Training error and loss are those seen while training, on images as they were augmented."
    failed = [display(product) for product in group.counted if not group.learned(product)]
    if failed and any(panel.limits for panel in panels):
        caption += f" The scale is that of the products that learned; {_and(failed)} may lie above it."
    return Chart(caption, tuple(panels))


def _limits(group: Group, drawn: Sequence[Line]) -> tuple[float, float] | None:
    """Return the limits that fit the products that learned, if some did not; else None."""
    if all(group.learned(line.product) for line in drawn):
        return None
    learned = [line for line in drawn if group.learned(line.product)]
    values = [value for line in learned for value in (*line.y, *line.low, *line.high) if math.isfinite(value)]
    if not values or len(learned[0].x) == 1:
        return None
    margin = 0.06 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + 3 * margin


def angles(group: Group) -> list[Section]:
    """Return charts of angles and gradient parts of each layer, if runs recorded them."""
    records = {
        product: {seed: found for seed, run in runs.items() if (found := angles_of(run.record))}
        for product, runs in group.counted.items()
    }
    if not any(records.values()):
        return []
    sin = _charts(
        by_layer(records, lambda record: record.sample_min_sin if record.training else None),
        "min |sin θ|",
        "The smallest |sin θ| between a layer's weight vectors and the data vectors of one image (a linear layer of a "
        "transformer: of one token), averaged over the batch: the statistic of the paper's figures. Near 0 the two are "
        "nearly parallel, where P hardly turns w.",
        None,
    )
    share = _charts(
        by_layer(records, lambda record: record.direction_share if record.training else None),
        "share of direction",
        "How much of a weight's gradient turns the weight vectors: the squared norm of its part orthogonal to them, as "
        "a share of the whole. The rest, the length gradient, stretches them; it is 0 in a layer that BatchNorm "
        "follows, since the output then does not depend on the length of w.",
        (0.0, 1.04),
    )
    return [
        Section(f"{group.name}: angles", tuple(sin), level=3),
        Section(f"{group.name}: direction and length of the gradients", tuple(share), level=3),
    ]


def _charts(values: ByLayer, title: str, caption: str, limits: tuple[float, float] | None) -> list[Block]:
    """Return charts of a statistic: over training, one panel per layer; for more than three layers also by depth."""
    if not values:
        return [Paragraph("No run recorded it.")]
    layers = list(values)
    flat = [layer for layer in layers if _is_flat(values[layer], FLAT if limits is None else FLAT_IN_LIMITS)]
    flat_note = [Paragraph(_flat_note(title, flat, values), note=True)] if flat else []
    varying = [layer for layer in layers if layer not in flat]
    if not varying:
        return [Paragraph(caption, note=True), *flat_note]
    blocks: list[Block] = []
    if len(layers) > 3:
        names = tuple(layers) if len(layers) <= NAMED and max(map(len, layers)) <= 12 else ()
        depth = LinePanel(f"{title}, last recorded step", "layer", lines(_by_depth(values)), limits, names)
        where = "" if names else f" Layer 1 is {layers[0]}, layer {len(layers)} is {layers[-1]}."
        blocks.append(Chart(f"{caption} By depth, at the last step that was recorded.{where}", (depth,)))
        caption = ""
    shown = _spread(varying, PANELS)
    some = f", for {len(shown)} of {len(varying)} layers, evenly spread" if len(shown) < len(varying) else ""
    panels = tuple(LinePanel(layer, "training step", lines(values[layer]), limits) for layer in shown)
    blocks.append(Chart(f"{caption} Over training, one panel per layer{some}. {BAND}".strip(), panels))
    return [*blocks, *flat_note]


def _is_flat(values: Values, tolerance: float) -> bool:
    """Return True if a layer's value changes by less than `tolerance` over training under each product."""
    every = ([value for steps in seeds.values() for value in steps.values()] for seeds in values.values())
    return all(max(own) - min(own) < tolerance for own in every)


def _flat_note(title: str, layers: Sequence[str], values: ByLayer) -> str:
    """Return a sentence with the values, under each product, of layers in which they hardly change."""
    found: dict[str, list[float]] = {}
    for layer in layers:
        for product, seeds in values[layer].items():
            found.setdefault(product, []).extend(value for steps in seeds.values() for value in steps.values())
    ranges: dict[str, list[str]] = {}
    for product in ordered(found):
        low, high = number(min(found[product])), number(max(found[product]))
        ranges.setdefault(low if low == high else f"{low} to {high}", []).append(display(product))
    parts = [f"{text} under {_and(products)}" for text, products in ranges.items()]
    return f"Constant over training in {_listed(layers)}: {title} is {', '.join(parts)}."


def _listed(layers: Sequence[str]) -> str:
    """Return the names of layers; of more than six only the first and the last."""
    if len(layers) <= 6:
        return ", ".join(layers)
    return f"{len(layers)} layers, from {layers[0]} to {layers[-1]}"


def _and(names: Sequence[str]) -> str:
    """Return the names as a list in words.

    >>> _and(["P"]), _and(["P", "R", "PR"])
    ('P', 'P, R and PR')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _by_depth(values: ByLayer) -> dict[str, dict[int, dict[float, float]]]:
    """Return {product: {seed: {place of the layer, from 1: value at the last recorded step}}}."""
    found: dict[str, dict[int, dict[float, float]]] = {}
    for place, by_product in enumerate(values.values(), start=1):
        for product, seeds in by_product.items():
            for seed, steps in seeds.items():
                found.setdefault(product, {}).setdefault(seed, {})[place] = steps[max(steps)]
    return found


def _spread(layers: Sequence[str], count: int) -> list[str]:
    """Return `count` of the layers, evenly spread, including the first and the last."""
    if len(layers) <= count:
        return list(layers)
    return [layers[round(place * (len(layers) - 1) / (count - 1))] for place in range(count)]
