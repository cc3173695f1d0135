"""The paper's Table 2 with our numbers in it, the differences between products, and what differs from the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prproduct.captioning import paper
from prproduct.captioning.report.scores import COLUMNS, SHARE_TRUE
from prproduct.captioning.report.stages import PHASES, Comparison, Group, Judged
from prproduct.lab.report.charts import display
from prproduct.lab.report.content import (
    Block,
    Bullets,
    Chart,
    Code,
    Folded,
    Heading,
    Interval,
    IntervalPanel,
    Paragraph,
    Section,
    Table,
    Text,
    number,
    p_text,
    plus_minus,
)
from prproduct.lab.report.observations import BASELINE

Rows = list[tuple[Text, ...] | Heading]
BASELINES = {"greedy": "the greedy caption", "others": "the mean of the image's others"}


def _columns(judged: Iterable[Judged]) -> list[str]:
    """Table 2's, and the share of true captions where it is known."""
    known = any(one.sample(product, SHARE_TRUE) for one in judged for product in one.scores)
    return [*COLUMNS, *([SHARE_TRUE] if known else [])]


def results(groups: Sequence[Group], found: Sequence[Comparison]) -> Section:
    """Table 2, what is missing in it, and the differences to the inner product."""
    judged = [one for group in groups for one in group.judged()]
    if not judged:
        run = next((run.record.folder for group in groups for run in group.runs if run.counts), "RUN")
        commands = (
            "No run has scored test captions yet. To score them: ",
            Code(f"prproduct caption --run {run} --split test --captions CAPTIONS --features FEATURES"),
            ", then ",
            Code(f"prproduct score CAPTIONS {run}"),
            ".",
        )
        return Section("Results", (Paragraph(commands),))
    blocks: list[Block] = [_table(judged), *_reasons(judged)]
    if found:
        blocks += [_differences(found), *_tests(found)]
    return Section("Results", tuple(blocks))


def _table(judged: Sequence[Judged]) -> Table:
    rows: Rows = []
    columns = _columns(judged)
    for one in judged:
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
        caption += " In the small world it is known which captions are true: the last column is their share."
    return Table(caption, ("product", "", "n", *columns), "llr" + "r" * len(columns), tuple(rows))


def _beyond(columns: Sequence[str]) -> list[str]:
    """Empty cells of the columns that the paper's table does not have."""
    return [""] * (len(columns) - len(COLUMNS))


def _title(one: Judged) -> str:
    return f"{one.group.titled(one.stage.name)}; {one.search}"


def _reasons(judged: Sequence[Judged]) -> list[Block]:
    """Why a column has no number, each reason once; and which runs have none at all."""
    reasons: dict[str, list[str]] = {}
    for one in judged:
        for scores in (scores for seeds in one.scores.values() for scores in seeds.values()):
            for column, reason in scores.reasons.items():
                columns = reasons.setdefault(reason, [])
                if column not in columns:
                    columns.append(column)
    lines = [f"No {', '.join(columns)}: {reason}" for reason, columns in reasons.items()]
    groups = {id(one.group): one.group for one in judged}.values()
    unscored = [run for group in groups for run in group.runs if run.counts and run.scores is None]
    lines += [f"{run.record.folder}: finished, but its test captions are not scored" for run in unscored]
    return [Bullets(tuple(lines))] if lines else []


def _differences(found: Sequence[Comparison]) -> Table:
    rows: Rows = []
    columns = _columns(comparison.judged for comparison in found)
    for comparison in found:
        one, product = comparison.judged, comparison.product
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


def _tests(found: Sequence[Comparison]) -> list[Block]:
    """The differences of CIDEr with their intervals and tests, where there is more than one pair."""
    several = [comparison for comparison in found if comparison.difference and comparison.difference.n > 1]
    rows, intervals = [], dict[str, list[Interval]]()
    for comparison in several:
        one, difference = comparison.judged, comparison.difference
        assert difference
        name = one.group.titled(one.stage.name)
        between = f"{number(difference.low, 1, sign=True)} to {number(difference.high, 1, sign=True)}"
        mean, p_value, adjusted = number(difference.mean, 1, sign=True), difference.p_value, comparison.adjusted
        rows.append(
            (
                f"{display(comparison.product)} − P",
                name,
                str(difference.n),
                mean,
                between,
                p_text(p_value),
                p_text(adjusted),
            )
        )
        ours, base = one.values(comparison.product, "CIDEr"), one.values(BASELINE, "CIDEr")
        points = tuple(ours[seed] - base[seed] for seed in ours if seed in base)
        drawn = Interval(name, comparison.product, points, difference.mean, difference.low, difference.high)
        intervals.setdefault(comparison.product, []).append(drawn)
    if not rows:
        return []
    header = ("", "where", "pairs", "CIDEr", "95 % interval", "p", "p (Holm)")
    table = Table("The test of these differences, by CIDEr.", header, "llrrrrr", tuple(rows))
    panels = [
        IntervalPanel(f"{display(product)} − P", "points of CIDEr", tuple(own)) for product, own in intervals.items()
    ]
    caption = (
        "CIDEr of test captions minus that of P: each dot a pair of runs with the same seed, the diamond their mean, "
        "the line its 95 % interval. Right of zero the product is better. Scales differ."
    )
    return [table, Chart(caption, tuple(panels))]


def beside_paper(groups: Sequence[Group]) -> Section:
    """What differs between the paper and ours, and its Tables 3 and 4 for reference."""
    names = {
        "captions": "captions",
        "test_images": "test images",
        "words": "words",
        "width": "features",
        "network": "hidden/embedding/attention",
        "epochs": "epochs",
        "batch": "images a step",
        "rate": "learning rate",
        "decay": "its decay",
        "dropout": "dropout",
        "rl_dropout": "dropout in REINFORCE",
        "loss": "loss of REINFORCE",
        "rewarded": "REINFORCE rewards",
        "baseline": "… compared with the reward of",
        "inputs": "layers into the Language LSTM",
        "validation": "search for validation captions",
        "search": "search for test captions",
        "epoch": "epoch that is tested",
        "seeds": "seeds",
    }
    rows = [(names[key], value, *(_own(group)[key] for group in groups)) for key, value in paper.SETTING.items()]
    header = ("", "the paper", *(group.name for group in groups))
    caption = "What differs between the paper and ours. In brackets: not in the paper, but in its author's public code."
    return Section(
        "Compared with the paper",
        (
            Table(caption, header, "l" * len(header), tuple(rows)),
            Folded("The paper's Table 3: other methods on the test images of Karpathy's split", (_methods(),)),
            Folded("The paper's Table 4: COCO's evaluation server, with 5 and with 40 references", (_server(),)),
        ),
    )


def _own(group: Group) -> dict[str, str]:
    """What a group's runs did, under the paper's keys."""
    judged = list(group.judged())
    images = dict.fromkeys(f"{s.images:,}" for one in judged for seeds in one.scores.values() for s in seeds.values())
    later = [stage.settings for stage in group.stages if stage.phase == "rl"]
    settings = group.settings
    rates = [f"{settings.get('learning_rate')}", *(f"in REINFORCE {own.get('learning_rate')}" for own in later)]
    beams = dict.fromkeys(_beams(s.settings.get("beams")) for s in group.stages)
    counts = dict.fromkeys(
        f"{display(product)} {len(runs)}" for stage in group.stages for product, runs in stage.counted.items()
    )
    return {
        "captions": group.captions,
        "test_images": " and ".join(images) or "–",
        "words": f"{group.data['words'] - 1:,}",
        "width": ", by ".join(str(told) for told in (group.data["width"], group.data.get("encoder")) if told),
        "network": f"{settings['hidden']}/{settings.get('embedding')}/{settings.get('attention')}",
        "epochs": ", ".join(f"{PHASES[s.phase]} {s.settings['epochs']}" for s in group.stages),
        "batch": str(settings.get("batch_size")),
        "rate": ", ".join(dict.fromkeys(rates)),
        "decay": f"cosine by step, to {100 * settings.get('final_rate', 0):g} % of it",
        "dropout": f"{settings.get('dropout')}, also on words",
        "rl_dropout": "none" if later else "–",
        "loss": "mean over captions" if later else "–",
        "rewarded": " and ".join(dict.fromkeys(map(_rewarded, later))) or "–",
        "baseline": " and ".join(dict.fromkeys(BASELINES[own["baseline"]] for own in later)) or "–",
        "inputs": "one for v̂ and one for h¹",
        "validation": " and ".join(beams),
        "search": " and ".join(dict.fromkeys(one.search.split(", ")[1] for one in judged)) or "–",
        "epoch": " and ".join(dict.fromkeys(_epoch_told(one.search) for one in judged)) or "–",
        "seeds": ", ".join(counts) or "none finished",
    }


def _rewarded(own: Mapping[str, Any]) -> str:
    """Which captions a stage of REINFORCE rewards."""
    return f"the {own['samples']} best of a beam search" if own["candidates"] == "beam" else f"{own['samples']} drawn"


def _beams(count: Any) -> str:
    return "the likeliest words" if count == 1 else f"{count} beams"


def _epoch_told(search: str) -> str:
    return "best validation CIDEr" if "best epoch" in search else "the last"


def _methods() -> Table:
    rows: Rows = []
    for rl, title in ((False, PHASES["xe"]), (True, PHASES["rl"])):
        rows.append(Heading(title))
        rows += [_method(method) for method in paper.TABLE_3 if method.rl == rl]
    header = ("method", "models", *paper.METRICS)
    return Table("As the paper has them, in percent.", header, "ll" + "r" * len(paper.METRICS), tuple(rows))


def _method(method: paper.Method) -> tuple[Text, ...]:
    kind = "ensemble" if method.ensemble else "one"
    return (method.name, kind, *(number(value, 1) for value in method.numbers))


def _server() -> Table:
    rows: Rows = []
    for ensemble, title in ((True, "several models together"), (False, "single models")):
        rows.append(Heading(title))
        for method in (method for method in paper.TABLE_4 if method.ensemble == ensemble):
            trained = PHASES["rl"] if method.rl else PHASES["xe"]
            rows.append((method.name, trained, *(number(value, 1) for value in method.numbers)))
    columns = [f"{metric} {count}" for metric in paper.SERVER_METRICS for count in paper.REFERENCES]
    caption = "As the paper has them, in percent; C5 is with 5 references an image, C40 with 40."
    return Table(caption, ("method", "training", *columns), "ll" + "r" * len(columns), tuple(rows))
