"""The studies of README.md and char-gpt.md, read from the records beside this file: scores, gains and angles."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from prproduct.captioning.paper import METRICS, TABLE_2
from prproduct.classification.paper import TABLE_1
from prproduct.lab import runs
from prproduct.lab.report.statistics import PairedDifference, paired_difference

HERE = Path(__file__).parent
Scores = dict[str, dict[int, float]]  # product → seed → score


def classifier(run: Path) -> float:
    """Return the test error after the last epoch, in %."""
    return 100 * runs.read(run).of("end")[-1]["last"]["test_error"]


def classifier_loss(run: Path) -> float:
    """Return the test loss after the last epoch."""
    return float(runs.read(run).of("end")[-1]["last"]["test_loss"])


def classifier_validation(run: Path) -> float:
    """Return the error on the held-out images after the last epoch, in %; they choose nothing."""
    return 100 * runs.read(run).of("end")[-1]["last"]["validation_error"]


def classifier_training(run: Path) -> float:
    """Return the error on the augmented training images during the last epoch, in %."""
    return 100 * runs.read(run).of("end")[-1]["last"]["train_error"]


def captioner(run: Path) -> float:
    """Return the CIDEr of test captions after REINFORCE, in %."""
    return 100 * float(_json(run / "rl" / "results" / "scores_test.json")["scores"]["CIDEr"])


def captioner_before(run: Path) -> float:
    """Return the CIDEr of test captions after cross-entropy, in %."""
    return 100 * float(_json(run / "xe" / "results" / "scores_test.json")["scores"]["CIDEr"])


def captioner_loss(run: Path) -> float:
    """Return the validation loss after the last epoch of cross-entropy, in nats a word."""
    return float(runs.read(run / "xe").of("end")[-1]["last"]["validation_loss"])


def char_gpt(run: Path) -> float:
    """Return the validation loss after the last step, in nats a character."""
    return float(_json(run / "run.json")["evaluations"][-1]["validation_loss"])


@dataclass(frozen=True)
class Study:
    """Runs of one network on one data set, below `folder` as PRODUCT/seed-N."""

    name: str
    measure: str
    folder: str
    score: Callable[[Path], float]
    paper: str = "–"  # PR − P of the paper
    papers: tuple[tuple[float, float], ...] = ()  # (P, PR) of the paper's networks that this one stands for
    digits: int = 2
    larger_is_better: bool = False


def _papers(data: str, *families: str) -> tuple[tuple[float, float], ...]:
    """Return (P, PR) of the paper's networks on CIFAR: of these families, or of all."""
    rows = [row for row in TABLE_1 if row.data == data]
    return tuple((row.p, row.pr) for row in rows if not families or row.arch.startswith(families))


ERROR, LOSS = "test error, %", "validation loss"
COCO = ((TABLE_2["rl"]["p"][METRICS.index("CIDEr")], TABLE_2["rl"]["pr"][METRICS.index("CIDEr")]),)
STUDIES = (
    Study(
        "CIFAR-10, ResNet-8",
        ERROR,
        "cifar/cifar10/resnet8",
        classifier,
        "−0.27 (mean of 4 deep nets)",
        _papers("cifar10"),
    ),
    Study(
        "CIFAR-100, ResNet-8",
        ERROR,
        "cifar/cifar100/resnet8",
        classifier,
        "−0.16 (mean of 4 deep nets)",
        _papers("cifar100"),
    ),
    Study(
        "CIFAR-10, WRN-10-2",
        ERROR,
        "cifar/cifar10/wrn-10-2",
        classifier,
        "−0.31 (WRN-28-10)",
        _papers("cifar10", "wrn"),
    ),
    Study(
        "CIFAR-10, DenseNet-BC-16-12",
        ERROR,
        "cifar/cifar10/densenet-bc-16-12",
        classifier,
        "−0.17 (BC-100-12)",
        _papers("cifar10", "densenet"),
    ),
    Study("CIFAR-10, ViT-4-64", ERROR, "cifar/cifar10/vit-4-64", classifier),
    Study("Fashion-MNIST, 5-layer MLP", ERROR, "gradients/fashion-mnist/mlp", classifier),
    Study("Flickr8k captions", "CIDEr, %", "flickr8k-15", captioner, "+1.1 (COCO)", COCO, 1, larger_is_better=True),
    Study("Python's manual, character GPT", LOSS, "char-gpt", char_gpt, digits=4),
)
GPT, WITHOUT_GPT = STUDIES[-1:], STUDIES[:-1]
RATES = tuple(
    replace(GPT[0], name=f"learning rate {name}", folder=folder)
    for name, folder in (("0.0005", "char-gpt-rates/5e-4"), ("0.001", "char-gpt"), ("0.002", "char-gpt-rates/2e-3"))
)
SHORT_CAPTIONERS = Study("Flickr8k captions, 5 epochs", "CIDEr, %", "flickr8k", captioner, "+1.1 (COCO)", digits=1)
# Other measures of the same runs, and shorter captioners. What the plan compares is above.
SECONDARY = (
    *(
        replace(study, measure=measure, score=score, paper="–", papers=(), digits=digits)
        for study in STUDIES
        if study.score is classifier
        for measure, score, digits in (
            ("test loss", classifier_loss, 4),
            ("validation error, %", classifier_validation, 2),
            ("training error, %", classifier_training, 2),
        )
    ),
    Study("Flickr8k captions, cross-entropy", LOSS, "flickr8k-15", captioner_loss, digits=4),
    Study("Flickr8k captions, cross-entropy", "CIDEr, %", "flickr8k-15", captioner_before, "+0.1 (COCO)", digits=1),
    SHORT_CAPTIONERS,
    Study("… cross-entropy", LOSS, "flickr8k", captioner_loss, digits=4),
    Study("… cross-entropy", "CIDEr, %", "flickr8k", captioner_before, "+0.1 (COCO)", digits=1),
)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def folders(study: Study) -> dict[str, dict[int, Path]]:
    """Return the folder of each run of a study: product → seed → folder."""
    found: dict[str, dict[int, Path]] = {}
    for folder in sorted((HERE / study.folder).glob("*/seed-*")):
        product = folder.parent.name.replace("tempered-", "tempered:")
        found.setdefault(product, {})[int(folder.name.removeprefix("seed-"))] = folder
    return found


def scores(study: Study) -> Scores:
    """Return the score of each run of a study."""
    return {
        product: {seed: study.score(folder) for seed, folder in seeds.items()}
        for product, seeds in folders(study).items()
    }


@dataclass(frozen=True)
class Gain:
    """By how much PR's score is better than P's, in the unit of the score; below 0 it is worse."""

    baseline: float  # P's mean score
    difference: PairedDifference  # PR − P
    sign: int  # 1 if a larger score is better, else −1

    @classmethod
    def of(cls, study: Study) -> Gain | None:
        """The gain; None for fewer than 3 pairs, whose interval says nothing."""
        by_product = scores(study)
        p, pr = (by_product.get(name, {}) for name in ("p", "pr"))
        found = paired_difference(pr, p)
        if found is None or found.n < 3 or found.low is None:
            return None
        baseline = statistics.fmean(p[seed] for seed in p.keys() & pr.keys())
        return cls(baseline, found, 1 if study.larger_is_better else -1)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 95 % interval."""
        assert self.difference.low is not None, "checked by `of`"
        assert self.difference.high is not None, "checked by `of`"
        low, high = sorted((self.sign * self.difference.low, self.sign * self.difference.high))
        return low, high

    def of_the_paper(self, study: Study) -> tuple[float, float] | None:
        """The paper's gain here, if it is the same in points, and if it is the same share of P's score."""
        if not study.papers:
            return None
        p, pr = (statistics.fmean(values) for values in zip(*study.papers, strict=True))
        points = self.sign * (pr - p)
        return points, points * self.baseline / p


@dataclass(frozen=True)
class Angles:
    """The authors' min |sin θ| near the end of training: layer → its paired differences PR − P, and both means."""

    study: Study
    differences: dict[str, dict[int, float]]  # layer → seed → PR − P; the output layer is the last
    means: dict[str, tuple[float, float]]  # layer → (P, PR)
    typical: dict[str, float]  # layer → the mean |sin θ| of all its outputs under P
    improvements: dict[int, float]  # seed → by how much PR's score is better than P's

    def grown(self) -> str:
        """Return in how many layers the mean difference is positive, and in how many layers of single pairs."""
        means = [statistics.fmean(values.values()) for values in self.differences.values()]
        single = [value for values in self.differences.values() for value in values.values()]
        counts = (f"{sum(value > 0 for value in values)} of {len(values)}" for values in (means, single))
        return "{} ({})".format(*counts)

    def correlation(self) -> tuple[float, float] | None:
        """Return Spearman's ρ over the seeds, with p, of the mean growth of all layers and the improvement."""
        growth = [statistics.fmean(layer[seed] for layer in self.differences.values()) for seed in self.improvements]
        if len(growth) < 4:
            return None
        growth_ranks, improvement_ranks = (
            stats.zscore(stats.rankdata(values)) for values in (growth, list(self.improvements.values()))
        )

        def rho(ranks: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
            return np.mean(ranks * improvement_ranks, axis=axis)

        # Exact for up to 7 seeds, of which there are fewer than 9,999 permutations.
        found = stats.permutation_test((growth_ranks,), rho, permutation_type="pairings", vectorized=True, rng=0)
        return float(found.statistic), float(found.pvalue)


def _last_angles(study: Study, run: Path) -> dict[str, dict[str, float]]:
    """Return the statistics of each layer; captioners' after cross-entropy, which trains longest."""
    path = run / "xe" / "angles_at_end.json" if study.score is captioner else run / "angles_at_end.json"
    return _json(path) if path.exists() else {}


def angles(study: Study) -> Angles | None:
    """Return the angles of a study's pairs; None if it has none."""
    found, by_product = folders(study), scores(study)
    seeds = [seed for seed in found.get("p", {}) if seed in found.get("pr", {})]
    pairs = {seed: [_last_angles(study, found[name][seed]) for name in ("p", "pr")] for seed in seeds}
    pairs = {seed: pair for seed, pair in pairs.items() if all(pair)}
    if not pairs:
        return None
    layers = list(next(iter(pairs.values()))[0])
    sign = 1 if study.larger_is_better else -1

    def mean(product: int, layer: str, statistic: str) -> float:
        return statistics.fmean(pair[product][layer][statistic] for pair in pairs.values())

    return Angles(
        study,
        {
            layer: {seed: pr[layer]["sample_min_sin"] - p[layer]["sample_min_sin"] for seed, (p, pr) in pairs.items()}
            for layer in layers
        },
        {layer: (mean(0, layer, "sample_min_sin"), mean(1, layer, "sample_min_sin")) for layer in layers},
        {layer: mean(0, layer, "mean_sin") for layer in layers},
        {seed: sign * (by_product["pr"][seed] - by_product["p"][seed]) for seed in pairs},
    )
