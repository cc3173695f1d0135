"""`prproduct score`: the metrics of a file of captions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from prproduct.captioning.metrics import score as scoring
from prproduct.captioning.metrics.files import Captions, read_pair
from prproduct.captioning.metrics.frequencies import load_frequencies
from prproduct.captioning.metrics.writing import replacing


def score(
    references: Annotated[
        Path, typer.Argument(help="COCO's annotations or Karpathy's .json, or text: a line an image")
    ],
    results: Annotated[Path, typer.Argument(help="COCO's results .json, or text: a caption a line")],
    metrics: Annotated[str, typer.Option(help="which, with commas between them")] = ",".join(scoring.METRICS),
    tokenizer: Annotated[str, typer.Option(help="python, or java for the original")] = "python",
    split: Annotated[str, typer.Option(help="which images of Karpathy's format")] = "test",
    subset: Annotated[bool, typer.Option("--subset", help="score only images that RESULTS has")] = False,
    frequencies: Annotated[
        Path | None, typer.Option(help="n-gram frequencies for CIDEr, else of the references")
    ] = None,
    per_image: Annotated[Path | None, typer.Option(help="a .json file to write each image's scores to")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Score captions with the metrics of the COCO evaluation."""
    captions = read_pair(references, results, split, subset)
    counted = load_frequencies(frequencies) if frequencies else None
    asked = [metric.strip().lower() for metric in metrics.split(",") if metric.strip()]
    with _shown_progress() as progress:
        evaluation = scoring.evaluate(captions.references, captions.candidates, asked, tokenizer, counted, progress)
    if per_image:
        with replacing(per_image) as file:
            file.write(json.dumps(_rows(captions, evaluation), indent=1, ensure_ascii=False).encode())
    if as_json:
        print(json.dumps(_summary(captions, evaluation, tokenizer), indent=1))
    elif evaluation.scores:
        Console().print(_table(captions, evaluation))
    for metric, reason in evaluation.failures.items():
        Console(stderr=True, soft_wrap=True).print(f"prproduct: no {metric}: {reason}", markup=False, highlight=False)
    # All metrics are the default, and half the world has no Java: it is an error only where somebody asked for them.
    if evaluation.failures and (asked != list(scoring.METRICS) or not evaluation.scores):
        raise typer.Exit(1)


@contextmanager
def _shown_progress() -> Iterator[scoring.Progress]:
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda step, done, total: bar.update(task, description=step, completed=done, total=total)


def _table(captions: Captions, evaluation: scoring.Evaluation) -> Table:
    table = Table(caption=f"{len(captions.images):,} images")
    table.add_column("metric")
    table.add_column("score", justify="right")
    for name, value in evaluation.scores.items():
        table.add_row(name.replace("_", "-").replace("Bleu", "BLEU"), f"{value.total:.4f}")
    return table


def _summary(captions: Captions, evaluation: scoring.Evaluation, tokenizer: str) -> dict[str, object]:
    return {
        "images": len(captions.images),
        "tokenizer": tokenizer,
        "scores": {name: _number(value.total) for name, value in evaluation.scores.items()},
        "failures": evaluation.failures,
    }


def _rows(captions: Captions, evaluation: scoring.Evaluation) -> list[dict[str, object]]:
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
