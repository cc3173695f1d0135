"""Vocabularies: the words of a captioner and their ids.

Id 0 begins, ends and pads a caption; words have ids from 1. Every other word is encoded as "UNK", which is itself a
word of the vocabulary: the last one, except in vocabularies read from files of other projects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from prproduct.captioning.metrics.frequencies import fingerprint
from prproduct.captioning.metrics.reward import LARGEST_TOKEN
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
        """Sixteen hexadecimal digits that change with any word and with the order of the words."""
        return fingerprint(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The ids of words, without an end token."""
        return [self._ids.get(token, self.unknown) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """The words up to the first 0, joined by blanks."""
        words = []
        for number in ids:
            if number == END:
                break
            if not 0 < number < len(self):
                raise InputError(f"word id {int(number)}, of a vocabulary that has 1 to {len(self.words)}")
            words.append(self.words[number - 1])
        return " ".join(words)


# Least occurrences of a word. "cocotalk": in all captions, the preprocessing that made cocotalk.json, with its 9,487
# words of COCO. "paper": in training captions after they are truncated, as the paper states it.
RULES = {"cocotalk": 6, "paper": 5}


def build(captions: Iterable[Sequence[str]], minimum_count: int) -> Vocabulary:
    """The words that occur at least `minimum_count` times, most frequent first, ties alphabetically; then UNK.

    >>> build([["a", "cat"], ["a", "dog"], ["two", "dog"]], minimum_count=2).words
    ('a', 'dog', 'UNK')
    """
    if minimum_count < 1:
        raise InputError(f"a minimum count of {minimum_count}; a word occurs at least once")
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    del counts[UNKNOWN]  # already preprocessed files contain UNK in place of rare words
    kept = sorted((word for word, count in counts.items() if count >= minimum_count), key=lambda w: (-counts[w], w))
    if not kept:
        raise InputError(f"no word occurs {minimum_count} times in the captions; a vocabulary needs a lower minimum")
    return Vocabulary((*kept, UNKNOWN))
