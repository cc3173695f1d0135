"""The captions of a run for a whole split, as the COCO evaluation wants them, and their scores.

results/captions_test_results.json    [{"image_id": …, "caption": …}, …], ready to upload
results/scores_test.json              how they were searched for, and what every metric gave
results/examples_test.json            a few of the images with their references, for reports
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prproduct.captioning import examples
from prproduct.captioning.describing import Description, Search, describe
from prproduct.captioning.metrics.fields import ImageId
from prproduct.captioning.metrics.score import METRICS, evaluate
from prproduct.captioning.metrics.writing import replacing
from prproduct.captioning.training import Material, check_fits, load_captioner
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json

FOLDER = "results"
Judge = Callable[[ImageId, str], float]


def captions_file(folder: str | Path, split: str) -> Path:
    """Where a run's captions of a split lie."""
    return Path(folder) / FOLDER / f"captions_{split}_results.json"


def scores_file(folder: str | Path, split: str) -> Path:
    """Where their scores lie."""
    return Path(folder) / FOLDER / f"scores_{split}.json"


def examples_file(folder: str | Path, split: str) -> Path:
    """Where a few images of a split lie with their references."""
    return Path(folder) / FOLDER / f"examples_{split}.json"


def write_results(
    folder: str | Path,
    material: Material,
    split: str = "test",
    search: Search | None = None,
    metrics: Sequence[str] = METRICS,
    *,
    which: str = "best",
    judges: Mapping[str, Judge] | None = None,
    tick: Callable[[int], Any] = lambda images: None,
) -> dict[str, Any]:
    """Caption a split with a run's captioner, score it, write both into the run's folder, and give back the scores.

    `judges` are scores of one's own: the mean of what each says of an image and its caption. What was written with the
    same search before is read, not computed again.
    """
    search = search or Search(longest=material.captions.longest)
    record = runs.read(folder)
    check_fits(record, material)
    images = material.captions.of(split)
    if not images:
        raise InputError(f"there are no images of the split {split} to caption")
    examples.write(examples_file(folder, split), examples.choose(images))
    wanted = {"split": split, "epoch": which, "search": asdict(search), "data": dict(record.config["data"])}
    if scores_file(folder, split).exists():
        known = read_json(scores_file(folder, split))
        if known.get("how") == wanted and set(metrics) <= set(known["metrics"]):
            return known
    model = load_captioner(folder, which)
    said = list(
        describe(
            model, material.captions.vocabulary, material.features, [image.id for image in images], search, tick=tick
        )
    )
    write_captions(captions_file(folder, split), said)
    scored: dict[str, Any] = {
        "how": wanted,
        "images": len(images),
        "metrics": list(metrics),
        "scores": {},
        "failures": {},
    }
    described = [(image, one) for image, one in zip(images, said, strict=True) if image.references]
    if described:
        found = evaluate(
            [list(image.references) for image, _ in described], [one.caption for _, one in described], metrics
        )
        scored["scores"] = {name: float(score.total) for name, score in found.scores.items()}
        scored["failures"] = found.failures
    for name, judge in (judges or {}).items():
        scored["scores"][name] = sum(judge(one.image, one.caption) for one in said) / len(said)
    with replacing(scores_file(folder, split)) as file:
        file.write(json.dumps(scored, indent=1, ensure_ascii=False).encode())
    return scored


def write_captions(path: Path, said: Sequence[Description]) -> None:
    """In the format of COCO's evaluation server."""
    rows = [{"image_id": one.image, "caption": one.caption} for one in said]
    with replacing(path) as file:
        file.write(json.dumps(rows, ensure_ascii=False).encode())
