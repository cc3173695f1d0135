"""The results of a report: the paper's Table 2 with our numbers, and the differences between products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prproduct.captioning import paper
from prproduct.captioning.report.runs import Comparison, Group, ScoredStage
from prproduct.captioning.report.scores import COLUMNS
from prproduct.captioning.results import SHARE_TRUE
from prproduct.lab.report.content import (
    Block,
    Bullets,
    Chart,
    Code,
    Heading,
    Interval,
    IntervalPanel,
    Paragraph,
    Section,
    Table,
    Text,
    display,
    number,
    plus_minus,
)
from prproduct.lab.report.observations import BASELINE

Rows = list[tuple[Text, ...] | Heading]


def _columns(scored: Iterable[ScoredStage]) -> list[str]:
    """The columns of the scores, and the share of true captions if it is known."""
    known = any(one.sample(product, SHARE_TRUE) for one in scored for product in one.scores)
    return [*COLUMNS, *([SHARE_TRUE] if known else [])]


def results(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Section:
    """A section with Table 2, the reasons for missing numbers, and the differences to the inner product."""
    scored = [one for group in groups for one in group.scored_stages()]
    if not scored:
        run = next((run.record.folder for group in groups for run in group.runs if run.counts), "RUN")
        commands = (
            "No run has scored test captions yet. To score them: ",
            Code(f"prproduct caption --run {run} --split test --captions CAPTIONS --features FEATURES"),
            ", then ",
            Code(f"prproduct score CAPTIONS {run}"),
            ".",
        )
        return Section("Results", (Paragraph(commands),))
    blocks: list[Block] = [_table(scored), *_reasons(scored)]
    if comparisons:
        blocks += [_differences(comparisons), *_chart(comparisons)]
    return Section("Results", tuple(blocks))


def _table(scored: Sequence[ScoredStage]) -> Table:
    rows: Rows = []
    columns = _columns(scored)
    for one in scored:
        rows.append(Heading(_title(one)))
        for product, scores in one.scores.items():
            samples = [one.sample(product, column) for column in columns]
            ours = [plus_minus(sample.mean, sample.std, 1) if sample else "–" for sample in samples]
            rows.append((display(product), "ours", str(len(scores)), *ours))
            theirs = paper.TABLE_2[one.stage.phase].get(product)
            if theirs:
                rows.append(("", "paper", "", *(number(value, 1) for value in theirs), *_beyond(columns)))
    caption = (
        "The paper's Table 2: scores of test captions in percent, mean ± standard deviation over n seeds, and below "
        "ours the paper's, on other images. B1 to B4 are BLEU. Captions are those of the epoch with the best "
        "validation CIDEr, unless a heading says otherwise."
    )
    if SHARE_TRUE in columns:
        caption += " In the toy world it is known which captions are true: the last column is their share."
    return Table(caption, ("product", "", "n", *columns), "llr" + "r" * len(columns), tuple(rows))


def _beyond(columns: Sequence[str]) -> list[str]:
    """Empty cells for the columns that the paper's table does not have."""
    return [""] * (len(columns) - len(paper.METRICS))


def _title(one: ScoredStage) -> str:
    return f"{one.group.heading(one.stage.name)}; {one.search}"


def _reasons(scored: Sequence[ScoredStage]) -> list[Block]:
    """Why a column has no number, each reason once; and the runs without any scores."""
    reasons: dict[str, list[str]] = {}
    for one in scored:
        for scores in (scores for seeds in one.scores.values() for scores in seeds.values()):
            for column, reason in scores.reasons.items():
                columns = reasons.setdefault(reason, [])
                if column not in columns:
                    columns.append(column)
    lines = [f"No {', '.join(columns)}: {reason}" for reason, columns in reasons.items()]
    groups = {id(one.group): one.group for one in scored}.values()
    unscored = [run for group in groups for run in group.runs if run.counts and run.scores is None]
    lines += [f"{run.record.folder}: finished, but its test captions are not scored" for run in unscored]
    return [Bullets(tuple(lines))] if lines else []


def _differences(comparisons: Sequence[Comparison]) -> Table:
    rows: Rows = []
    columns = _columns(comparison.scored for comparison in comparisons)
    for comparison in comparisons:
        one, product = comparison.scored, comparison.product
        title = _title(one)
        if not any(isinstance(row, Heading) and row.text == title for row in rows):
            rows.append(Heading(title))
        ours = [one.difference(product, column) for column in columns]
        pairs = max((difference.n for difference in ours if difference), default=0)
        means = [number(difference.mean, 1, sign=True) if difference else "–" for difference in ours]
        rows.append((f"{display(product)} − P", "ours", str(pairs), *means))
        if product in paper.TABLE_2[one.stage.phase]:
            rows.append(("", "paper", "", *_paper_difference(one.stage.phase, product), *_beyond(columns)))
    caption = (
        "Differences to the inner product P over the seeds of both, ours and the paper's. Above 0 is better than P."
    )
    return Table(caption, ("", "", "pairs", *columns), "llr" + "r" * len(columns), tuple(rows))


def _paper_difference(phase: str, product: str) -> list[str]:
    rows = paper.TABLE_2[phase]
    return [number(a - b, 1, sign=True) for a, b in zip(rows[product], rows[BASELINE], strict=True)]


def _chart(comparisons: Sequence[Comparison]) -> list[Block]:
    """The differences of CIDEr with their intervals, where there is more than one pair."""
    intervals = dict[str, list[Interval]]()
    for comparison in comparisons:
        one, difference = comparison.scored, comparison.difference
        if difference is None or difference.n == 1:
            continue
        ours, base = one.values(comparison.product, "CIDEr"), one.values(BASELINE, "CIDEr")
        points = tuple(ours[seed] - base[seed] for seed in ours if seed in base)
        name = one.group.heading(one.stage.name)
        drawn = Interval(name, comparison.product, points, difference.mean, difference.low, difference.high)
        intervals.setdefault(comparison.product, []).append(drawn)
    panels = [
        IntervalPanel(f"{display(product)} − P", "points of CIDEr", tuple(own)) for product, own in intervals.items()
    ]
    caption = (
        "CIDEr of test captions minus that of P: each dot a pair of runs with the same seed, the diamond their mean, "
        "the line its 95 % interval. Right of zero the product is better. Scales differ."
    )
    return [Chart(caption, tuple(panels))] if panels else []
