"""Caption metrics: the numbers of the COCO evaluation, and CIDEr-D as a reward."""

from prproduct.captioning.metrics.bleu import bleu
from prproduct.captioning.metrics.cider import cider_d
from prproduct.captioning.metrics.frequencies import Frequencies, load_frequencies
from prproduct.captioning.metrics.ngrams import Score
from prproduct.captioning.metrics.packed import PackedCaptions
from prproduct.captioning.metrics.reward import CiderReward
from prproduct.captioning.metrics.rouge import rouge_l

__all__ = ["CiderReward", "Frequencies", "PackedCaptions", "Score", "bleu", "cider_d", "load_frequencies", "rouge_l"]
