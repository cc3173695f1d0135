"""What finished runs say, as tables for a terminal of 80 columns; the page says more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table

from prproduct.lab.report.content import display, number, ordered
from prproduct.lab.report.statistics import PairedDifference, Sample, paired_difference
from prproduct.lab.runs import Record

_WHICH = ("last", "selected")  # epochs, as the record of a run's end names them
CAPTION = (
    "± is the standard deviation over n seeds. The selected epoch is that with the smallest validation error. "
    "Differences to P are taken seed by seed; below 0 is better."
)


def tables(records: Iterable[Record]) -> list[Table]:
    """Test errors of finished runs, a table for each network and data set."""
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
    """Test errors in percent by seed, of the last or of the selected epoch; runs that selected none are left out."""
    ends = {record.config["config"]["seed"]: record.of("end")[0][which] for record in records}
    return {seed: 100 * end["test_error"] for seed, end in ends.items() if end}


def mean_and_deviation(sample: Sample | PairedDifference | None, sign: str = "") -> str:
    """Mean ± standard deviation; a single value has none.

    >>> mean_and_deviation(Sample.of([1.0, 3.0])), mean_and_deviation(Sample.of([-0.25]), sign="+")
    ('2.00 ± 1.41', '−0.25')
    """
    if sample is None:
        return ""
    deviation = f" ± {number(sample.std)}" if sample.std is not None else ""
    return f"{number(sample.mean, sign=bool(sign))}{deviation}"
