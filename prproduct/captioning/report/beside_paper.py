"""The section of a report on what differs between the paper's settings and ours, with the paper's Tables 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prproduct.captioning import paper
from prproduct.captioning.inference import PHASE_NAMES
from prproduct.captioning.report.runs import Group
from prproduct.captioning.report.scores import beams_text
from prproduct.lab.report.content import Folded, Heading, Section, Table, Text, display, number

BASELINES = {"greedy": "the greedy caption", "others": "the mean of the image's others"}


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
    ours = [_our_settings(group) for group in groups]
    rows = [(names[key], value, *(settings[key] for settings in ours)) for key, value in paper.SETTING.items()]
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


def _our_settings(group: Group) -> dict[str, str]:
    """The settings of a group's runs, by the keys of `paper.SETTING`."""
    scored = list(group.scored_stages())
    images = dict.fromkeys(f"{s.images:,}" for one in scored for seeds in one.scores.values() for s in seeds.values())
    later = [stage.settings for stage in group.stages if stage.phase == "rl"]
    settings = group.settings
    rates = [f"{settings.get('learning_rate')}", *(f"in REINFORCE {own.get('learning_rate')}" for own in later)]
    beams = dict.fromkeys(beams_text(s.settings.get("beams")) for s in group.stages)
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


def _epoch_name(search: str) -> str:
    """The epoch that is tested, from the words of `Scores.search`."""
    return "best validation CIDEr" if "best epoch" in search else "the last"


def _methods() -> Table:
    """The paper's Table 3."""
    rows: list[tuple[Text, ...] | Heading] = []
    for rl, title in ((False, PHASE_NAMES["xe"]), (True, PHASE_NAMES["rl"])):
        rows.append(Heading(title))
        rows += [_method(method) for method in paper.TABLE_3 if method.rl == rl]
    header = ("method", "models", *paper.METRICS)
    return Table("As the paper has them, in percent.", header, "ll" + "r" * len(paper.METRICS), tuple(rows))


def _method(method: paper.Method) -> tuple[Text, ...]:
    kind = "ensemble" if method.ensemble else "one"
    return (method.name, kind, *(number(value, 1) for value in method.numbers))


def _server() -> Table:
    """The paper's Table 4."""
    rows: list[tuple[Text, ...] | Heading] = []
    for ensemble, title in ((True, "several models together"), (False, "single models")):
        rows.append(Heading(title))
        for method in (method for method in paper.TABLE_4 if method.ensemble == ensemble):
            trained = PHASE_NAMES["rl"] if method.rl else PHASE_NAMES["xe"]
            rows.append((method.name, trained, *(number(value, 1) for value in method.numbers)))
    columns = [f"{metric} {count}" for metric in paper.SERVER_METRICS for count in paper.REFERENCES]
    caption = "As the paper has them, in percent; C5 is with 5 references an image, C40 with 40."
    return Table(caption, ("method", "training", *columns), "ll" + "r" * len(columns), tuple(rows))
