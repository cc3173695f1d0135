"""Runs sorted into what may be compared: groups that share captions and cross-entropy, and in each its stages.

A stage is cross-entropy, or one way of REINFORCE behind it; its runs share all but product and seed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from prproduct.captioning.report.scores import Scores, read_scores
from prproduct.lab.errors import InputError
from prproduct.lab.report import observations
from prproduct.lab.report.observations import BASELINE, adjusted, by_product, ending, once, told_apart
from prproduct.lab.report.statistics import PairedDifference, Sample, paired_difference
from prproduct.lab.runs import CONFIG, HARMLESS, Record

PHASES = {"xe": "cross-entropy", "rl": "REINFORCE"}
_OF_AN_EPOCH = ("epoch", "step", "train_loss", "validation_loss", "validation_cider", "time")
_NOT_SHARED = ("product", "seed", "phase", *HARMLESS)
IDLE = {  # what a phase does not use
    "xe": ("baseline", "candidates", "samples"),
    "rl": ("captions_per_image", "feedback_step", "feedback_every", "feedback_limit", "dropout"),
}


class Run(observations.Run):
    """A captioner's."""

    @cached_property
    def scores(self) -> Scores | None:
        """Of its test captions, if they are scored."""
        return read_scores(self.record.folder)


@dataclass(frozen=True)
class Stage:
    """The runs of one phase that share all but product and seed."""

    phase: str
    name: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @cached_property
    def counted(self) -> dict[str, dict[int, Run]]:
        """The runs that count, by product and seed."""
        return by_product(self.runs)


@dataclass(frozen=True)
class Judged:
    """The scores of a stage's captions that were searched for in the same way, by product and seed."""

    group: Group
    stage: Stage
    search: str
    scores: dict[str, dict[int, Scores]]

    def values(self, product: str, column: str) -> dict[int, float]:
        """The numbers of a column by seed."""
        found = {seed: scores.numbers.get(column) for seed, scores in self.scores.get(product, {}).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def sample(self, product: str, column: str) -> Sample | None:
        """Their mean and deviation."""
        values = self.values(product, column)
        return Sample.of(list(values.values())) if values else None

    def difference(self, product: str, column: str) -> PairedDifference | None:
        """To the inner product, over the seeds of both."""
        return paired_difference(self.values(product, column), self.values(BASELINE, column))


@dataclass(frozen=True)
class Group:
    """Runs on the same captions and features, with the same cross-entropy."""

    name: str
    captions: str  # what they are called
    data: Mapping[str, Any]
    settings: Mapping[str, Any]  # of cross-entropy
    stages: tuple[Stage, ...]
    alone: bool = False  # on its page: then headings need not name it

    def titled(self, title: str) -> str:
        """A heading of a part of it, or of a stage."""
        return title[:1].upper() + title[1:] if self.alone else f"{self.name}: {title}"

    @property
    def runs(self) -> list[Run]:
        """Of all stages."""
        return [run for stage in self.stages for run in stage.runs]

    def judged(self) -> Iterator[Judged]:
        """Every stage with scores, once for each way in which captions were searched for."""
        for stage in self.stages:
            by_search: dict[str, dict[str, dict[int, Scores]]] = {}
            for product, runs in stage.counted.items():
                for seed, run in runs.items():
                    if run.scores:
                        by_search.setdefault(run.scores.search, {}).setdefault(product, {})[seed] = run.scores
            for search, scores in by_search.items():
                yield Judged(self, stage, search, scores)


@dataclass(frozen=True)
class Comparison:
    """A product beside the inner product, by the CIDEr of test captions."""

    judged: Judged
    product: str
    difference: PairedDifference | None
    adjusted: float | None  # the p value by Holm's method over all comparisons; None: no test


def comparisons(groups: Sequence[Group]) -> list[Comparison]:
    """Every product beside the inner product, wherever both have scored captions."""
    pairs = [
        (judged, product, judged.difference(product, "CIDEr"))
        for group in groups
        for judged in group.judged()
        for product in judged.scores
        if product != BASELINE and BASELINE in judged.scores
    ]
    tests = [found.p_value if found else None for *_, found in pairs]
    return [Comparison(*pair, p_value) for pair, p_value in zip(pairs, adjusted(tests), strict=True)]


def groups(records: Sequence[Record]) -> list[Group]:
    """The runs by captions, features and cross-entropy; a second run of the same seed does not count again."""
    sorted_in: dict[str, dict[str, list[Run]]] = {}
    for record in records:
        first, stage = _settings(record)
        inner = sorted_in.setdefault(json.dumps(first, sort_keys=True), {})
        inner.setdefault(json.dumps(stage, sort_keys=True), []).append(
            Run(record, *ending(record, record.config["config"]["epochs"], _OF_AN_EPOCH))
        )
    shared = [json.loads(key) for key in sorted_in]
    captions = [_captions(next(iter(inner.values()))[0].record) for inner in sorted_in.values()]
    names = told_apart(
        [f"{name}, {own['settings']['hidden']} hidden units" for name, own in zip(captions, shared, strict=True)],
        [{**own["settings"], **own["data"]} for own in shared],
    )
    found = []
    for name, called, own, inner in zip(names, captions, shared, sorted_in.values(), strict=True):
        settings = sorted((json.loads(key) for key in inner), key=lambda stage: stage["phase"] == "rl")
        labels = told_apart([PHASES[stage["phase"]] for stage in settings], settings)
        stages = tuple(
            Stage(stage["phase"], label, stage, once(inner[json.dumps(stage, sort_keys=True)]))
            for label, stage in zip(labels, settings, strict=True)
        )
        found.append(Group(name, called, own["data"], own["settings"], stages, len(shared) == 1))
    return sorted(found, key=lambda group: group.name)


def _settings(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes a run's group, and what its stage in it."""
    try:
        own, data = dict(record.config["config"]), dict(record.config["data"])
        phase, product, seed = own["phase"], str(own["product"]), int(own["seed"])
        _ = own["hidden"], own["epochs"], data["words"], data["width"], PHASES[phase]
        if phase == "xe":
            shared = _shared(own)
            return {"settings": shared, "data": data}, {"phase": phase, **shared}
        start = record.config["start"]
        first, stage = _shared(start["config"]), {"phase": phase, "from": start["from"], **_shared(own)}
        # A run that goes on from another product or seed is none of the usual kind.
        for key, here in (("product", product), ("seed", seed)):
            if start["config"][key] != here:
                stage[f"start_{key}"] = start["config"][key]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{record.folder / CONFIG}: is not that of a captioner's run ({error} is missing or wrong)"
        ) from None
    return {"settings": first, "data": data}, stage


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs of a stage have in common."""
    left_out = (*_NOT_SHARED, *IDLE[config["phase"]])
    return {key: value for key, value in config.items() if key not in left_out and value is not None}


def _captions(record: Record) -> str:
    """What the captions are called: what --captions named, the world if it named none, or else their fingerprint.

    A folder called captions, as of `prproduct data captions … -o flickr8k/captions`, is told by the one around it.
    """
    try:
        words = shlex.split(str(record.config["environment"].get("command", "")))
    except ValueError:
        words = []
    if words[1:3] in (["train", "captioner"], ["reproduce", "captions"]):
        values = [b for a, b in pairwise(words) if a == "--captions"]
        values += [word.removeprefix("--captions=") for word in words if word.startswith("--captions=")]
        place = Path(values[-1] if values else "world")
        return (place.parent if place.name == "captions" else place).name or place.name
    return f"captions {record.config['data'].get('captions', '?')}"
