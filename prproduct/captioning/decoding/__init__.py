"""Decoding captions of encoded images: greedy, sampling, and beam search."""

from prproduct.captioning.decoding.beam import beam, check_beams
from prproduct.captioning.decoding.stepwise import Captions, Decoder, Limits, greedy, sample

__all__ = ["Captions", "Decoder", "Limits", "beam", "check_beams", "greedy", "sample"]
