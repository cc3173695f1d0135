"""The numbers that the paper reports on image captioning (ICCV 2019, Tables 2, 3 and 4, §5.2).

All in percent, one number each: the paper gives neither seeds nor deviations. None: not reported.
"""

from __future__ import annotations

from typing import NamedTuple

METRICS = ("B1", "B2", "B3", "B4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")

# Table 2: phase → product → the numbers of `METRICS`, on the 5,000 test images of Karpathy's split of COCO.
TABLE_2: dict[str, dict[str, tuple[float, ...]]] = {
    "xe": {
        "p": (76.7, 60.8, 47.3, 36.8, 28.1, 56.9, 116.0, 21.1),
        "r": (76.3, 60.4, 46.7, 36.0, 27.7, 56.5, 113.3, 20.6),
        "pr": (76.8, 61.0, 47.5, 37.0, 28.2, 57.1, 116.1, 21.1),
    },
    "rl": {
        "p": (80.3, 64.9, 50.4, 38.6, 28.6, 58.4, 127.2, 22.4),
        "r": (80.0, 64.6, 49.8, 37.6, 28.3, 57.8, 125.5, 22.0),
        "pr": (80.4, 64.9, 50.5, 38.7, 28.8, 58.5, 128.3, 22.4),
    },
}


class Method(NamedTuple):
    """A row of Table 3 or 4."""

    name: str
    numbers: tuple[float | None, ...]
    rl: bool = False  # trained by REINFORCE, the paper's *
    ensemble: bool = False  # several models together, the paper's Σ


# Table 3: the numbers of `METRICS` on the test images of Karpathy's split.
TABLE_3 = (
    Method("LSTM-A", (73.5, 56.6, 42.9, 32.4, 25.5, 53.9, 99.8, 18.5)),
    Method("SCN-LSTM", (74.1, 57.8, 44.4, 34.1, 26.1, None, 104.1, None), ensemble=True),
    Method("Adaptive", (74.2, 58.0, 43.9, 33.2, 26.6, None, 108.5, None)),
    Method("SCST:Att2all", (None, None, None, 32.2, 26.7, 54.8, 104.7, None), ensemble=True),
    Method("Up-Down", (77.2, None, None, 36.2, 27.0, 56.4, 113.5, 20.3)),
    Method("Stack-Cap", (76.2, 60.4, 46.4, 35.2, 26.5, None, 109.1, None)),
    Method("ARNet", (74.0, 57.6, 44.0, 33.5, 26.1, 54.6, 103.4, 19.0)),
    Method("NBT", (75.5, None, None, 34.7, 27.1, None, 107.2, 20.1)),
    Method("GCN-LSTM", (77.3, None, None, 36.8, 27.9, 57.0, 116.3, 20.9)),
    Method("PR, the paper's", TABLE_2["xe"]["pr"]),
    Method("EmbeddingReward", (71.3, 53.9, 40.3, 30.4, 25.1, 52.5, 93.7, None), rl=True),
    Method("LSTM-A", (78.6, None, None, 35.5, 27.3, 56.8, 118.3, 20.8), rl=True),
    Method("SCST:Att2all", (None, None, None, 35.4, 27.1, 56.6, 117.5, None), rl=True, ensemble=True),
    Method("Up-Down", (79.8, None, None, 36.3, 27.7, 56.9, 120.1, 21.4), rl=True),
    Method("Stack-Cap", (78.6, 62.5, 47.9, 36.1, 27.4, 56.9, 120.4, 20.9), rl=True),
    Method("GCN-LSTM", (80.5, None, None, 38.2, 28.5, 58.3, 127.6, 22.0), rl=True),
    Method("CAVP", (None, None, None, 38.6, 28.3, 58.5, 126.3, 21.6), rl=True),
    Method("SGAE", (80.8, None, None, 38.4, 28.4, 58.6, 127.8, 22.1), rl=True),
    Method("PR, the paper's", TABLE_2["rl"]["pr"], rl=True),
)

# Table 4: COCO's evaluation server, without SPICE; of each metric the number with 5 references, then with 40.
SERVER_METRICS = METRICS[:-1]
REFERENCES = ("C5", "C40")
# fmt: off
TABLE_4 = (
    Method("SCN-LSTM", (74.0, 91.7, 57.5, 83.9, 43.6, 73.9, 33.1, 63.1, 25.7, 34.8, 54.3, 69.6, 100.3, 101.3),
           ensemble=True),
    Method("Adaptive", (74.8, 92.0, 58.4, 84.5, 44.4, 74.4, 33.6, 63.7, 26.4, 35.9, 55.0, 70.5, 104.2, 105.9),
           ensemble=True),
    Method("SCST:Att2all", (78.1, 93.7, 61.9, 86.0, 47.0, 75.9, 35.2, 64.5, 27.0, 35.5, 56.3, 70.7, 114.7, 116.7),
           rl=True, ensemble=True),
    Method("Up-Down", (80.2, 95.2, 64.1, 88.8, 49.1, 79.4, 36.9, 68.5, 27.6, 36.7, 57.1, 72.4, 117.9, 120.5),
           rl=True, ensemble=True),
    Method("LSTM-A", (78.7, 93.7, 62.7, 86.7, 47.6, 76.5, 35.6, 65.2, 27.0, 35.4, 56.4, 70.5, 116.0, 118.0)),
    Method("PG-BCMR", (75.4, 91.8, 59.1, 84.1, 44.5, 73.8, 33.2, 62.4, 25.7, 34.0, 55.0, 69.5, 101.3, 103.2), rl=True),
    Method("MAT", (73.4, 91.1, 56.8, 83.1, 42.7, 72.7, 32.0, 61.7, 25.8, 34.8, 54.0, 69.1, 102.9, 106.4)),
    Method("Stack-Cap", (77.8, 93.2, 61.6, 86.1, 46.8, 76.0, 34.9, 64.6, 27.0, 35.6, 56.2, 70.6, 114.8, 118.3),
           rl=True),
    Method("PR, the paper's", (79.9, 94.5, 64.3, 88.2, 49.6, 79.0, 37.7, 68.3, 28.4, 37.5, 58.0, 73.0, 122.3, 124.1),
           rl=True),
)
# fmt: on


# The paper's settings as §5.2 states them; in brackets, those of its author's public code.
SETTING = {
    "captions": "COCO, Karpathy's split",
    "test_images": "5,000",
    "words": "9,487",
    "width": "2048, of regions, by a Faster R-CNN",
    "network": "512/512/not stated",
    "epochs": "not stated (REINFORCE 35)",
    "batch": "not stated (64)",
    "rate": "5e-4, in REINFORCE 5e-5 (2e-5)",
    "decay": "cosine (by epoch)",
    "dropout": "not stated (0.3, not on words)",
    "rl_dropout": "not stated (0.3)",
    "loss": "not stated (mean over words)",
    "rewarded": "the 5 best of a beam search (one drawn)",  # the text; the authors' later code
    "baseline": "not stated (the greedy caption's)",
    "inputs": "one of v̂ and h¹, in its figure (one each)",  # and its appendix plots one each
    "validation": "not stated (5 beams)",
    "search": "5 beams",
    "epoch": "not stated",
    "seeds": "one number each",
}
