"""The training part of a report: curves over the epochs, angles of every layer, and cost in time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from prproduct.captioning.report.runs import Group, Run, Stage
from prproduct.lab.report.content import (
    Block,
    Chart,
    Folded,
    Heading,
    LinePanel,
    Section,
    Table,
    Text,
    display,
    number,
    seconds_text,
)
from prproduct.lab.report.files import angles_of
from prproduct.lab.report.observations import (
    BAND,
    BASELINE,
    ByLayer,
    by_layer,
    by_place,
    epoch_lines,
    lines,
)

_CURVES = {
    "validation_cider": ("CIDEr of validation captions, %", 100.0),
    "validation_loss": ("validation loss, per word", 1.0),
    "train_loss": ("training loss", 1.0),
}
_REWARDS = {
    "train_reward": ("reward of candidates, CIDEr-D, %", 100.0),
    "train_advantage": ("|reward − baseline|, CIDEr-D, %", 100.0),
    "train_words": ("words of a candidate", 1.0),
}
# The layers that the paper's appendix plots, in its order.
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
ENDING = 0.25  # the table's means are over this last share of the recorded steps


def training(group: Group) -> list[Section]:
    """A section of curves for each stage that has a finished run."""
    found = []
    for stage in (stage for stage in group.stages if stage.counted):
        keys = {**_CURVES, **(_REWARDS if stage.phase == "rl" else {})}
        recorded = {key for runs in stage.counted.values() for run in runs.values() for e in run.epochs for key in e}
        keys = {key: shown for key, shown in keys.items() if key in recorded}
        panels = tuple(
            LinePanel(title, "epoch", epoch_lines(stage.counted, key, scale)) for key, (title, scale) in keys.items()
        )
        caption = f"{BAND} The epoch whose captions are tested is the one with the largest validation CIDEr."
        if stage.phase == "rl":
            caption += (
                " The loss of REINFORCE is no measure of success: rewards are compared with a baseline that rises with "
                "them."
            )
        found.append(Section(group.heading(stage.name), (Chart(caption, panels),), level=3))
    return found


def angles(group: Group) -> list[Section]:
    """Sections on min |sin θ| of each layer, over the training and at its end, for stages that recorded angles."""
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
        found.append(Section(group.heading(f"angles in {stage.name}"), tuple(blocks), level=3))
    return found


def _panels(values: ByLayer, parts: Sequence[str], names: Mapping[str, str]) -> tuple[LinePanel, ...]:
    return tuple(LinePanel(names[part], "training step", lines(values[part])) for part in parts)


def series(stage: Stage) -> ByLayer:
    """min |sin θ| by layer, product, seed and step, of the runs that are averaged."""
    records = {
        product: {seed: angles_of(run.record) for seed, run in runs.items()} for product, runs in stage.counted.items()
    }
    # Not only if `record.training`: REINFORCE differentiates in eval mode, without dropout.
    return by_layer(records, lambda record: record.sample_min_sin)


def endings(values: ByLayer, part: str) -> dict[str, dict[int, float]]:
    """For each product and seed, the mean over the last quarter of the recorded steps.

    >>> endings({"output": {"p": {0: {0: 0.9, 10: 0.8, 20: 0.7, 30: 0.5}}}}, "output")
    {'p': {0: 0.5}}
    """
    return {
        product: {
            seed: statistics.fmean(by_step[step] for step in sorted(by_step)[-math.ceil(ENDING * len(by_step)) :])
            for seed, by_step in seeds.items()
        }
        for product, seeds in values[part].items()
    }


def larger_than_p(ends: Mapping[str, Mapping[int, float]], product: str) -> bool | None:
    """Whether the product's mean is larger than P's, over the seeds that both have; None if there is no such seed."""
    own, baseline = ends.get(product, {}), ends.get(BASELINE, {})
    differences = [own[seed] - baseline[seed] for seed in own.keys() & baseline.keys()]
    return math.fsum(differences) > 0 if differences else None


def _ending(values: ByLayer, parts: Sequence[str]) -> Table:
    products = list(dict.fromkeys(product for part in parts for product in values[part]))
    rows = []
    for part in parts:
        ends = endings(values, part)
        above = [product for product in ends if product != BASELINE and larger_than_p(ends, product)]
        cells = [
            number(statistics.fmean(ends[product].values()) if product in ends else None, 3) for product in products
        ]
        rows.append((PARTS[part], *cells, ", ".join(map(display, above)) or "–"))
    caption = (
        "min |sin θ| in the last quarter of the recorded steps, mean over seeds; last, the products above P in the "
        "seeds that both have. In the paper PR is above P in most parts."
    )
    header = ("part", *map(display, products), "above P")
    return Table(caption, header, "l" + "r" * len(products) + "l", tuple(rows))


def cost(groups: Sequence[Group]) -> Section:
    """A section with a table of times, one row for each stage, machine and product."""
    rows: list[tuple[Text, ...] | Heading] = []
    for group in groups:
        for stage in (stage for stage in group.stages if stage.counted):
            rows.append(Heading(group.heading(stage.name)))
            rows += _rows(stage)
    caption = (
        "Wall time of a run, mean over runs; and of a training step: the median over all epochs but each run's first, "
        "which compiles. It includes the recording of angles, and waiting for other processes of the machine: speeds "
        "are compared by prproduct bench. Decoding and reward are shares of REINFORCE's training time; the rest is the "
        "gradient."
    )
    header = ("product", "runs", "training", "evaluation", "a step", "decoding", "reward", "machine")
    return Section("Cost", (Table(caption, header, "lrrrrrrl", tuple(rows)),))


def _rows(stage: Stage) -> Iterator[tuple[Text, ...]]:
    for place, by_product in by_place(stage.counted).items():
        for product, own in by_product.items():
            step = step_seconds(own)
            yield (
                display(product),
                str(len(own)),
                seconds_text(statistics.fmean(_total(run, "train_seconds") for run in own)),
                seconds_text(statistics.fmean(_total(run, "evaluation_seconds") for run in own)),
                f"{1000 * step:,.0f} ms" if step >= 0.01 else f"{1000 * step:.1f} ms",
                _percent(share(own, "decoding_seconds")),
                _percent(share(own, "reward_seconds")),
                place,
            )


def step_seconds(runs: Sequence[Run]) -> float:
    """The median time of a training step over the complete epochs of runs, without each run's first."""
    firsts = [run.epochs[0] for run in runs]
    steps = [first["step"] / (first["epoch"] + 1) for first in firsts]
    return statistics.median(time / own for run, own in zip(runs, steps, strict=True) for time in run.epoch_seconds)


def share(runs: Sequence[Run], part: str) -> float | None:
    """The share of the training time that `part` took; None if it was not recorded."""
    times = [epoch["time"] for run in runs for epoch in run.epochs if part in epoch["time"]]
    whole = sum(time["train_seconds"] for time in times)
    return sum(time[part] for time in times) / whole if whole else None


def _total(run: Run, key: str) -> float:
    return float(sum(epoch["time"][key] for epoch in run.epochs))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{number(100 * value, 1)} %"
