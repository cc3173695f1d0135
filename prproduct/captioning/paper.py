"""The paper's numbers and settings of image captioning (ICCV 2019, Table 2 and §5.2).

All numbers are in percent, one each: the paper gives neither seeds nor deviations.
"""

from __future__ import annotations

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

# The paper's settings as §5.2 states them; in brackets, those of its author's public code.
SETTING = {
    "captions": "COCO, Karpathy's split",
    "test images": "5,000",
    "words": "9,487",
    "features": "2048, of regions, by a Faster R-CNN",
    "hidden/embedding/attention": "512/512/not stated",
    "epochs": "not stated (REINFORCE 35)",
    "images a step": "not stated (64)",
    "learning rate": "5e-4, in REINFORCE 5e-5 (2e-5)",
    "its decay": "cosine (by epoch)",
    "dropout": "not stated (0.3, not on words)",
    "dropout in REINFORCE": "not stated (0.3)",
    "loss of REINFORCE": "not stated (mean over words)",
    "REINFORCE rewards": "the 5 best of a beam search (one drawn)",  # the text; the authors' later code
    "… compared with the reward of": "not stated (the greedy caption's)",
    "layers into the Language LSTM": "one of v̂ and h¹, in its figure (one each)",  # and its appendix plots one each
    "search for validation captions": "not stated (5 beams)",
    "search for test captions": "5 beams",
    "epoch that is tested": "not stated",
    "seeds": "one number each",
}
