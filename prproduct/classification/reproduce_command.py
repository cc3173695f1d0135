"""The commands `prproduct reproduce gradients` and `cifar`: a sweep, tables on the terminal, and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from prproduct.classification.data.fetch import download_bars
from prproduct.classification.report import write
from prproduct.classification.report.comparison import MEASURES, Group, groups
from prproduct.classification.studies import Choice, configs, jobs
from prproduct.lab import runs
from prproduct.lab.files import check_writable
from prproduct.lab.options import DataDir, Quiet, takes_options_of
from prproduct.lab.progress import NoSweepProgress
from prproduct.lab.report.content import display, plus_minus
from prproduct.lab.report.files import check_target
from prproduct.lab.report.observations import BASELINE
from prproduct.lab.runs import Record
from prproduct.lab.sweep import Plan, Result, sweep
from prproduct.lab.sweep.progress import SweepProgress, exit_if_unfinished

Output = Annotated[Path, typer.Option("--output", "-o", help="the folder of the runs, their table and their page")]
# An argument after the flag --ray: Typer has no options with an optional value.
Address = Annotated[str | None, typer.Argument(help="of a Ray cluster, behind --ray", show_default=False)]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, cuda, mps")]
CAPTION = (
    "± is the standard deviation over n seeds. The selected epoch is that with the smallest validation error. "
    "Differences to P are taken seed by seed; below 0 is better."
)


def _command(study: str) -> Callable[..., None]:
    """Return the command of a study."""

    @takes_options_of(Choice, Plan)
    def reproduce(
        choice: Choice,
        plan: Plan,
        output: Output = Path("runs", study),
        address: Address = None,
        data_dir: DataDir = None,
        accelerator: Accelerator = "auto",
        quiet: Quiet = False,
    ) -> None:
        """Train the runs of a study, print its tables, and write its page."""
        check_writable(output)
        if output.is_dir():
            check_target(output / "report.html")
        plan.check(address)
        with download_bars() as report:
            runs_of_study = configs(study, choice, data_dir)
            wanted = jobs(runs_of_study, output, accelerator=accelerator, data_dir=data_dir, report=report)
        workers = plan.open(len(wanted), address)
        progress = NoSweepProgress() if quiet else SweepProgress()
        progress.say(f"{len(wanted)} runs in {output}; {workers}")
        results = sweep(wanted, workers, retries=plan.retries, progress=progress)
        _show(results, output)

    return reproduce


gradients = _command("gradients")
cifar = _command("cifar")


def _show(results: Sequence[Result], output: Path) -> None:
    """Print the tables and write the page; name the runs that did not finish, and exit with status 1."""
    finished = [result.job.folder for result in results if result.finished]
    if finished:
        Console().print(*tables([runs.read(folder) for folder in finished]), CAPTION, "", highlight=False, sep="\n")
        begun = [result.job.folder for result in results if (result.job.folder / runs.CONFIG).exists()]
        write(begun, output / "report.html")  # it lists those that diverged, too
        typer.echo(f"the page with curves and angles: {output / 'report.html'}")
    exit_if_unfinished(results)


def tables(records: Sequence[Record]) -> list[Table]:
    """Return a table of test errors, for a terminal of 80 columns, for each group of comparable finished runs."""
    return [_table(group) for group in groups(records)]


def _table(group: Group) -> Table:
    title = f"{group.name}: test error in %"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    shown.add_column("product", no_wrap=True)
    for name in ("n", "last epoch", "selected", "last − P", "selected − P"):
        shown.add_column(name, justify="right", no_wrap=True)
    for product, counted in group.counted.items():
        means = [group.sample(product, measure) for measure in MEASURES]
        differences = [group.difference(product, measure) for measure in MEASURES if product != BASELINE]
        cells = [plus_minus(found.mean, found.std) if found else "" for found in means]
        cells += [plus_minus(found.mean, found.std, sign=True) if found else "" for found in differences]
        shown.add_row(display(product), str(len(counted)), *cells)
    return shown
