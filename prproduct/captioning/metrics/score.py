"""The COCO evaluation: tokenize captions, then compute the chosen metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prproduct.captioning.metrics.frequencies import Frequencies
from prproduct.captioning.metrics.java import Meteor, spice, tokenize_java
from prproduct.captioning.metrics.ngram_metrics import Score, bleu, check_pairs, cider_d, rouge_l
from prproduct.captioning.metrics.tokenizer import tokenize_all
from prproduct.lab.errors import InputError

METRICS = ("bleu", "meteor", "rouge-l", "cider", "spice")
TOKENIZERS = {"python": tokenize_all, "java": tokenize_java}

Progress = Callable[[str, int, int], None]  # called with the current step, finished images, all images


@dataclass(frozen=True)
class Evaluation:
    """Scores by their names in the COCO evaluation, and for each metric that failed the reason."""

    scores: dict[str, Score] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def evaluate(
    references: Sequence[Sequence[str]],
    candidates: Sequence[str],
    metrics: Sequence[str] = METRICS,
    tokenizer: str = "python",
    frequencies: Frequencies | None = None,
    progress: Progress = lambda step, done, total: None,
) -> Evaluation:
    """Score untokenized captions, `candidates[i]` against the list `references[i]`.

    A metric whose Java program cannot run has no score; `failures` has the reason.

    >>> evaluation = evaluate([["A cat sits.", "The cat sat."], ["Dogs!"]], ["a cat sat", "dogs"], ["bleu", "rouge-l"])
    >>> {name: round(score.total, 3) for name, score in evaluation.scores.items()}
    {'Bleu_1': 1.0, 'Bleu_2': 1.0, 'Bleu_3': 0.0, 'Bleu_4': 0.0, 'ROUGE_L': 0.833}
    """
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown or not metrics:
        raise InputError(
            f"no metric {unknown[0]!r}; there are {', '.join(METRICS)}" if unknown else "no metrics to compute"
        )
    if tokenizer not in TOKENIZERS:
        raise InputError(f"no tokenizer {tokenizer!r}; there are {', '.join(TOKENIZERS)}")
    if frequencies is not None and frequencies.over_ids:
        raise InputError("n-gram frequencies of token ids, where captions are words; give those counted in words")
    check_pairs(references, candidates)
    progress("tokenizing", 0, len(candidates))
    tokenized, results = _tokenized(references, tokenizer), TOKENIZERS[tokenizer](candidates)
    evaluation = Evaluation()
    for metric in dict.fromkeys(metrics):
        progress(metric, 0, len(candidates))
        try:
            evaluation.scores.update(_score(metric, tokenized, results, frequencies, progress))
        except InputError as error:
            evaluation.failures[metric] = str(error)
    return evaluation


def _tokenized(references: Sequence[Sequence[str]], tokenizer: str) -> list[list[str]]:
    """The references of each image, all tokenized as one text, as the COCO evaluation does."""
    flat = iter(TOKENIZERS[tokenizer]([caption for captions in references for caption in captions]))
    return [[next(flat) for _ in captions] for captions in references]


def _score(
    metric: str, references: list[list[str]], candidates: list[str], frequencies: Frequencies | None, progress: Progress
) -> dict[str, Score]:
    """The scores of one metric by their names in the COCO evaluation; BLEU has four."""
    match metric:
        case "bleu":
            return {f"Bleu_{n}": score for n, score in enumerate(bleu(references, candidates), start=1)}
        case "rouge-l":
            return {"ROUGE_L": rouge_l(references, candidates)}
        case "cider":
            return {"CIDEr": cider_d(references, candidates, frequencies)}
        case "meteor":
            with Meteor() as meteor:
                count = len(candidates)
                return {"METEOR": meteor.score(references, candidates, lambda done: progress(metric, done, count))}
        case _:
            return {"SPICE": spice(references, candidates)}
