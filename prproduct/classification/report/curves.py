"""Charts of training: errors and losses over epochs, angles and gradient parts of each layer over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prproduct.classification.report.comparison import Group
from prproduct.lab.report.content import Block, Chart, Folded, Line, LinePanel, Paragraph, Section, display
from prproduct.lab.report.files import angles_of
from prproduct.lab.report.observations import BAND, ByLayer, by_layer, epoch_lines, lines

_CURVES = {
    "test_error": ("test error, %", 100.0),
    "train_error": ("training error, %", 100.0),
    "test_loss": ("test loss", 1.0),
    "train_loss": ("training loss", 1.0),
}
NAMED = 12  # up to so many layers are named on an axis; more are numbered
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
        caption += f" The vertical axes are those of the products that learned, without {', '.join(failed)}."
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
    """Return charts of a statistic over training, a panel for each layer; of more than three layers first by depth."""
    if not values:
        return [Paragraph("No run recorded it.")]
    layers = list(values)
    shown = _spread(layers, PANELS)
    some = f", for {len(shown)} of {len(layers)} layers, evenly spread" if len(shown) < len(layers) else ""
    over = f"Over training, one panel per layer{some}."
    panels = tuple(LinePanel(layer, "training step", lines(values[layer]), limits) for layer in shown)
    if len(layers) <= 3:
        return [Chart(f"{caption} {over} {BAND}", panels)]
    names = tuple(layers) if len(layers) <= NAMED and max(map(len, layers)) <= 12 else ()
    depth = LinePanel(f"{title}, last recorded step", "layer", lines(_by_depth(values)), limits, names)
    where = "" if names else f" Layer 1 is {layers[0]}, layer {len(layers)} is {layers[-1]}."
    by_depth = Chart(f"{caption} By depth, at the last step that was recorded.{where}", (depth,))
    return [by_depth, Folded("Over training, layer by layer", (Chart(f"{over} {BAND}", panels),))]


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
