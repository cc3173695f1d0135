"""`prproduct score`: the metrics of a file of captions, or of a run's captions, whose scores stay in its folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from prproduct.captioning.data.prepared import CaptionSet
from prproduct.captioning.dataset import WORLD, read_captions
from prproduct.captioning.metrics import score as scoring
from prproduct.captioning.metrics.files import PairedCaptions, pair, read_references, read_results
from prproduct.captioning.metrics.frequencies import load_frequencies
from prproduct.captioning.results import add_scores, captions_file, scores_file, scores_of
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable_file, replace_durably
from prproduct.lab.progress import note, progress_bar
from prproduct.lab.runs import CONFIG


def score(
    references: Annotated[
        Path,
        typer.Argument(help="COCO's annotations or Karpathy's .json, a folder of `prproduct data captions`, or text"),
    ],
    results: Annotated[
        Path, typer.Argument(help="COCO's results .json, text, or a run that `prproduct caption --split` captioned")
    ],
    metrics: Annotated[str | None, typer.Option(help=f"of {','.join(scoring.METRICS)}; all, if not given")] = None,
    tokenizer: Annotated[str, typer.Option(help="python, or java for the original")] = "python",
    split: Annotated[str, typer.Option(help="of Karpathy's format, or of a folder of captions and a run")] = "test",
    subset: Annotated[bool, typer.Option("--subset", help="score only images that RESULTS has")] = False,
    frequencies: Annotated[
        Path | None, typer.Option(help="n-gram frequencies for CIDEr, else of the references")
    ] = None,
    per_image: Annotated[Path | None, typer.Option(help="a .json file to write each image's scores to")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Score captions with the metrics of the COCO evaluation."""
    if per_image:
        check_writable_file(per_image)
    run = _run_of(results, split)
    prepared = read_captions(str(references)) if str(references) == WORLD or references.is_dir() else None
    kept = False  # whether the run's folder takes the scores
    if run and prepared and tokenizer == "python" and frequencies is None and not subset:
        data = scores_of(run, split)["how"].get("data")  # read first: METEOR takes minutes
        kept = isinstance(data, dict) and data.get("captions") == prepared.fingerprint
    captions = _read(references, prepared, captions_file(run, split) if run else results, split, subset)
    counted = load_frequencies(frequencies) if frequencies else None
    asked = [metric.strip().lower() for metric in (metrics or "").split(",") if metric.strip()]
    chosen = scoring.METRICS if metrics is None else asked
    with progress_bar() as update:
        evaluation = scoring.evaluate(
            captions.references,
            captions.candidates,
            chosen,
            tokenizer,
            counted,
            lambda step, done, total: update(description=step, completed=done, total=total),
        )
    if as_json:
        print(json.dumps(_summary(captions, evaluation, tokenizer), indent=1))
    elif evaluation.scores:
        Console().print(_table(captions, evaluation))
    if per_image:
        rows = json.dumps(_rows(captions, evaluation), indent=1, ensure_ascii=False)
        replace_durably(per_image, rows.encode())
    for metric, reason in evaluation.failures.items():
        name_failure(metric, reason)
    if run:
        file = scores_file(run, split)
        if kept:
            by_image = dict(zip(captions.images, captions.candidates, strict=True))
            add_scores(run, split, by_image, evaluation, chosen, str(references) == WORLD)
            note(f"{file}: has these scores{', for prproduct report' if split == 'test' else ''}")
        else:
            which = "against the run's own captions, without --subset, --frequencies and --tokenizer java"
            note(f"{file}: left as it was: it has scores {which}")
    # Without --metrics a missing Java is not an error: many machines have none.
    if evaluation.failures and metrics is not None:
        raise typer.Exit(1)


def name_failure(metric: str, reason: str, advice: str = "") -> None:
    """Print on stderr why a metric has no score."""
    note(f"no {metric}: {reason}{f'; {advice}' if advice else ''}")


def _run_of(results: Path, split: str) -> Path | None:
    """The run whose folder, or whose captions file of this split, `results` is; None for any other file."""
    if results.is_dir():
        if not (results / CONFIG).exists():
            raise InputError(f"{results}: not the folder of a run; give RESULTS behind the references")
        if not captions_file(results, split).exists():
            raise InputError(
                f"{results}: a folder without captions of the split {split}; caption them first: prproduct caption "
                f"--run {results} --split {split} --captions … --features …"
            )
        return results
    folder = results.parent.parent
    return folder if results == captions_file(folder, split) and (folder / CONFIG).exists() else None


def _read(references: Path, prepared: CaptionSet | None, results: Path, split: str, subset: bool) -> PairedCaptions:
    """The references matched with the results; images of a prepared set that have no references are left out."""
    if prepared is None:
        if (references.suffix.lower() == ".json") != (results.suffix.lower() == ".json"):
            raise InputError(f"{references} and {results}: give two .json files, or two of plain text")
        known = read_references(references, split)  # before the results: it knows files that are exchanged
        return pair(references, known, results, read_results(results), subset)
    images = {image.id: list(image.references) for image in prepared.of(split)}
    known = {image: texts for image, texts in images.items() if texts}
    if not known:
        raise InputError(f"{references}: no image of the split {split} has references to score with")
    found = {image: text for image, text in read_results(results).items() if image in known or image not in images}
    return pair(references, known, results, found, subset)


def _table(captions: PairedCaptions, evaluation: scoring.Evaluation) -> Table:
    count = len(captions.images)
    table = Table(caption=f"{count:,} image{'' if count == 1 else 's'}")
    table.add_column("metric")
    table.add_column("score", justify="right")
    for name, value in evaluation.scores.items():
        table.add_row(name.replace("_", "-").replace("Bleu", "BLEU"), f"{value.total:.4f}")
    return table


def _summary(captions: PairedCaptions, evaluation: scoring.Evaluation, tokenizer: str) -> dict[str, object]:
    """The content of `--json`."""
    return {
        "images": len(captions.images),
        "tokenizer": tokenizer,
        "scores": {name: _number(value.total) for name, value in evaluation.scores.items()},
        "failures": evaluation.failures,
    }


def _rows(captions: PairedCaptions, evaluation: scoring.Evaluation) -> list[dict[str, object]]:
    """The content of `--per-image`."""
    return [
        {
            "image_id": image,
            "caption": captions.candidates[i],
            **{name: _number(float(value.each[i])) for name, value in evaluation.scores.items()},
        }
        for i, image in enumerate(captions.images)
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN
