"""Seeds, and random bits that are functions of a key: independent of earlier draws and of library versions."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from prproduct.lab.errors import InputError

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def keyed_bits(indices: NDArray[np.integer], *key: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each index: SplitMix64 seeded by a hash of the key.

    >>> keyed_bits(np.arange(2), 7, 0)
    array([11241344834629033336,  7548029490970160968], dtype=uint64)
    """
    state = 0
    for part in key:
        state = int(_mix(np.array([(state + _GOLDEN + part) & _WORD], np.uint64))[0])
    return _mix(np.uint64(state) + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def check_seed(seed: int) -> None:
    """Raise InputError for a seed that torch's generators do not accept.

    >>> check_seed(2**64)
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: seed is 18446744073709551616, it must be from 0 to 9223372036854775807
    """
    if not 0 <= seed < 1 << 63:
        raise InputError(f"seed is {seed}, it must be from 0 to {(1 << 63) - 1}")


def seed_of(*key: int) -> int:
    """Return a 64-bit seed for torch's generators: a hash of the key.

    >>> seed_of(7, 0) == seed_of(7, 0), seed_of(7, 0) == seed_of(0, 7)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
