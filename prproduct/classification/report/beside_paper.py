"""The paper's numbers, how many seeds a difference of their size needs, and how its networks and ours were trained."""

from __future__ import annotations

from collections.abc import Sequence

from prproduct.classification import paper
from prproduct.classification.recipes import recipe
from prproduct.classification.report.comparison import Group
from prproduct.lab.report.content import (
    Block,
    Code,
    Heading,
    Paragraph,
    Section,
    Table,
    Text,
    display,
    number,
    plus_minus,
)
from prproduct.lab.report.observations import machine
from prproduct.lab.report.statistics import deviation_interval, pairs_needed

_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def beside_paper(groups: Sequence[Group]) -> Section | None:
    """Return the paper's Table 1 for runs on CIFAR, its study of gradients for Fashion-MNIST; None for other data."""
    cifar = [group for group in groups if group.data in _DATA]
    fashion = [group for group in groups if group.data == "fashion-mnist"]
    blocks: list[Block] = []
    if cifar:
        blocks += [_table_1(), _seeds(cifar), _differs(cifar)]
    if fashion:
        blocks += _gradient_study(fashion)
    return Section("Compared with the paper", tuple(blocks)) if blocks else None


def _table_1() -> Table:
    rows: list[tuple[Text, ...]] = []
    for row in (row for row in paper.TABLE_1 if row.data == "cifar10"):
        other = next(other for other in paper.TABLE_1 if (other.data, other.arch) == ("cifar100", row.arch))
        rows.append((row.network, *_three(row), *_three(other)))
    averages = [("", "", number(paper.AVERAGES[data], sign=True)) for data in _DATA]
    rows.append(("its averages", *averages[0], *averages[1]))
    header = ("network", *(text for name in _DATA.values() for text in (f"{name}: P", "PR", "PR − P")))
    caption = (
        "What the paper reports, its Table 1: test error in percent, one number for each network and product. Ours "
        "are in the sections above."
    )
    return Table(caption, header, "lrrrrrr", tuple(rows))


def _three(row: paper.Row) -> tuple[str, str, str]:
    return number(row.p), number(row.pr), number(row.difference, sign=True)


def _seeds(groups: Sequence[Group]) -> Block:
    """Return how many pairs it takes to detect a difference of the paper's size, given the observed deviation."""
    rows: list[tuple[Text, ...]] = []
    for group in groups:
        found = group.difference("pr", "last")
        if found is None or not found.std:
            continue
        size = paper.AVERAGES[group.data]
        low, high = deviation_interval(found.std, found.n)
        spread = f"{pairs_needed(size, low):,} to {pairs_needed(size, high):,}"
        seen = f"{number(found.std)} ({number(low)} to {number(high)})"
        rows.append(
            (group.name, str(found.n), seen, number(size, sign=True), f"{pairs_needed(size, found.std):,}", spread)
        )
    if not rows:
        return Paragraph("It takes at least two pairs to estimate how many a difference of the paper's size needs.")
    caption = (
        "How many pairs of runs a paired t test at 5 % needs to detect a difference as large as the paper's average "
        "with a probability of 80 %. That depends on the standard deviation of the differences, which a few pairs "
        "estimate only roughly: in brackets is its 95 % interval, in the last column what follows from its ends."
    )
    header = ("network and data", "pairs", "deviation of differences", "paper's average", "pairs needed", "between")
    return Table(caption, header, "lrrrrr", tuple(rows))


def _differs(groups: Sequence[Group]) -> Table:
    """Return a table of epochs, seeds, protocol and machine, the paper's and those of each group."""
    theirs = ("the paper", "not stated (164 to 300)", "one number", "none", "not stated (best)", "not stated")
    rows = [theirs, *(_own_settings(group) for group in groups)]
    header = ("", "epochs", "seeds of P, PR", "held out", "tested epoch", "machine")
    caption = (
        "How the paper's networks and ours were trained. In brackets: not in the paper, but in its author's public "
        "code. All settings of ours are in the section on runs."
    )
    return Table(caption, header, "llllll", tuple(rows))


def _own_settings(group: Group) -> tuple[str, ...]:
    held_out = {"validation": "a tenth", "paper": "none"}
    seeds = ", ".join(str(len(group.counted.get(product, {}))) for product in ("p", "pr"))
    counted = [run for runs in group.counted.values() for run in runs.values()]
    machines = "; ".join(dict.fromkeys(machine(run.record) for run in counted))
    protocol = str(group.settings["protocol"])
    epochs = f"{len(counted[0].epochs)} of the recipe's {recipe(group.arch, group.data).epochs}"
    return group.name, epochs, seeds, held_out.get(protocol, protocol), "last", machines


def _gradient_study(groups: Sequence[Group]) -> list[Block]:
    rows: list[tuple[Text, ...] | Heading] = []
    for group in groups:
        rows.append(Heading(group.name))
        for product in group.counted:
            sample = group.sample(product, "last")
            assert sample, "a run that counts has an error"
            accuracy, theirs = 100 - sample.mean, paper.GRADIENT_STUDY.get(product)
            distance = number(accuracy - theirs, sign=True) if theirs is not None else "–"
            ours = plus_minus(accuracy, sample.std)
            rows.append((display(product), number(theirs), ours, str(sample.n), distance))
    caption = (
        "The paper's study of length and direction gradient (§1): accuracy in percent on Fashion-MNIST, its number and "
        "ours after the last epoch."
    )
    header = ("product", "paper", "ours", "n", "ours − paper")
    note: Text = (
        "The paper says: a 5-layer fully connected network. Its width, optimizer, epochs and seeds are not stated; "
        "ours are in the section on runs. Nor does it state whether the variant without the direction gradient drops "
        "that of ∂/∂x as well (",
        Code("no-direction"),
        ") or only that of ∂/∂w (",
        Code("no-direction-w"),
        ").",
    )
    return [Table(caption, header, "lrrrr", tuple(rows)), Paragraph(note, note=True)]
