"""What finished runs say, as a table for the terminal; the page says more."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from prproduct.lab.runs import Record

_WHICH = ("last", "selected")  # epochs, as the record of a run's end names them
_CAPTION = (
    "± is the standard deviation over seeds. The selected epoch is that with the smallest validation error. "
    "Differences to P are taken seed by seed; below 0 is better."
)


def table(records: Sequence[Record]) -> Table:
    """Test errors of finished runs: for each network, data set and product mean ± deviation over seeds."""
    shown = Table(title="Test error in %", caption=_CAPTION, caption_justify="left")
    for name in ("network", "data", "product"):
        shown.add_column(name, no_wrap=True)
    for name in ("n", "last epoch", "selected", "last − P", "selected − P"):
        shown.add_column(name, justify="right", no_wrap=True)
    groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        config = record.config["config"]
        groups.setdefault((config["arch"], config["data"]), {}).setdefault(config["product"], []).append(record)
    for (arch, data), products in groups.items():
        shown.add_section()
        for name, own in products.items():
            errors = [errors_by_seed(own, which) for which in _WHICH]
            baseline = [errors_by_seed(products.get("p", []), which) if name != "p" else {} for which in _WHICH]
            differences = [_differences(e, b) for e, b in zip(errors, baseline, strict=True)]
            numbers = [*map(mean_and_deviation, [list(e.values()) for e in errors])]
            numbers += [mean_and_deviation(d, sign="+") for d in differences]
            shown.add_row(arch, data, name, str(len(own)), *numbers)
    return shown


def errors_by_seed(records: Sequence[Record], which: str) -> dict[int, float]:
    """Test errors in percent by seed, of the last or of the selected epoch; runs that selected none are left out."""
    ends = {record.config["config"]["seed"]: record.of("end")[0][which] for record in records}
    return {seed: 100 * end["test_error"] for seed, end in ends.items() if end}


def mean_and_deviation(values: Sequence[float], sign: str = "") -> str:
    """Mean ± standard deviation; a single value has none.

    >>> mean_and_deviation([1.0, 3.0]), mean_and_deviation([-0.25], sign="+"), mean_and_deviation([])
    ('2.00 ± 1.41', '-0.25', '')
    """
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.2f}{deviation}"


def _differences(values: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    return [value - baseline[seed] for seed, value in values.items() if seed in baseline]
