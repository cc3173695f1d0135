"""`prproduct reproduce gradients` and `prproduct reproduce cifar`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prproduct.classification.data.fetch import download_bars
from prproduct.classification.report import write
from prproduct.classification.reproduce import jobs
from prproduct.classification.studies import Choice, configs
from prproduct.classification.summary import CAPTION, tables
from prproduct.lab import runs
from prproduct.lab.files import check_writable
from prproduct.lab.options import takes_options_of
from prproduct.lab.sweep import Plan, Result, sweep
from prproduct.lab.sweep.progress import Silent, Terminal, exit_if_unfinished

Output = Annotated[Path, typer.Option("--output", "-o", help="the folder of the runs, their table and their page")]
# Behind the flag --ray, an argument: options whose value may be left out are not known to Typer.
Address = Annotated[str | None, typer.Argument(help="of a Ray cluster, behind --ray", show_default=False)]
DataDir = Annotated[Path | None, typer.Option(help="the folder that holds data sets", show_default=False)]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, cuda, mps")]
Quiet = Annotated[bool, typer.Option("--quiet", help="show no progress")]


@takes_options_of(Choice, Plan)
def gradients(
    choice: Choice,
    plan: Plan,
    output: Output = Path("runs/gradients"),
    address: Address = None,
    data_dir: DataDir = None,
    accelerator: Accelerator = "auto",
    quiet: Quiet = False,
) -> None:
    """The study of the paper's introduction: an MLP under products that lack a part of the gradient, R and PR."""
    _reproduce("gradients", choice, plan, output, address, data_dir, accelerator, quiet)


@takes_options_of(Choice, Plan)
def cifar(
    choice: Choice,
    plan: Plan,
    output: Output = Path("runs/cifar"),
    address: Address = None,
    data_dir: DataDir = None,
    accelerator: Accelerator = "auto",
    quiet: Quiet = False,
) -> None:
    """The paper's Table 1: convolutional networks on CIFAR under P and PR."""
    _reproduce("cifar", choice, plan, output, address, data_dir, accelerator, quiet)


def _reproduce(
    study: str,
    choice: Choice,
    plan: Plan,
    output: Path,
    address: str | None,
    data_dir: Path | None,
    accelerator: str,
    quiet: bool,
) -> None:
    check_writable(output)
    plan.check(address)
    with download_bars() as report:
        wanted = jobs(
            configs(study, choice, data_dir), output, accelerator=accelerator, data_dir=data_dir, report=report
        )
    workers = plan.open(len(wanted), address)
    progress = Silent() if quiet else Terminal()
    progress.say(f"{len(wanted)} runs in {output}; {workers}")
    results = sweep(wanted, workers, retries=plan.retries, progress=progress)
    _tell(results, output)


def _tell(results: Sequence[Result], output: Path) -> None:
    """The table and the page of what is finished; what is not is named, and the exit status is 1."""
    finished = [result.job.folder for result in results if result.finished]
    console = Console()
    if finished:
        console.print(*tables(runs.read(folder) for folder in finished), CAPTION, "", highlight=False, sep="\n")
        write(finished, output / "report.html")
        page = f"the page with curves and angles: {output / 'report.html'}"
        console.print(page, highlight=False, markup=False, soft_wrap=True)
    exit_if_unfinished(results)
