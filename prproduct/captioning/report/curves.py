"""What happened during training: validation CIDEr, losses and rewards over the epochs, and the angles of every part."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from prproduct.captioning.report.stages import Group, Run, Stage
from prproduct.lab.report.charts import display
from prproduct.lab.report.content import Block, Chart, Folded, Line, LinePanel, Section, Table, number
from prproduct.lab.report.observations import BASELINE
from prproduct.lab.report.origin import angles_of
from prproduct.lab.report.series import BAND, lines
from prproduct.probe import AngleRecord

_CURVES = {
    "validation_cider": ("CIDEr of validation captions, %", 100.0),
    "validation_loss": ("validation loss, per word", 1.0),
    "train_loss": ("training loss", 1.0),
}
_REWARDS = {
    "train_reward": ("reward of candidates, CIDEr-D, %", 100.0),
    "train_baseline": ("baseline, CIDEr-D, %", 100.0),
    "train_advantage": ("|reward − baseline|, CIDEr-D, %", 100.0),
    "train_words": ("words of a candidate", 1.0),
}
# The parts that the paper's appendix plots, in its order.
PARTS = {
    "region_embedding": "regions aᵢ to vᵢ",
    "global_embedding": "image a_g to v_g",
    "attention_lstm.word": "Attention LSTM: word",
    "attention_lstm.image": "Attention LSTM: v_g",
    "attention_lstm.hidden": "Attention LSTM: hidden",
    "language_lstm.attended": "Language LSTM: v̂",
    "language_lstm.attention": "Language LSTM: h¹",
    "language_lstm.hidden": "Language LSTM: hidden",
    "output": "output layer",
}
OTHERS = {
    "attention.region": "attention: vᵢ",
    "attention.hidden": "attention: h¹",
    "attention.score": "attention: score",
    "tanh_layer": "tanh layer",
}
ENDING = 0.25  # of the recorded steps: what the table's means are over

Series = dict[str, dict[str, dict[int, dict[float, float]]]]  # part → product → seed → step → min |sin θ|


def training(group: Group) -> list[Section]:
    """A section for each stage that has a finished run."""
    found = []
    for stage in (stage for stage in group.stages if stage.counted):
        keys = {**_CURVES, **(_REWARDS if stage.phase == "rl" else {})}
        others = stage.settings.get("baseline") == "others"
        if others:
            del keys["train_baseline"]
        recorded = {key for runs in stage.counted.values() for run in runs.values() for e in run.epochs for key in e}
        keys = {key: shown for key, shown in keys.items() if key in recorded}
        panels = tuple(LinePanel(title, "epoch", _lines(stage, key, scale)) for key, (title, scale) in keys.items())
        caption = f"{BAND} The epoch whose captions are tested is the one with the largest validation CIDEr."
        if stage.phase == "rl":
            caption += (
                " The loss of REINFORCE is no measure of success: rewards are compared with a baseline that rises with "
                "them."
            )
            if others:
                caption += (
                    " The baseline of a candidate is the mean reward of the image's other candidates. Over all of them "
                    "it has the same mean as the reward, and so no plot of its own."
                )
        found.append(Section(group.titled(stage.name), (Chart(caption, panels),), level=3))
    return found


def _lines(stage: Stage, key: str, scale: float) -> tuple[Line, ...]:
    return lines(
        {
            product: {seed: _of_epochs(run, key, scale) for seed, run in runs.items()}
            for product, runs in stage.counted.items()
        }
    )


def _of_epochs(run: Run, key: str, scale: float) -> dict[float, float]:
    """A number of every epoch, counted from 1; one that was not finite is a gap."""
    found = ((epoch["epoch"] + 1, epoch.get(key)) for epoch in run.epochs)
    return {epoch: math.nan if value is None else scale * value for epoch, value in found}


def angles(group: Group) -> list[Section]:
    """min |sin θ| of each part over training, and at its end, where runs recorded them."""
    found = []
    for stage in group.stages:
        values = series(stage)
        shown = [part for part in PARTS if part in values]
        if not shown:
            continue
        caption = (
            "The smallest |sin θ| between a layer's weight vectors and one data vector, averaged over the data vectors "
            f"of a batch: the statistic of the paper's appendix, of the parts that it plots. {BAND}"
        )
        blocks: list[Block] = [Chart(caption, _panels(values, shown, PARTS)), _ending(values, shown)]
        others = [part for part in OTHERS if part in values]
        if others:
            chart = Chart("Layers that the paper's appendix does not plot.", _panels(values, others, OTHERS))
            blocks.append(Folded("The other layers", (chart,)))
        found.append(Section(group.titled(f"angles in {stage.name}"), tuple(blocks), level=3))
    return found


def _panels(values: Series, parts: Sequence[str], names: Mapping[str, str]) -> tuple[LinePanel, ...]:
    return tuple(LinePanel(names[part], "training step", lines(values[part])) for part in parts)


def series(stage: Stage) -> Series:
    """min |sin θ| by part, product, seed and step, of the runs that count."""
    values: Series = {}
    for product, runs in stage.counted.items():
        for seed, run in runs.items():
            for record in (record for record in angles_of(run.record) if _wanted(record)):
                by_product = values.setdefault(record.layer, {})
                assert record.sample_min_sin is not None
                by_product.setdefault(product, {}).setdefault(seed, {})[record.step] = record.sample_min_sin
    return values


def _wanted(record: AngleRecord) -> bool:
    # REINFORCE differentiates in eval mode, without dropout; its steps are training steps nevertheless.
    return record.sample_min_sin is not None and math.isfinite(record.sample_min_sin)


def endings(values: Series, part: str) -> dict[str, float]:
    """Of each product, the mean over seeds and the last quarter of the recorded steps.

    >>> endings({"output": {"p": {0: {0: 0.9, 10: 0.8, 20: 0.7, 30: 0.5}}}}, "output")
    {'p': 0.5}
    """
    found = {}
    for product, seeds in values[part].items():
        last = [
            [by_step[step] for step in sorted(by_step)[-math.ceil(ENDING * len(by_step)) :]]
            for by_step in seeds.values()
        ]
        found[product] = statistics.fmean(statistics.fmean(own) for own in last)
    return found


def _ending(values: Series, parts: Sequence[str]) -> Table:
    products = list(dict.fromkeys(product for part in parts for product in values[part]))
    rows = []
    for part in parts:
        means = endings(values, part)
        above = [product for product in means if product != BASELINE and means[product] > means.get(BASELINE, math.inf)]
        cells = [number(means.get(product), 3) for product in products]
        rows.append((PARTS[part], *cells, ", ".join(map(display, above)) or "–"))
    caption = "min |sin θ| in the last quarter of the recorded steps, mean over seeds, and what lies above P."
    header = ("part", *map(display, products), "above P")
    return Table(caption, header, "l" + "r" * len(products) + "l", tuple(rows))
