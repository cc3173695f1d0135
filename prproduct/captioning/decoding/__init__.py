"""From an encoded image to captions: the likeliest word each time, drawn words, or beam search."""

from prproduct.captioning.decoding.beam import beam
from prproduct.captioning.decoding.captions import Captions, Decoder
from prproduct.captioning.decoding.limits import Limits
from prproduct.captioning.decoding.rollout import greedy, sample

__all__ = ["Captions", "Decoder", "Limits", "beam", "greedy", "sample"]
