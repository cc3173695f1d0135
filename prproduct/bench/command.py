"""The command `prproduct bench`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast, get_args

import torch
from rich.console import Console
from typer import Option

from prproduct.bench import plot as picture
from prproduct.bench.cases import Case, chosen, swept
from prproduct.bench.machine import Machine, check_device
from prproduct.bench.measure import measure
from prproduct.bench.results import Report, Settings, remarks, table
from prproduct.bench.timing import Budget
from prproduct.lab.errors import InputError
from prproduct.lab.progress import progress_bar
from prproduct.ops import kernels
from prproduct.ops.autograd import Memory
from prproduct.products import resolve

_WIDTH = 130  # columns of a table that is printed to a file or a pipe
DTYPES = ("float32", "float64", "bfloat16", "float16")


def bench(
    only: Annotated[list[str] | None, Option(help="A part of a name, or a group; may be given several times.")] = None,
    product: Annotated[str, Option(help="The product under which ours runs.")] = "pr",
    dtype: Annotated[str, Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    autocast: Annotated[bool, Option("--autocast", help="bfloat16 under autocast on both sides.")] = False,
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, …: where it is measured.")] = "cpu",
    threads: Annotated[int | None, Option(help="Torch's threads; as many as torch takes, if not given.")] = None,
    memory: Annotated[str, Option(help="save or recompute: whether ours keeps outputs for backward.")] = "save",
    compile: Annotated[bool, Option("--compile", help="torch.compile on both sides.")] = False,
    repeats: Annotated[int, Option(help="Rounds at least; short steps get more.")] = Budget.rounds,
    reference: Annotated[bool, Option(help="Measure the literal formula too, which is slow.")] = True,
    sweep: Annotated[str | None, Option(help="Instead of the table: channels, batch or features.")] = None,
    json: Annotated[bool, Option("--json", help="Print every single time as JSON instead of a table.")] = False,
    plot: Annotated[Path | None, Option(help="Draw the ratios into this file.")] = None,
) -> None:
    """Measure time and saved memory of layers and nets: native, under a product, and by the literal formula."""
    settings = _settings(product, dtype, threads, compile, sweep, memory, autocast, device)
    if repeats < 2:
        raise InputError(f"--repeats {repeats}: a spread needs at least 2")
    if sweep is not None and only:
        raise InputError("--only chooses rows of the table, and --sweep measures others: give one of them")
    cases = chosen(only or []) if sweep is None else swept(sweep)[1]
    if plot is not None:
        picture.check_path(plot)
    report = Report(Machine.here(device), settings, [])
    if not json:
        print(f"{settings}; of layers forward and backward, of nets a whole step", flush=True)
        print(f"{report.machine}; eager backward by {kernels.implementation(device)}", flush=True)
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        _measure_all(cases, report, Budget(rounds=repeats), reference)
    finally:
        torch.set_num_threads(before)
        if report.rows:  # after Ctrl-C, those measured so far
            _show(report, json, plot)


def _settings(
    product: str,
    dtype: str,
    threads: int | None,
    compile: bool,
    sweep: str | None,
    memory: str,
    autocast: bool,
    device: str,
) -> Settings:
    check_device(device)
    if memory not in get_args(Memory):
        raise InputError(f"--memory {memory}: unknown; there are {', '.join(get_args(Memory))}")
    try:
        resolve(product)
    except (ValueError, TypeError) as error:
        raise InputError(f"--product {product}: {error}") from None
    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype}: unknown; there are {', '.join(DTYPES)}")
    if autocast and dtype != "float32":
        raise InputError(f"--autocast casts float32 parameters: leave --dtype {dtype} out")
    threads = torch.get_num_threads() if threads is None else threads
    most = os.cpu_count() or 1
    if not 1 <= threads <= most:
        raise InputError(f"--threads {threads}: this machine takes 1 to {most}")
    return Settings(product, dtype, autocast, threads, compile, sweep, cast(Memory, memory), device)


def _measure_all(cases: Sequence[Case], report: Report, budget: Budget, reference: bool) -> None:
    """Append a row to the report for each case."""
    with progress_bar(total=len(cases)) as update:
        for case in cases:
            update(description=case.name)
            report.rows.append(measure(case, report.settings, budget, reference))
            update(advance=1)


def _show(report: Report, json: bool, plot: Path | None) -> None:
    if json:
        print(report.to_json())
    else:
        console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
        console.print(table(report))
        for line in remarks(report):
            print(line)
    if plot is not None:
        picture.save(report, plot)
