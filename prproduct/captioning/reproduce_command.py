"""`prproduct reproduce captions`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from prproduct.captioning import report
from prproduct.captioning.command import CaptionsOption, FeaturesOption
from prproduct.captioning.data.pictures import list_all
from prproduct.captioning.material import material_of
from prproduct.captioning.metrics.command import name_failure
from prproduct.captioning.results import write_results
from prproduct.captioning.studies import PHASES, Choice, jobs
from prproduct.captioning.training import check_ids
from prproduct.captioning.world.world import WORLD, judges_of
from prproduct.lab import runs
from prproduct.lab.files import check_writable
from prproduct.lab.options import takes_options_of
from prproduct.lab.sweep import Plan, sweep
from prproduct.lab.sweep.progress import Silent, Terminal, exit_if_unfinished

# As in the paper's Table 2, so that a terminal of 80 columns has room for all.
_SHORT = {**{f"Bleu_{n}": f"B{n}" for n in range(1, 5)}, "METEOR": "M", "ROUGE_L": "RL", "CIDEr": "C", "SPICE": "S"}
_TITLE = "test captions by beam search, in %: BLEU, METEOR, ROUGE-L, CIDEr, SPICE"


@takes_options_of(Choice, Plan)
def captions(
    choice: Choice,
    plan: Plan,
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder of the runs and their page")] = Path(
        "runs/captions"
    ),
    captions: CaptionsOption = WORLD,
    source: FeaturesOption = None,
    pictures: Annotated[
        Path | None, typer.Option(help="a folder or zip archive of the pictures, for the page", show_default=False)
    ] = None,
    address: Annotated[str | None, typer.Argument(help="of a Ray cluster, behind --ray", show_default=False)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """The paper's Table 2: captioners under P, R and PR, by cross-entropy and then REINFORCE on CIDEr."""
    check_writable(output)
    plan.check(address)
    material = material_of(captions, source)  # what is wrong with it is said here, once
    check_ids(material)
    if pictures is not None:
        list_all([pictures])
    judges = judges_of(captions)
    wanted = jobs(choice, output, captions, source)
    workers = plan.open(len(wanted), address)
    progress = Silent() if quiet else Terminal()
    progress.say(f"{len(wanted)} runs of two phases in {output}; {workers}")
    results = sweep(wanted, workers, retries=plan.retries, progress=progress)
    folders = [result.job.folder.parent / phase for result in results if result.finished for phase in PHASES]
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        images, failures = len(material.captions.of("test")), dict[str, str]()
        for folder in folders:
            task = bar.add_task(f"test captions of {folder.relative_to(output.absolute())}", total=images)
            scored = write_results(
                folder,
                material,
                judges=judges,
                tick=lambda done, task=task: bar.advance(task, done),  # type: ignore[misc]
            )
            failures |= scored["failures"]
    for metric, reason in failures.items():
        name_failure(metric, reason, "the same command computes it when that is mended")
    if folders:
        Console().print(_table(folders))
        report.write(folders, output / "report.html", pictures)
        Console().print(f"the page: {output / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    exit_if_unfinished(results)


def _table(folders: Sequence[Path]) -> Table:
    table = Table(title=_TITLE, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("product", "seed", "phase"):
        table.add_column(name)
    scored = [(runs.read(folder).config["config"], report.scores_of(folder)["scores"]) for folder in folders]
    names = list(dict.fromkeys(name for _, scores in scored for name in scores))
    for name in names:
        table.add_column(_SHORT.get(name, name), justify="right")
    for config, scores in scored:
        cells = [f"{100 * scores[name]:.1f}" if name in scores else "–" for name in names]
        table.add_row(config["product"], str(config["seed"]), config["phase"], *cells)
    return table
