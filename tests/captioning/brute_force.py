"""Beam search as its definition reads, in lists, one image and one beginning at a time; and exhaustive search."""

import itertools
import math

import torch


class WordByWord:
    """The log-probabilities after any words, for one image; what was computed once is kept."""

    def __init__(self, model, memory):
        self.model, self.memory, self.known = model, memory, {}

    def after(self, words):
        return self._step(tuple(words))[0]

    def _step(self, words):
        if words not in self.known:
            state = self._step(words[:-1])[1] if words else self.model.begin(self.memory)
            logits, state, _ = self.model.step(torch.tensor([words[-1] if words else 0]), state, self.memory)
            self.known[words] = logits[0].double().log_softmax(-1).tolist(), state
        return self.known[words]


def allowed(scores, words, limits):
    scores = list(scores)
    if limits.forbidden_id is not None:
        scores[limits.forbidden_id] = -math.inf
    if limits.block_trigrams:
        trigrams = {tuple(words[i : i + 3]) for i in range(len(words) - 2)}
        for word in range(1, len(scores)):
            if (*words[-2:], word) in trigrams:
                scores[word] = -math.inf
    if len(words) < limits.shortest and max(scores[1:]) > -math.inf:
        scores[0] = -math.inf
    return scores


def beam(model, memory, limits, beams, n_best=1, length_power=0.0):
    """The best captions of one image, as (score, words with the end if there is one)."""
    live, found, captioner = [(0.0, [])], [], WordByWord(model, memory)
    for length in range(1, limits.longest + 1):
        extensions = []
        for total, words in live:
            scores = allowed(captioner.after(words), words, limits)
            extensions += [(total + s, [*words, word]) for word, s in enumerate(scores) if s > -math.inf]
        extensions.sort(key=lambda pair: -pair[0])  # stable: the better beginning first, then the lower id
        found += [(total / length**length_power, words) for total, words in extensions[:beams] if words[-1] == 0]
        live = [(total, words) for total, words in extensions if words[-1] != 0][:beams]
    cut = [(total / limits.longest**length_power, words) for total, words in live]
    return (_best_first(found) + _best_first(cut))[:n_best]


def exhaustive(model, memory, limits, vocabulary, length_power=0.0):
    """All captions of one image that may be said, best first: those that end, then those that are cut."""
    found, captioner = [], WordByWord(model, memory)
    for length in range(limits.longest + 1):
        for words in itertools.product(range(1, vocabulary), repeat=length):
            caption = [*words] if length == limits.longest else [*words, 0]
            total = 0.0
            for place, word in enumerate(caption):
                total += allowed(captioner.after(caption[:place]), caption[:place], limits)[word]
            if total > -math.inf:
                found.append((total / max(len(caption), 1) ** length_power, caption))
    ended, cut = ([pair for pair in found if (pair[1][-1] == 0) == ends] for ends in (True, False))
    return _best_first(ended) + _best_first(cut)


def _best_first(found):
    return sorted(found, key=lambda pair: -pair[0])
