"""The words that a captioner knows, and their ids.

Id 0 begins a caption, ends it and fills the room behind it; words have the ids from 1. What is not among them is "UNK",
which is one of them, the last unless a file of others has it elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from prproduct.captioning.metrics.frequencies import fingerprint
from prproduct.captioning.metrics.packed import LARGEST_TOKEN
from prproduct.lab.errors import InputError

UNKNOWN = "UNK"
END = 0


@dataclass(frozen=True)
class Vocabulary:
    """Words by their ids, from 1.

    >>> vocabulary = Vocabulary(("a", "cat", "UNK"))
    >>> vocabulary.encode(["a", "tame", "cat"]), vocabulary.decode([1, 2, 0, 2]), len(vocabulary)
    ([1, 3, 2], 'a cat', 4)
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words.count(UNKNOWN) != 1:
            raise InputError(f"a vocabulary with {UNKNOWN} {self.words.count(UNKNOWN)} times; it must be there once")
        if len(self.words) > LARGEST_TOKEN:
            raise InputError(f"a vocabulary of {len(self.words):,} words; {LARGEST_TOKEN:,} are the most")
        repeated = next((word for word, count in Counter(self.words).items() if count > 1), None)
        if repeated is not None:
            raise InputError(f"a vocabulary with {repeated!r} more than once; each word has one id")
        unusable = next((word for word in self.words if not word or " " in word), None)
        if unusable is not None:
            raise InputError(f"a vocabulary with the word {unusable!r}; a word has no blanks, and is not empty")

    def __len__(self) -> int:
        return len(self.words) + 1

    @cached_property
    def unknown(self) -> int:
        """The id of UNK."""
        return self.words.index(UNKNOWN) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any word, and with their order."""
        return fingerprint(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The ids of words, without an end."""
        return [self._ids.get(token, self.unknown) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """The words up to the first 0, with blanks between them."""
        words = []
        for number in ids:
            if number == END:
                break
            if not 0 < number < len(self):
                raise InputError(f"word id {int(number)}, of a vocabulary that has 1 to {len(self.words)}")
            words.append(self.words[number - 1])
        return " ".join(words)


@dataclass(frozen=True)
class Rule:
    """Which words a vocabulary gets: those that occur at least `minimum_count` times."""

    minimum_count: int
    train_only: bool  # in the training captions, or in all
    cut_first: bool  # in what is left of captions after cutting them, or in whole ones

    def __post_init__(self) -> None:
        if self.minimum_count < 1:
            raise InputError(f"a minimum count of {self.minimum_count}; a word occurs at least once")


# What others' preparation does, whence their 9,487 words of COCO; and what the paper says that it does.
RULES = {
    "peers": Rule(minimum_count=6, train_only=False, cut_first=False),
    "paper": Rule(minimum_count=5, train_only=True, cut_first=True),
}


def build(captions: Iterable[Sequence[str]], minimum_count: int) -> Vocabulary:
    """The words that occur at least so often, the most frequent first and equals by their letters; then UNK.

    >>> build([["a", "cat"], ["a", "dog"], ["two", "dog"]], minimum_count=2).words
    ('a', 'dog', 'UNK')
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    del counts[UNKNOWN]  # a file that has been prepared before has it in place of rare words
    kept = sorted((word for word, count in counts.items() if count >= minimum_count), key=lambda w: (-counts[w], w))
    if not kept:
        raise InputError(f"no word occurs {minimum_count} times in the captions; a vocabulary needs a lower minimum")
    return Vocabulary((*kept, UNKNOWN))
