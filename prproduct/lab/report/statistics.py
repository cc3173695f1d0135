"""Statistics over a few seeds: means, paired differences with their tests, and the seeds that a difference needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
from scipy import stats

CONFIDENCE = 0.95
POWER = 0.8
SIGNIFICANCE = 1 - CONFIDENCE
_NODES, _HALVES = numpy.polynomial.legendre.leggauss(200)
_QUANTILES, _WEIGHTS = (1 + _NODES) / 2, _HALVES / 2  # nodes and weights of an integral over (0, 1)


@dataclass(frozen=True)
class Sample:
    """The number of values, their mean, and their standard deviation (with n − 1; None for a single value).

    >>> Sample.of([1.0, 2.0, 3.0])
    Sample(n=3, mean=2.0, std=1.0)
    """

    n: int
    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return the sample of at least one value."""
        return cls(len(values), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the differences between paired values, its confidence interval, and the paired t test against 0.

    A single pair has neither, and nor have equal differences: their standard deviation is 0, so that the interval would
    have no width and the test p = 0, although all they show is that the measure is too coarse.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None
    p_value: float | None
    lower: int  # number of differences below 0


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> PairedDifference | None:
    """Return the statistics of `values` − `baseline` over the seeds that both have; None if there is none.

    >>> found = paired_difference({0: 5.0, 1: 6.0, 2: 7.5, 9: 1.0}, {0: 6.0, 1: 6.5, 2: 9.0})
    >>> found.n, found.mean, found.std, round(found.low, 3), round(found.high, 3), round(found.p_value, 4)
    (3, -1.0, 0.5, -2.242, 0.242, 0.0742)
    """
    seeds = [seed for seed in values if seed in baseline]
    differences = [values[seed] - baseline[seed] for seed in seeds]
    if not differences:
        return None
    sample = Sample.of(differences)
    # Differences that are equal in decimal notation differ in the last bit in binary.
    noise = 1e-12 * max(abs(number) for seed in seeds for number in (values[seed], baseline[seed]))
    std = 0.0 if sample.std is not None and sample.std <= noise else sample.std
    low = high = p_value = None
    if std:
        test = stats.ttest_rel([values[seed] for seed in seeds], [baseline[seed] for seed in seeds])
        p_value = float(test.pvalue)
        low, high = map(float, test.confidence_interval(CONFIDENCE))
    lower = sum(difference < -noise for difference in differences)
    return PairedDifference(sample.n, sample.mean, std, low, high, p_value, lower)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for multiple tests by Holm's method, which SciPy does not have.

    None, for a comparison that has no test, stays None and does not count as a test.

    >>> holm([0.01, None, 0.03])
    [0.02, None, 0.03]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    ascending = sorted((p_value, place) for place, p_value in enumerate(p_values) if p_value is not None)
    largest = 0.0
    for rank, (p_value, place) in enumerate(ascending):
        largest = max(largest, min(1.0, (len(ascending) - rank) * p_value))
        adjusted[place] = largest
    return adjusted


def power(difference: float, std: float, pairs: int) -> float:
    """Return the power of the paired t test for a true difference, given the standard deviation of single differences.

    >>> round(power(0.5, 1.0, pairs=34), 3)
    0.808
    """
    shift, freedom = abs(difference) / std * math.sqrt(pairs), pairs - 1
    critical = float(stats.t.ppf(1 - SIGNIFICANCE / 2, freedom))
    # Integrated over the quantiles of the observed deviation: SciPy's noncentral t gives NaN from a shift of 20 on.
    observed = critical * numpy.sqrt(stats.chi2.ppf(_QUANTILES, freedom) / freedom)
    return float(_WEIGHTS @ (stats.norm.cdf(shift - observed) + stats.norm.cdf(-shift - observed)))


def pairs_needed(difference: float, std: float) -> int:
    """Return the number of pairs, at least 2, with which the paired t test has the power `POWER`.

    >>> pairs_needed(0.5, 1.0), pairs_needed(0.27, 0.2)
    (34, 7)
    """
    if not difference:
        raise ValueError("no number of pairs shows a difference of 0")
    if std == 0:
        return 2
    normal = stats.norm.ppf(1 - SIGNIFICANCE / 2) + stats.norm.ppf(POWER)
    pairs = max(2, math.floor((normal * std / difference) ** 2))  # the z test's, a lower bound
    while power(difference, std, pairs) < POWER:
        pairs += 1
    return pairs


def deviation_interval(std: float, n: int) -> tuple[float, float]:
    """Return the confidence interval of the standard deviation of normal values (chi-squared), wide for small n.

    >>> [round(bound, 2) for bound in deviation_interval(0.2, n=3)]
    [0.1, 1.26]
    """
    tail = SIGNIFICANCE / 2
    bounds = (std * math.sqrt((n - 1) / float(stats.chi2.ppf(share, n - 1))) for share in (1 - tail, tail))
    low, high = bounds
    return low, high
