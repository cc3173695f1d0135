"""Caption metrics: the numbers of the COCO evaluation, and CIDEr-D as a reward."""

from prproduct.captioning.metrics.bleu import bleu
from prproduct.captioning.metrics.cider import cider_d
from prproduct.captioning.metrics.frequencies import Frequencies, load_frequencies
from prproduct.captioning.metrics.ngrams import Score
from prproduct.captioning.metrics.packed import PackedCaptions
from prproduct.captioning.metrics.reward import CiderReward
from prproduct.captioning.metrics.rouge import rouge_l
from prproduct.captioning.metrics.score import Evaluation, evaluate
from prproduct.captioning.metrics.tokenizer import tokenize, tokenize_all

__all__ = [
    "CiderReward",
    "Evaluation",
    "Frequencies",
    "PackedCaptions",
    "Score",
    "bleu",
    "cider_d",
    "evaluate",
    "load_frequencies",
    "rouge_l",
    "tokenize",
    "tokenize_all",
]
