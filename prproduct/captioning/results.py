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
from prproduct.captioning.metrics.fields import ImageId, refuse
from prproduct.captioning.metrics.files import RESULTS, read_results
from prproduct.captioning.metrics.score import METRICS, Evaluation, Progress, evaluate
from prproduct.captioning.metrics.writing import replacing
from prproduct.captioning.training import Material, check_fits, chosen_step, load_captioner
from prproduct.captioning.world.world import Judge
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json


def captions_file(folder: str | Path, split: str) -> Path:
    """Where a run's captions of a split lie."""
    return Path(folder) / RESULTS / f"captions_{split}_results.json"


def scores_file(folder: str | Path, split: str) -> Path:
    """Where their scores lie."""
    return Path(folder) / RESULTS / f"scores_{split}.json"


def examples_file(folder: str | Path, split: str) -> Path:
    """Where a few images of a split lie with their references."""
    return Path(folder) / RESULTS / f"examples_{split}.json"


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
    """Caption a split with a run's captioner, score it, write both into the run's folder, and return the scores.

    `judges` are further scores: the mean of what each says of an image and its caption. What is there already, found by
    the same search, is not computed again; a metric that failed is.
    """
    write_captions(folder, material, split, search, which=which, tick=tick)
    references = {image.id: image.references for image in material.captions.of(split) if image.references}
    return write_scores(folder, split, references, metrics, judges)


def write_captions(
    folder: str | Path,
    material: Material,
    split: str = "test",
    search: Search | None = None,
    *,
    which: str = "best",
    tick: Callable[[int], Any] = lambda images: None,
) -> None:
    """Write a run's captions of a split and how they were found, without scores, unless they are there."""
    search = search or Search(longest=material.captions.longest)
    record = runs.read(folder)
    check_fits(record, material)
    images = material.captions.of(split)
    if not images:
        raise InputError(f"there are no images of the split {split} to caption")
    examples.write(examples_file(folder, split), examples.choose(images))
    how = {
        "split": split,
        "epoch": which,
        "step": chosen_step(folder, which),
        "search": asdict(search),
        "data": dict(record.config["data"]),
    }
    if scores_file(folder, split).exists() and captions_file(folder, split).exists():
        known = read_json(scores_file(folder, split))
        if known.get("how") == how and known.get("images") == len(images):
            return
    model, vocabulary = load_captioner(folder, which), material.captions.vocabulary
    said = list(describe(model, vocabulary, material.features, [image.id for image in images], search, tick=tick))
    # Without scores before other captions take the place of those that the scores were of.
    unscored = {"how": how, "images": len(images), "metrics": [], "scores": {}, "failures": {}}
    _write_json(scores_file(folder, split), {**unscored, "how": {}})
    save_captions(captions_file(folder, split), said)
    _write_json(scores_file(folder, split), unscored)


def write_scores(
    folder: str | Path,
    split: str,
    references: Mapping[ImageId, Sequence[str]],
    metrics: Sequence[str] = METRICS,
    judges: Mapping[str, Judge] | None = None,
    progress: Progress = lambda step, done, total: None,
) -> dict[str, Any]:
    """Score a run's captions by the metrics that have no score yet, write the scores and return them all."""
    scored, said = _read_scores(folder, split), read_results(captions_file(folder, split))
    done = set(scored["metrics"]) - set(scored["failures"])
    missing = [metric for metric in metrics if metric not in done]
    if not missing and set(judges or {}) <= set(scored["scores"]):
        return scored
    refuse(captions_file(folder, split), "no caption of images that have references", references.keys() - said.keys())
    found = Evaluation()
    if missing and references:
        candidates = [said[image] for image in references]
        found = evaluate([list(of_image) for of_image in references.values()], candidates, missing, progress=progress)
    return add_scores(folder, split, said, found, missing, judges)


def add_scores(
    folder: str | Path,
    split: str,
    said: Mapping[ImageId, str],
    found: Evaluation,
    metrics: Sequence[str],
    judges: Mapping[str, Judge] | None = None,
) -> dict[str, Any]:
    """Write what an evaluation of a run's captions by some metrics found to its scores, and return them all."""
    scored = _read_scores(folder, split)
    before = json.dumps(scored)
    done = set(scored["metrics"]) - set(scored["failures"])
    scored["scores"] |= {name: float(score.total) for name, score in found.scores.items()}
    for name, judge in (judges or {}).items():
        scored["scores"][name] = sum(map(judge, said, said.values())) / len(said)
    kept = {metric: why for metric, why in scored["failures"].items() if metric not in metrics}
    # Without Java today, the score of another day is still that of these captions.
    scored["failures"] = kept | {metric: why for metric, why in found.failures.items() if metric not in done}
    scored["metrics"] = list(dict.fromkeys([*scored["metrics"], *metrics]))
    if json.dumps(scored) != before:
        _write_json(scores_file(folder, split), scored)
    return scored


def _read_scores(folder: str | Path, split: str) -> dict[str, Any]:
    path = scores_file(folder, split)
    scored = read_json(path)
    kinds = {"metrics": list, "scores": dict, "failures": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(scored.get(name), kind)]
    if wrong:
        raise InputError(f"{path}: not the scores of captions, {wrong[0]} is wrong; remove it and caption again")
    return scored


def save_captions(path: Path, said: Sequence[Description]) -> None:
    """Write captions in the format of COCO's evaluation server."""
    rows = [{"image_id": one.image, "caption": one.caption} for one in said]
    with replacing(path) as file:
        file.write(json.dumps(rows, ensure_ascii=False).encode())


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
