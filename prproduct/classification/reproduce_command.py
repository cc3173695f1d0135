"""The commands `prproduct reproduce gradients` and `cifar`: a sweep, tables on the terminal, and a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from prproduct.classification.data.fetch import download_bars
from prproduct.classification.report import write
from prproduct.classification.studies import Choice, configs, jobs
from prproduct.lab import runs
from prproduct.lab.files import check_writable
from prproduct.lab.options import takes_options_of
from prproduct.lab.progress import Silent
from prproduct.lab.report.content import display, number, ordered
from prproduct.lab.report.statistics import PairedDifference, Sample, paired_difference
from prproduct.lab.runs import Record
from prproduct.lab.sweep import Plan, Result, sweep
from prproduct.lab.sweep.progress import Terminal, exit_if_unfinished

Output = Annotated[Path, typer.Option("--output", "-o", help="the folder of the runs, their table and their page")]
# An argument after the flag --ray: Typer has no options with an optional value.
Address = Annotated[str | None, typer.Argument(help="of a Ray cluster, behind --ray", show_default=False)]
DataDir = Annotated[Path | None, typer.Option(help="the folder that holds data sets", show_default=False)]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, cuda, mps")]
Quiet = Annotated[bool, typer.Option("--quiet", help="show no progress")]
_WHICH = ("last", "selected")  # epochs: keys of the record of a run's end
CAPTION = (
    "± is the standard deviation over n seeds. The selected epoch is that with the smallest validation error. "
    "Differences to P are taken seed by seed; below 0 is better."
)


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
    _show(results, output)


def _show(results: Sequence[Result], output: Path) -> None:
    """Print the tables and write the page of the finished runs; name the others, and exit with status 1."""
    finished = [result.job.folder for result in results if result.finished]
    console = Console()
    if finished:
        console.print(*tables(runs.read(folder) for folder in finished), CAPTION, "", highlight=False, sep="\n")
        write(finished, output / "report.html")
        page = f"the page with curves and angles: {output / 'report.html'}"
        console.print(page, highlight=False, markup=False, soft_wrap=True)
    exit_if_unfinished(results)


def tables(records: Iterable[Record]) -> list[Table]:
    """Return a table of test errors, for a terminal of 80 columns, for each network and data set of finished runs."""
    groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        config = record.config["config"]
        groups.setdefault((config["arch"], config["data"]), {}).setdefault(config["product"], []).append(record)
    return [_table(f"{arch} on {data}: test error in %", products) for (arch, data), products in groups.items()]


def _table(title: str, products: Mapping[str, Sequence[Record]]) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    shown.add_column("product", no_wrap=True)
    for name in ("n", "last epoch", "selected", "last − P", "selected − P"):
        shown.add_column(name, justify="right", no_wrap=True)
    baseline = [errors_by_seed(products.get("p", ()), which) for which in _WHICH]
    for name in ordered(products):
        records = products[name]
        errors = [errors_by_seed(records, which) for which in _WHICH]
        cells = [mean_and_deviation(Sample.of(list(own.values())) if own else None) for own in errors]
        if name != "p":
            pairs = zip(errors, baseline, strict=True)
            cells += [mean_and_deviation(paired_difference(own, other), sign="+") for own, other in pairs]
        shown.add_row(display(name), str(len(records)), *cells)
    return shown


def errors_by_seed(records: Sequence[Record], which: str) -> dict[int, float]:
    """Return {seed: test error in percent} of the last or selected epoch; runs that selected none are left out."""
    ends = {record.config["config"]["seed"]: record.of("end")[0][which] for record in records}
    return {seed: 100 * end["test_error"] for seed, end in ends.items() if end}


def mean_and_deviation(sample: Sample | PairedDifference | None, sign: str = "") -> str:
    """Return "mean ± standard deviation"; a single value has no deviation.

    >>> mean_and_deviation(Sample.of([1.0, 3.0])), mean_and_deviation(Sample.of([-0.25]), sign="+")
    ('2.00 ± 1.41', '−0.25')
    """
    if sample is None:
        return ""
    deviation = f" ± {number(sample.std)}" if sample.std is not None else ""
    return f"{number(sample.mean, sign=bool(sign))}{deviation}"
