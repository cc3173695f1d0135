"""Caption metrics of the COCO evaluation, and CIDEr-D as a reward for training (docs/metrics.md)."""

from prproduct.captioning.metrics.frequencies import Frequencies, load_frequencies
from prproduct.captioning.metrics.ngram_metrics import Score, bleu, cider_d, rouge_l
from prproduct.captioning.metrics.reward import CiderReward, PackedCaptions
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
