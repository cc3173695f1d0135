"""The runs of a report: grouped by what may be compared, and a table of them.

A group has the same captions and the same settings of cross-entropy. It has one stage for cross-entropy and one for
each configuration of REINFORCE that starts from it; the runs of a stage differ in product and seed only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prproduct.captioning.configuration import UNUSED
from prproduct.captioning.inference import PHASE_NAMES
from prproduct.captioning.report.scores import Scores, read_scores
from prproduct.lab.report import observations
from prproduct.lab.report.content import (
    Block,
    Code,
    Paragraph,
    Section,
    Table,
    Text,
    display,
    number,
    seconds_text,
    written,
)
from prproduct.lab.report.observations import (
    BASELINE,
    ORIGIN_COLUMNS,
    RUNS_OPENING,
    by_product,
    distinguish,
    ending,
    mark_repetitions,
    origin,
    sort_key,
)
from prproduct.lab.report.statistics import PairedDifference, Sample, holm, paired_difference
from prproduct.lab.runs import HARMLESS, Record

_EPOCH_KEYS = ("epoch", "step", "train_loss", "validation_loss", "validation_cider", "time")
_NOT_SHARED = ("product", "seed", "phase", *HARMLESS)


class Run(observations.Run):
    """A captioner's run."""

    COMPLETE = 0.9  # epochs of cross-entropy differ by a few words

    @cached_property
    def scores(self) -> Scores | None:
        """The scores of its test captions; None if they are not scored."""
        return read_scores(self.record.folder, self.record.config["data"])


@dataclass(frozen=True)
class Stage:
    """The runs of one phase that share all but product and seed."""

    phase: str
    name: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @cached_property
    def counted(self) -> dict[str, dict[int, Run]]:
        """The runs that are averaged, by product and seed."""
        return by_product(self.runs)


@dataclass(frozen=True)
class ScoredStage:
    """The scores of a stage's captions for one setting of the search, by product and seed."""

    group: Group
    stage: Stage
    search: str
    scores: dict[str, dict[int, Scores]]

    def values(self, product: str, column: str) -> dict[int, float]:
        """The values of a column by seed."""
        found = {seed: scores.numbers.get(column) for seed, scores in self.scores.get(product, {}).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def sample(self, product: str, column: str) -> Sample | None:
        """Mean and standard deviation over the seeds."""
        values = self.values(product, column)
        return Sample.of(list(values.values())) if values else None

    def difference(self, product: str, column: str) -> PairedDifference | None:
        """The paired difference to the inner product, over the seeds that both have."""
        return paired_difference(self.values(product, column), self.values(BASELINE, column))


@dataclass(frozen=True)
class Group:
    """Runs on the same captions and features, with the same cross-entropy."""

    name: str
    captions: str  # their name
    data: Mapping[str, Any]
    settings: Mapping[str, Any]  # of cross-entropy
    stages: tuple[Stage, ...]
    alone: bool = False  # the only group of the report: headings need not name it

    def heading(self, title: str) -> str:
        """A title, with the group's name unless it is the only group."""
        return title[:1].upper() + title[1:] if self.alone else f"{self.name}: {title}"

    @property
    def runs(self) -> list[Run]:
        """The runs of all stages."""
        return [run for stage in self.stages for run in stage.runs]

    def scored_stages(self) -> Iterator[ScoredStage]:
        """Every stage with scores, once for each setting of the search."""
        for stage in self.stages:
            by_search: dict[str, dict[str, dict[int, Scores]]] = {}
            for product, runs in stage.counted.items():
                for seed, run in runs.items():
                    if run.scores:
                        by_search.setdefault(run.scores.search, {}).setdefault(product, {})[seed] = run.scores
            for search, scores in by_search.items():
                yield ScoredStage(self, stage, search, scores)


@dataclass(frozen=True)
class Comparison:
    """A product compared with the inner product, by the CIDEr of test captions."""

    scored: ScoredStage
    product: str
    difference: PairedDifference | None
    adjusted: float | None  # the p value, corrected over all comparisons by Holm's method; None: no test


def comparisons(groups: Sequence[Group]) -> list[Comparison]:
    """Every product compared with the inner product, in every stage where both have scores."""
    pairs = [
        (scored, product, scored.difference(product, "CIDEr"))
        for group in groups
        for scored in group.scored_stages()
        for product in scored.scores
        if product != BASELINE and BASELINE in scored.scores
    ]
    tests = [found.p_value if found else None for *_, found in pairs]
    return [Comparison(*pair, p_value) for pair, p_value in zip(pairs, holm(tests), strict=True)]


def groups(records: Sequence[Record]) -> list[Group]:
    """The runs grouped by captions, features and cross-entropy; of two runs of the same seed one is averaged."""
    sorted_in: dict[str, dict[str, list[Run]]] = {}
    for record in records:
        first, stage = _settings(record)
        inner = sorted_in.setdefault(json.dumps(first, sort_keys=True), {})
        inner.setdefault(json.dumps(stage, sort_keys=True), []).append(
            Run(record, *ending(record, record.config["config"]["epochs"], _EPOCH_KEYS))
        )
    shared = [json.loads(key) for key in sorted_in]
    captions = [_captions(next(iter(inner.values()))[0].record) for inner in sorted_in.values()]
    names = distinguish(
        [f"{name}, {own['settings']['hidden']} hidden units" for name, own in zip(captions, shared, strict=True)],
        [{**own["settings"], **own["data"]} for own in shared],
    )
    found = []
    for name, called, own, inner in zip(names, captions, shared, sorted_in.values(), strict=True):
        settings = sorted((json.loads(key) for key in inner), key=lambda stage: stage["phase"] == "rl")
        labels = distinguish([PHASE_NAMES[stage["phase"]] for stage in settings], settings)
        stages = tuple(
            Stage(stage["phase"], label, stage, mark_repetitions(inner[json.dumps(stage, sort_keys=True)]))
            for label, stage in zip(labels, settings, strict=True)
        )
        found.append(Group(name, called, own["data"], own["settings"], stages, len(shared) == 1))
    return sorted(found, key=lambda group: group.name)


def _settings(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that determine a run's group, and those that determine its stage in the group."""
    own, data = record.config["config"], dict(record.config["data"])
    shared = {"phase": own["phase"], **_shared(own)}
    if own["phase"] == "xe":
        return {"settings": _shared(own), "data": data}, shared
    start = record.config["start"]
    # A run that starts from another product or seed is not comparable with the others.
    other = {f"start_{key}": start["config"][key] for key in ("product", "seed") if start["config"][key] != own[key]}
    return {"settings": _shared(start["config"]), "data": data}, {"from": start["from"], **shared, **other}


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all runs of a stage have in common."""
    left_out = (*_NOT_SHARED, *UNUSED[config["phase"]])
    return {key: value for key, value in config.items() if key not in left_out and value is not None}


def _captions(record: Record) -> str:
    """The name of a run's captions: the folder of --captions, or "world"; for runs from Python a fingerprint.

    Of a folder called captions, such as flickr8k/captions, it is the name of the parent folder.
    """
    captions = record.config["environment"].get("places", {}).get("captions")
    if captions is None:
        return f"captions {record.config['data'].get('captions', '?')}"
    place = Path(captions)
    return (place.parent if place.name == "captions" else place).name or place.name


_HEADER = ("product", "phase", "seed", "ended", "test CIDEr", "validation CIDEr", "time", *ORIGIN_COLUMNS)


def runs_table(groups: Sequence[Group]) -> list[Section]:
    """A section with a table of the runs of each group: how they ended, and the commands that made them."""
    sections = [Section("Runs", (RUNS_OPENING,))]
    for group in groups:
        rows = [_row(run, stage.phase) for stage in group.stages for run in sorted(stage.runs, key=sort_key)]
        caption = f"{len(rows)} runs; {sum(run.counts for run in group.runs)} of them are averaged."
        table = Table(caption, _HEADER, "llrlrrrllll", tuple(rows))
        blocks: tuple[Block, ...] = (*(Paragraph(text) for text in _shared_settings(group)), table)
        sections.append(Section(f"{group.name}: runs", blocks, level=3))
    return sections


def _row(run: Run, phase: str) -> tuple[Text, ...]:
    cider = run.scores.numbers.get("CIDEr") if run.scores else None
    return (
        display(run.product),
        PHASE_NAMES[phase],
        str(run.seed),
        run.status,
        number(cider, 1),
        _selected(run),
        seconds_text(run.seconds),
        *origin(run.record),
    )


def _selected(run: Run) -> str:
    """The best validation CIDEr and its epoch."""
    end = run.record.of("end")
    chosen = end[0]["selected"] if end else None
    return "–" if chosen is None else f"{number(100 * chosen['validation_cider'], 1)} (epoch {chosen['epoch'] + 1})"


def _shared_settings(group: Group) -> list[Text]:
    """Paragraphs of the settings that the runs of each stage share, and of their data."""
    paragraphs: list[Text] = []
    for stage in group.stages:
        settings = ", ".join(
            f"{key.replace('_', ' ')} {written(value)}" for key, value in stage.settings.items() if key != "phase"
        )
        paragraphs.append(f"In {stage.name} they share: {settings}.")
    data = ", ".join(f"{key} {value}" for key, value in group.data.items())
    paragraphs.append(("Data: ", Code(data), "."))
    return paragraphs
