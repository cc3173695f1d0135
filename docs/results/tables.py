"""Write the tables of README.md and char-gpt.md anew from the records beside this file."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from studies import (
    GPT,
    HERE,
    RATES,
    SECONDARY,
    SHORT_CAPTIONERS,
    STUDIES,
    WITHOUT_GPT,
    Angles,
    Gain,
    Scores,
    Study,
    angles,
    captioner,
    char_gpt,
    folders,
    scores,
)

from prproduct.lab import runs
from prproduct.lab.report.statistics import PairedDifference, Sample, paired_difference, power


def _mean(values: list[float], study: Study) -> str:
    sample, digits = Sample.of(values), study.digits
    return f"{sample.mean:.{digits}f}" + ("" if sample.std is None else f" ± {sample.std:.{digits}f}")


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _interval(found: PairedDifference, single: list[float], digits: int) -> str:
    """Return the mean difference with its interval, which says nothing for two pairs: then with both."""
    text = f"**{_signed(found.mean, digits)}**"
    if found.low is None or found.high is None:
        return text
    if len(single) == 2:
        return f"{text} ({' and '.join(_signed(value, digits) for value in sorted(single))})"
    return f"{text} ({_signed(found.low, digits)} to {_signed(found.high, digits)})"


@dataclass(frozen=True)
class Compared:
    """A product against another, over the seeds that both have: means ± standard deviation, and the paired t test."""

    n: str
    own: str
    baseline: str
    difference: str  # with its 95 % interval, or both differences of two pairs
    p_value: str

    @classmethod
    def of(cls, study: Study, by_product: Scores, product: str, other: str = "p") -> Compared | None:
        """The comparison; None if no seed has both products."""
        own, baseline = (by_product.get(name, {}) for name in (product, other))
        found = paired_difference(own, baseline)
        if found is None:
            return None
        seeds = own.keys() & baseline.keys()
        mean, of_other = (_mean([by_seed[seed] for seed in sorted(seeds)], study) for by_seed in (own, baseline))
        single = [own[seed] - baseline[seed] for seed in seeds]
        p_value = "–" if found.p_value is None or found.n == 2 else f"{found.p_value:.2g}"
        return cls(str(found.n), mean, of_other, _interval(found, single, study.digits), p_value)


def difference_table(studies: tuple[Study, ...] = STUDIES) -> str:
    """Return the table of PR − P, one row for each of the studies that has pairs."""
    lines = [
        "| study | measure | n | P | PR | PR − P (95 % interval) | p | the paper's |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for study in studies:
        if c := Compared.of(study, scores(study), "pr"):
            columns = (study.name, study.measure, c.n, c.baseline, c.own, c.difference, c.p_value, study.paper)
            lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def excluded_table() -> str:
    """Return a row for each study: the gains and losses outside of the interval, the power, and the cost."""
    lines = [
        "| study | excluded: a gain above | a loss above | power for the paper's gain, in points | as a share of P "
        "| CPU time, PR / P |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for study in STUDIES:
        gain = Gain.of(study)
        if gain is None:
            continue
        low, high = gain.interval
        ends = ["any" if end <= 0 else f"{end:.{study.digits}f}" for end in (high, -low)]
        paper, std = gain.of_the_paper(study), gain.difference.std
        powers = [_percent(power(size, std, gain.difference.n)) if std else "–" for size in paper or ()] or ["–", "–"]
        lines.append("| " + " | ".join((study.name, *ends, *powers, _cost(study))) + " |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return "> 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def _cost(study: Study) -> str:
    """Return the ratio of the CPU time of training under PR to that under P, the median over pairs and its range."""
    if study.score is char_gpt:
        return "–"
    found = folders(study)
    own, of_p = ({seed: _seconds(study, run) for seed, run in found[name].items()} for name in ("pr", "p"))
    ratios = [own[seed] / of_p[seed] for seed in own if seed in of_p]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _seconds(study: Study, run: Path) -> float:
    record = runs.read(run / "xe" if study.score is captioner else run)
    return sum(epoch["time"]["cpu_seconds"] for epoch in record.of("epoch"))


def others_table(studies: tuple[Study, ...] = STUDIES, other: str = "p") -> str:
    """Return the table of every product but P and PR against one of these two, paired by seed."""
    lines = [
        f"| study | product | n | its score | {other.upper()}'s of these seeds | difference (95 % interval) | p |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for study in studies:
        by_product = scores(study)
        for product in sorted(by_product.keys() - {"p", "pr"}):
            if c := Compared.of(study, by_product, product, other):
                columns = (study.name, f"`{product}`", c.n, c.own, c.baseline, c.difference, c.p_value)
                lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def angle_table(found: list[Angles]) -> str:
    """Return a row for each study: layers in which min |sin θ| is larger under PR, by how much, ρ with the scores."""
    lines = [
        "| study | n | mean \\|sin θ\\| of P (least layer) | layers with a larger mean (pairs) | mean change "
        "| smallest and largest change of a layer | output layer (pairs in which larger) | ρ with the improvement |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        changes = [statistics.fmean(values.values()) for values in each.differences.values()]
        mean, smallest, largest, output = (
            _signed(value, 4) for value in (statistics.fmean(changes), min(changes), max(changes), changes[-1])
        )
        *_, pairs = each.differences.values()
        correlation = each.correlation()
        columns = (
            each.study.name,
            str(len(each.improvements)),
            f"{statistics.fmean(each.typical.values()):.3f} ({min(each.typical.values()):.3f})",
            each.grown(),
            mean,
            f"{smallest} to {largest}",
            f"{output} ({sum(value > 0 for value in pairs.values())} of {len(pairs)})",
            "–" if correlation is None else f"{_signed(correlation[0], 2)} (p = {correlation[1]:.2g})",
        )
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def pages() -> dict[str, list[str]]:
    """Return the tables of each page."""
    found = [each for study in STUDIES if (each := angles(study))]
    differences = difference_table()
    return {
        "README.md": [
            differences,
            excluded_table(),
            difference_table(SECONDARY),
            others_table((*WITHOUT_GPT, SHORT_CAPTIONERS)),
            angle_table(found),
        ],
        "char-gpt.md": [difference_table(RATES), others_table(GPT), others_table(GPT, "pr")],
        "../../README.md": [differences],
    }


def with_tables(text: str, tables: list[str]) -> str:
    """Return a page with these tables in place of those with the same headers, from top to bottom."""
    end = 0
    for table in tables:
        header = "".join(table.splitlines(keepends=True)[:2])
        start = text.index(header, end)
        text = text[:start] + table + text[text.index("\n\n", start) :]
        end = start + len(table)
    return text


def main() -> None:
    """Write the tables."""
    for page, tables in pages().items():
        path = HERE / page
        path.write_text(with_tables(path.read_text(), tables))


if __name__ == "__main__":
    main()
