"""The scores of a run's test captions: read from its folder, by the columns of the report's table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prproduct.captioning.inference import Search
from prproduct.captioning.results import SHARE_TRUE, scores_file, scores_of


class Column(NamedTuple):
    """A column of the table: the name of its score in the COCO evaluation, and the metric that computes it."""

    score: str
    metric: str


COLUMNS = {  # first those of the paper's Table 2, in its order
    **{f"B{n}": Column(f"Bleu_{n}", "bleu") for n in range(1, 5)},
    "METEOR": Column("METEOR", "meteor"),
    "ROUGE-L": Column("ROUGE_L", "rouge-l"),
    "CIDEr": Column("CIDEr", "cider"),
    "SPICE": Column("SPICE", "spice"),
}


@dataclass(frozen=True)
class Scores:
    """The scores of a run's test captions. Only scores of the same search are compared."""

    search: str  # the settings of the search and the number of images, in words
    images: int
    numbers: dict[str, float]  # percent by column, and SHARE_TRUE if it is known
    reasons: dict[str, str]  # for the columns without a number


def read_scores(folder: Path, data: Mapping[str, Any]) -> Scores | None:
    """The scores of test captions by column, of a run on `data`; None if the captions are not scored."""
    if not scores_file(folder, "test").exists():
        return None
    content = scores_of(folder)
    if not content["scores"] and not content["failures"]:
        return None  # captioned, but not scored
    numbers, reasons = {}, {}
    for column, (score, metric) in COLUMNS.items():
        value = content["scores"].get(score)
        if value is not None and math.isfinite(value):
            numbers[column] = 100 * float(value)
        else:
            reasons[column] = str(content["failures"].get(metric, "it was not asked for, or is not a number"))
    if SHARE_TRUE in content["scores"]:
        numbers[SHARE_TRUE] = 100 * float(content["scores"][SHARE_TRUE])
    return Scores(_search(content, data), content["images"], numbers, reasons)


def _search(content: dict[str, Any], data: Mapping[str, Any]) -> str:
    """The settings of a search in words, and the captions and features if they are not those of the run.

    >>> _search({"how": {"split": "test", "epoch": "best", "search": {"beams": 5, "shortest": 3}}, "images": 1000}, {})
    '1,000 test images, 5 beams, best epoch, shortest 3'
    >>> how = {"search": {"beams": 5, "longest": 4}, "data": {"captions": "b7"}}
    >>> _search({"how": how, "images": 1000}, {"captions": "a3"})
    '1,000 ? images, 5 beams, ? epoch, longest 4, other captions b7'
    """
    how = content["how"]
    own = how["search"]
    usual = asdict(Search().up_to())
    words = [
        f"{content['images']:,} {how.get('split', '?')} images",
        beams_text(own.get("beams", "?")),
        f"{how.get('epoch', '?')} epoch",
    ]
    other = [
        f"{name.replace('_', ' ')} {own[name]}"
        for name in usual
        if name != "beams" and own.get(name, usual[name]) != usual[name]
    ]
    scored = how.get("data", {})
    elsewhere = [
        f"other {name} {scored[name]}"
        for name in ("captions", "features")
        if name in scored and scored[name] != data.get(name)
    ]
    return ", ".join([*words, *other, *elsewhere])


def beams_text(beams: object) -> str:
    """The number of beams of a search, in words."""
    return "the likeliest words" if beams == 1 else f"{beams} beams"
