"""What a few seeds can say: means, paired differences, and how many seeds a difference of a given size would need."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
from scipy import optimize, stats

CONFIDENCE = 0.95
POWER = 0.8
SIGNIFICANCE = 1 - CONFIDENCE
_NODES, _HALVES = numpy.polynomial.legendre.leggauss(200)  # to integrate over the unit interval
_SHARES, _WEIGHTS = (1 + _NODES) / 2, _HALVES / 2


@dataclass(frozen=True)
class Sample:
    """How many values, their mean, and their standard deviation (with n − 1; None for a single value).

    >>> Sample.of([1.0, 2.0, 3.0])
    Sample(n=3, mean=2.0, std=1.0)
    """

    n: int
    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Of at least one value."""
        return cls(len(values), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class PairedDifference:
    """The mean of differences between paired values, its confidence interval, and Student's test that it is 0.

    A single pair has no interval and no test. Differences without any spread have no test either: Student's would be
    certain of them, but what they show is that the measure is too coarse for this test.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None
    p_value: float | None
    negative: int  # how many of the differences are below 0
    positive: int

    @property
    def sign_test(self) -> float:
        """The p value of the exact sign test: how often a difference has which sign, ties left out.

        >>> paired_difference({0: 1.0, 1: 2.0, 2: 2.5}, {0: 2.0, 1: 2.5, 2: 4.0}).sign_test
        0.25
        """
        told = self.negative + self.positive
        return float(stats.binomtest(self.negative, told).pvalue) if told else 1.0


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], confidence: float = CONFIDENCE
) -> PairedDifference | None:
    """`values` minus `baseline` over the seeds that both have; None if they share none.

    >>> found = paired_difference({0: 5.0, 1: 6.0, 2: 7.5, 9: 1.0}, {0: 6.0, 1: 6.5, 2: 9.0})
    >>> found.n, found.mean, found.std, round(found.low, 3), round(found.high, 3), round(found.p_value, 4)
    (3, -1.0, 0.5, -2.242, 0.242, 0.0742)
    """
    seeds = [seed for seed in values if seed in baseline]
    differences = [values[seed] - baseline[seed] for seed in seeds]
    if not differences:
        return None
    sample = Sample.of(differences)
    # Two decimals in, sixteen digits out: equal differences differ in the last bit.
    noise = 1e-12 * max(abs(number) for seed in seeds for number in (values[seed], baseline[seed]))
    std = 0.0 if sample.std is not None and sample.std <= noise else sample.std
    low = high = p_value = None
    if std is not None:
        margin = float(stats.t.ppf((1 + confidence) / 2, sample.n - 1)) * std / math.sqrt(sample.n)
        low, high = sample.mean - margin, sample.mean + margin
    if std:
        p_value = float(2 * stats.t.sf(abs(sample.mean) * math.sqrt(sample.n) / std, sample.n - 1))
    signs = [0 if abs(difference) <= noise else math.copysign(1, difference) for difference in differences]
    return PairedDifference(sample.n, sample.mean, std, low, high, p_value, signs.count(-1), signs.count(1))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values of several tests, made comparable with the significance of one by Holm's method.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def power(difference: float, std: float, pairs: int, significance: float = SIGNIFICANCE) -> float:
    """The probability that the paired t test finds a true difference, given the deviation of single differences.

    >>> round(power(0.5, 1.0, pairs=34), 3)
    0.808
    """
    shift, freedom = abs(difference) / std * math.sqrt(pairs), pairs - 1
    critical = float(stats.t.ppf(1 - significance / 2, freedom))
    # Over all deviations that may be observed. SciPy's noncentral t gives NaN from a shift of 20 on.
    observed = critical * numpy.sqrt(stats.chi2.ppf(_SHARES, freedom) / freedom)
    return float(_WEIGHTS @ (stats.norm.cdf(shift - observed) + stats.norm.cdf(-shift - observed)))


def pairs_needed(difference: float, std: float, wanted: float = POWER) -> int:
    """How many pairs the paired t test needs to find a true difference with the wanted probability; at least 2.

    >>> pairs_needed(0.5, 1.0), pairs_needed(0.27, 0.2)
    (34, 7)
    """
    if not difference:
        raise ValueError("no number of pairs shows a difference of 0")
    if std == 0:
        return 2
    normal = stats.norm.ppf(1 - SIGNIFICANCE / 2) + stats.norm.ppf(wanted)
    pairs = max(2, math.floor((normal * std / difference) ** 2))  # Student's test never needs fewer
    while power(difference, std, pairs) < wanted:
        pairs += 1
    return pairs


def detectable_difference(std: float, pairs: int, wanted: float = POWER) -> float:
    """The smallest true difference that so many pairs show with the wanted probability.

    >>> round(detectable_difference(0.2, pairs=3), 2)
    0.65
    """
    if std == 0:
        return 0.0
    # In units of the deviation. At two pairs the critical value is 12.7, so that 40 is far beyond.
    return std * float(optimize.brentq(lambda effect: power(effect, 1.0, pairs) - wanted, 1e-9, 40.0))


def deviation_interval(std: float, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Between which bounds the true deviation lies, if values are normal: wide for a few of them.

    >>> [round(bound, 2) for bound in deviation_interval(0.2, n=3)]
    [0.1, 1.26]
    """
    tail = (1 - confidence) / 2
    bounds = (std * math.sqrt((n - 1) / float(stats.chi2.ppf(share, n - 1))) for share in (1 - tail, tail))
    low, high = bounds
    return low, high
