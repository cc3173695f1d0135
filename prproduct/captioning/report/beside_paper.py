"""The section of a report on what differs between the paper's settings and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prproduct.captioning import paper
from prproduct.captioning.inference import PHASE_NAMES
from prproduct.captioning.report.runs import Group
from prproduct.captioning.report.scores import beams_text
from prproduct.lab.report.content import Section, Table, display

BASELINES = {"greedy": "the greedy caption", "others": "the mean of the image's others"}


def beside_paper(groups: Sequence[Group]) -> Section:
    """A section on the differences between the paper's settings and ours."""
    ours = [_our_settings(group) for group in groups]
    rows = [(name, value, *(settings[name] for settings in ours)) for name, value in paper.SETTING.items()]
    header = ("", "the paper", *(group.name for group in groups))
    caption = "What differs between the paper and ours. In brackets: not in the paper, but in its author's public code."
    return Section("Compared with the paper", (Table(caption, header, "l" * len(header), tuple(rows)),))


def _our_settings(group: Group) -> dict[str, str]:
    """The settings of a group's runs, by the names of `paper.SETTING`."""
    scored = list(group.scored_stages())
    images = dict.fromkeys(f"{s.images:,}" for one in scored for seeds in one.scores.values() for s in seeds.values())
    later = [stage.settings for stage in group.stages if stage.phase == "rl"]
    settings = group.settings
    rates = [f"{settings.get('learning_rate')}", *(f"in REINFORCE {own.get('learning_rate')}" for own in later)]
    beams = dict.fromkeys(beams_text(s.settings.get("beams")) for s in group.stages)
    baselines = dict.fromkeys(BASELINES[own["baseline"]] for own in later)
    counts = dict.fromkeys(
        f"{display(product)} {len(runs)}" for stage in group.stages for product, runs in stage.counted.items()
    )
    return {
        "captions": group.captions,
        "test images": " and ".join(images) or "–",
        "words": f"{group.data['words'] - 1:,}",
        "features": ", by ".join(str(value) for value in (group.data["width"], group.data.get("encoder")) if value),
        "hidden/embedding/attention": f"{settings['hidden']}/{settings.get('embedding')}/{settings.get('attention')}",
        "epochs": ", ".join(f"{PHASE_NAMES[s.phase]} {s.settings['epochs']}" for s in group.stages),
        "images a step": str(settings.get("batch_size")),
        "learning rate": ", ".join(dict.fromkeys(rates)),
        "its decay": f"cosine by step, to {100 * settings.get('final_rate', 0):g} % of it",
        "dropout": f"{settings.get('dropout')}, also on words",
        "dropout in REINFORCE": "none" if later else "–",
        "loss of REINFORCE": "mean over captions" if later else "–",
        "REINFORCE rewards": " and ".join(dict.fromkeys(map(_rewarded, later))) or "–",
        "… compared with the reward of": " and ".join(baselines) or "–",
        "layers into the Language LSTM": "one for v̂ and one for h¹",
        "search for validation captions": " and ".join(beams),
        "search for test captions": " and ".join(dict.fromkeys(one.search.split(", ")[1] for one in scored)) or "–",
        "epoch that is tested": " and ".join(dict.fromkeys(_epoch_name(one.search) for one in scored)) or "–",
        "seeds": ", ".join(counts) or "none finished",
    }


def _rewarded(own: Mapping[str, Any]) -> str:
    """The captions that a stage of REINFORCE rewards, in words."""
    of_beam = own.get("candidates", "sample") == "beam"  # version 0.1.0 drew samples, and did not record it
    return f"the {own['samples']} best of a beam search" if of_beam else f"{own['samples']} drawn"


def _epoch_name(search: str) -> str:
    """The epoch that is tested, from the words of `Scores.search`."""
    return "best validation CIDEr" if "best epoch" in search else "the last"
