"""Decoding captions of encoded images: greedy, sampling, and beam search."""

from prproduct.captioning.decoding.beam import beam
from prproduct.captioning.decoding.stepwise import Captions, Decoder, Limits, greedy, sample

__all__ = ["Captions", "Decoder", "Limits", "beam", "greedy", "sample"]
