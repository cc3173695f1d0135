"""The results of a report: the paper's Table 2 with our numbers, differences between products, and example captions.

Also what differs between the paper and our runs, and the paper's Tables 3 and 4 for reference.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from prproduct.captioning import paper
from prproduct.captioning.data.pictures import Reader, UnreadableError, find
from prproduct.captioning.inference import PHASE_NAMES
from prproduct.captioning.metrics.files import ImageId, read_results
from prproduct.captioning.report.runs import COLUMNS, SHARE_TRUE, Comparison, Group, Run, ScoredStage
from prproduct.captioning.results import Example, captions_file, examples_file, read_examples
from prproduct.lab.report.content import (
    Block,
    Bullets,
    Card,
    Chart,
    Code,
    Folded,
    Heading,
    Interval,
    IntervalPanel,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    display,
    number,
    p_text,
    plus_minus,
)
from prproduct.lab.report.observations import BASELINE

SHOWN = 6  # examples that are not folded
_SIDE = 360  # pixels of the longer side of a picture
Rows = list[tuple[Text, ...] | Heading]
BASELINES = {"greedy": "the greedy caption", "others": "the mean of the image's others"}


def _columns(scored: Iterable[ScoredStage]) -> list[str]:
    """The columns of Table 2, and the share of true captions if it is known."""
    known = any(one.sample(product, SHARE_TRUE) for one in scored for product in one.scores)
    return [*COLUMNS, *([SHARE_TRUE] if known else [])]


def results(groups: Sequence[Group], found: Sequence[Comparison]) -> Section:
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
    if found:
        blocks += [_differences(found), *_tests(found)]
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
        caption += " In the small world it is known which captions are true: the last column is their share."
    return Table(caption, ("product", "", "n", *columns), "llr" + "r" * len(columns), tuple(rows))


def _beyond(columns: Sequence[str]) -> list[str]:
    """Empty cells for the columns that the paper's table does not have."""
    return [""] * (len(columns) - len(COLUMNS))


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


def _differences(found: Sequence[Comparison]) -> Table:
    rows: Rows = []
    columns = _columns(comparison.scored for comparison in found)
    for comparison in found:
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


def _tests(found: Sequence[Comparison]) -> list[Block]:
    """The differences of CIDEr with their intervals and tests, where there is more than one pair."""
    several = [comparison for comparison in found if comparison.difference and comparison.difference.n > 1]
    rows, intervals = [], dict[str, list[Interval]]()
    for comparison in several:
        one, difference = comparison.scored, comparison.difference
        assert difference
        name = one.group.heading(one.stage.name)
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
    """A section on the differences between the paper's settings and ours, with its Tables 3 and 4."""
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
    """The settings of a group's runs, by the keys of `paper.SETTING`."""
    scored = list(group.scored_stages())
    images = dict.fromkeys(f"{s.images:,}" for one in scored for seeds in one.scores.values() for s in seeds.values())
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
        "width": ", by ".join(str(value) for value in (group.data["width"], group.data.get("encoder")) if value),
        "network": f"{settings['hidden']}/{settings.get('embedding')}/{settings.get('attention')}",
        "epochs": ", ".join(f"{PHASE_NAMES[s.phase]} {s.settings['epochs']}" for s in group.stages),
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
        "search": " and ".join(dict.fromkeys(one.search.split(", ")[1] for one in scored)) or "–",
        "epoch": " and ".join(dict.fromkeys(_epoch_name(one.search) for one in scored)) or "–",
        "seeds": ", ".join(counts) or "none finished",
    }


def _rewarded(own: Mapping[str, Any]) -> str:
    """The captions that a stage of REINFORCE rewards, in words."""
    return f"the {own['samples']} best of a beam search" if own["candidates"] == "beam" else f"{own['samples']} drawn"


def _beams(count: Any) -> str:
    return "the likeliest words" if count == 1 else f"{count} beams"


def _epoch_name(search: str) -> str:
    return "best validation CIDEr" if "best epoch" in search else "the last"


def _methods() -> Table:
    rows: Rows = []
    for rl, title in ((False, PHASE_NAMES["xe"]), (True, PHASE_NAMES["rl"])):
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
            trained = PHASE_NAMES["rl"] if method.rl else PHASE_NAMES["xe"]
            rows.append((method.name, trained, *(number(value, 1) for value in method.numbers)))
    columns = [f"{metric} {count}" for metric in paper.SERVER_METRICS for count in paper.REFERENCES]
    caption = "As the paper has them, in percent; C5 is with 5 references an image, C40 with 40."
    return Table(caption, ("method", "training", *columns), "ll" + "r" * len(columns), tuple(rows))


def gallery(groups: Sequence[Group], pictures: Path | None = None) -> list[Section]:
    """Sections with example captions of each group; `pictures` is a folder or zip archive of the images, if given."""
    found = {id(group): _examples(group) for group in groups}
    files = {one.file: one.image for some in found.values() for one in some}
    thumbnails, unread = _thumbnails(pictures, files) if pictures and files else ({}, [])
    sections = []
    for group in groups:
        cards = _cards(group, found[id(group)], thumbnails)
        if cards:
            opening = Paragraph(
                "Test images, evenly spread, not chosen; captions of the smallest seed of each product."
            )
            folded = [Folded(f"{len(cards) - SHOWN} more", tuple(cards[SHOWN:]))] if len(cards) > SHOWN else []
            blocks: tuple[Block, ...] = (opening, *cards[:SHOWN], *folded)
            sections.append(Section(group.name, blocks, level=3))
    if sections:
        notes = [Paragraph(f"No picture of {name}: {reason}", note=True) for name, reason in unread]
        sections.insert(0, Section("Examples", tuple(notes)))
    return sections


def _examples(group: Group) -> list[Example]:
    """The examples of the first run that has them; all runs of a group have the same."""
    for run in group.runs:
        path = examples_file(run.record.folder, "test")
        if run.counts and path.exists():
            return read_examples(path)
    return []


def _cards(group: Group, chosen: Sequence[Example], thumbnails: dict[ImageId, bytes]) -> list[Card]:
    """A card for each example: its references, and the captions of each product and stage."""
    generated: list[tuple[str, dict[ImageId, str]]] = []
    for stage in group.stages:
        for product, runs in stage.counted.items():
            captions = _captions(runs[seed] for seed in sorted(runs))
            if captions:
                generated.append((f"{display(product)}, {stage.name}", captions))
    cards = []
    for example in chosen if generated else []:
        people: list[tuple[str, Text]] = [("people", reference) for reference in example.references]
        ours: list[tuple[str, Text]] = [
            (label, Strong(captions[example.image] or "(no word)"))
            for label, captions in generated
            if example.image in captions
        ]
        cards.append(Card(f"{example.file} ({example.image})", (*people, *ours), thumbnails.get(example.image)))
    return cards


def _captions(runs: Iterable[Run]) -> dict[ImageId, str]:
    """The test captions of the first run that has them."""
    for run in runs:
        path = captions_file(run.record.folder, "test")
        if path.exists():
            return read_results(path)
    return {}


def _thumbnails(place: Path, files: dict[str, ImageId]) -> tuple[dict[ImageId, bytes], list[tuple[str, str]]]:
    """Small JPEGs by image id, and the names of files that could not be read, with the reason."""
    found, unread = {}, []
    names = {Path(file).name: (file, image) for file, image in files.items()}
    known = {picture.id: picture for picture in find([place], {name: image for name, (_, image) in names.items()})}
    with Reader() as reader:
        for file, image in names.values():
            if image not in known:
                unread.append((file, f"not in {place}"))
                continue
            try:
                found[image] = _jpeg(reader.read(known[image]))
            except UnreadableError as error:
                unread.append((file, str(error)))
    return found, unread


def _jpeg(picture: Image.Image) -> bytes:
    picture.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=82, optimize=True)
    return stream.getvalue()
