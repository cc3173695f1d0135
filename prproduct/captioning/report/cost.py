"""What it took: wall time of each phase, a step of each product beside P's, and what REINFORCE spends its time on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prproduct.captioning.report.stages import Group, Run, Stage
from prproduct.lab.report.charts import display
from prproduct.lab.report.content import Heading, Section, Table, Text, number, seconds_text
from prproduct.lab.report.observations import BASELINE
from prproduct.lab.report.origin import machine

# Of an epoch's samples: one that was resumed timed only the rest. Epochs of cross-entropy differ by a few words.
_WHOLE = 0.9
ALONE = 0.9  # the share of its wall time that a run's main thread computes for, where nobody else uses the machine


def cost(groups: Sequence[Group]) -> Section:
    """A row for each stage, machine and product."""
    rows: list[tuple[Text, ...] | Heading] = []
    for group in groups:
        for stage in (stage for stage in group.stages if stage.counted):
            rows.append(Heading(group.titled(stage.name)))
            rows += _rows(stage)
    caption = (
        "Wall time of a run, mean over runs; and of a training step: the median over all epochs but each run's first, "
        "which compiles. Angles are recorded in that time where they were asked for. The ratio is to P on the same "
        "machine, and only of runs that had their core to themselves: of one that got less than "
        f"{100 * ALONE:.0f} % of it, or did not record it, the time compares nothing. Decoding and reward are shares "
        "of REINFORCE's training time; the rest is the gradient. prproduct bench is the better judge of speed."
    )
    header = ("product", "runs", "training", "evaluation", "a step", "ratio to P", "decoding", "reward", "machine")
    return Section("Cost", (Table(caption, header, "lrrrrrrrl", tuple(rows)),))


def _rows(stage: Stage) -> Iterator[tuple[Text, ...]]:
    places: dict[str, dict[str, list[Run]]] = {}
    for product, runs in stage.counted.items():
        for run in runs.values():
            places.setdefault(machine(run.record), {}).setdefault(product, []).append(run)
    for place, by_product in places.items():
        base = by_product.get(BASELINE, [])
        for product, own in by_product.items():
            step = step_seconds(own)
            yield (
                display(product),
                str(len(own)),
                seconds_text(statistics.fmean(_total(run, "train_seconds") for run in own)),
                seconds_text(statistics.fmean(_total(run, "evaluation_seconds") for run in own)),
                "–" if step is None else f"{1000 * step:,.0f} ms" if step >= 0.01 else f"{1000 * step:.1f} ms",
                number(step_ratio(own, base)),
                _percent(share(own, "decoding_seconds")),
                _percent(share(own, "reward_seconds")),
                place,
            )


def step_seconds(runs: Sequence[Run]) -> float | None:
    """The median time of a training step over the whole epochs of runs; None without any."""
    seconds = [value for run in runs for value in _step_times(run.epochs)]
    return statistics.median(seconds) if seconds else None


def step_ratio(runs: Sequence[Run], base: Sequence[Run]) -> float | None:
    """How many times as long a step takes as one of `base`; None if other processes took the cores of one of them."""
    if not all(map(_alone, (*runs, *base))):
        return None
    step, other = step_seconds(runs), step_seconds(base)
    return step / other if step and other else None


def _alone(run: Run) -> bool:
    """True if training had (nearly) all of its core's time, as far as that was recorded."""
    times = [epoch["time"] for epoch in run.epochs]
    if not times or any("cpu_seconds" not in time for time in times):
        return False
    return bool(sum(time["cpu_seconds"] for time in times) >= ALONE * sum(time["train_seconds"] for time in times))


def share(runs: Sequence[Run], part: str) -> float | None:
    """How much of the training time went into a part of it; None if it was not recorded."""
    times = [epoch["time"] for run in runs for epoch in run.epochs if part in epoch["time"]]
    whole = sum(time["train_seconds"] for time in times)
    return sum(time[part] for time in times) / whole if whole else None


def _step_times(epochs: Sequence[Mapping[str, Any]]) -> list[float]:
    samples = [epoch["time"]["train_seconds"] * epoch["time"]["samples_per_second"] for epoch in epochs]
    steps = epochs[0]["step"] / (epochs[0]["epoch"] + 1) if epochs else 1
    times = [
        epoch["time"]["train_seconds"] / steps
        for epoch, count in zip(epochs, samples, strict=True)
        if count > _WHOLE * max(samples)
    ]
    return times[1:] if len(times) > 1 else times


def _total(run: Run, key: str) -> float:
    return float(sum(epoch["time"][key] for epoch in run.epochs))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{number(100 * value, 1)} %"
