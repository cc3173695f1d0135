"""Statistics of paired seeds, against SciPy, published tables and simulation."""

import numpy
import pytest
from scipy import stats

from prproduct.lab.report.statistics import (
    Sample,
    deviation_interval,
    holm,
    paired_difference,
    pairs_needed,
    power,
)

OURS = {0: 5.1, 1: 6.3, 2: 5.9, 3: 7.0}
BASE = {3: 7.4, 2: 6.1, 1: 6.2, 0: 5.8}


def test_the_deviation_divides_by_n_minus_1():
    values = [5.1, 6.3, 5.9, 7.0]
    found = Sample.of(values)
    assert (found.n, found.mean, found.std) == pytest.approx((4, numpy.mean(values), numpy.std(values, ddof=1)))
    assert Sample.of([3.0]) == Sample(1, 3.0, None)


def test_differences_are_paired_by_seed_and_not_by_order_and_tested_as_scipy_does():
    found = paired_difference({**OURS, 8: 100.0}, {**BASE, 9: -100.0})
    expected = stats.ttest_rel([5.1, 6.3, 5.9, 7.0], [5.8, 6.2, 6.1, 7.4])
    interval = expected.confidence_interval(0.95)
    assert found.n == 4
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.lower == 3


def test_a_single_pair_has_a_difference_and_neither_interval_nor_test():
    found = paired_difference({0: 5.0}, {0: 6.0})
    assert (found.n, found.mean, found.std, found.low, found.high, found.p_value) == (1, -1.0, None, None, None, None)


def test_seeds_of_different_runs_are_no_pairs():
    assert paired_difference({0: 5.0, 1: 4.0}, {2: 6.0}) is None
    assert paired_difference({}, {}) is None


def test_equal_differences_are_not_called_certain():
    found = paired_difference({0: 0.3, 1: 0.6, 2: 1.1}, {0: 0.1, 1: 0.4, 2: 0.9})  # 0.2, but for the last bit
    assert (found.std, found.p_value) == (0.0, None)
    assert (found.low, found.high) == (None, None)
    same = paired_difference({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert same.lower == 0


def test_holm_multiplies_by_the_tests_that_are_left_and_never_goes_down():
    assert holm([0.04, 0.01, 0.02, 0.9]) == pytest.approx([0.08, 0.04, 0.06, 0.9])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_pairs_needed_are_those_of_the_tables_for_80_percent_power(effect, pairs):
    assert pairs_needed(effect, 1.0) == pairs
    assert pairs_needed(-effect * 3, 3.0) == pairs


@pytest.mark.parametrize(("effect", "pairs"), [(0.5, 34), (2.0, 2), (3.0, 3), (1.0, 5), (0.01, 40)])
def test_power_is_that_of_the_noncentral_t(effect, pairs):
    critical = stats.t.ppf(0.975, pairs - 1)
    shift = effect * pairs**0.5
    exact = stats.nct.sf(critical, pairs - 1, shift) + stats.nct.cdf(-critical, pairs - 1, shift)
    assert power(effect, 1.0, pairs) == pytest.approx(exact, abs=1e-6)


def test_power_is_the_share_of_simulated_experiments_that_find_the_difference():
    differences = numpy.random.default_rng(0).normal(0.9, 1.0, (20_000, 8))
    found = (stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05).mean()
    assert power(0.9, 1.0, 8) == pytest.approx(found, abs=0.01)


def test_extreme_sizes_end_and_stay_finite():
    assert pairs_needed(10.0, 0.001) == 2
    assert pairs_needed(1.0, 0.0) == 2
    assert pairs_needed(0.001, 1.0) == pytest.approx(7_848_880, abs=5)
    with pytest.raises(ValueError, match="difference of 0"):
        pairs_needed(0.0, 1.0)


def test_the_interval_of_a_deviation_holds_the_true_one_as_often_as_it_says():
    draws = numpy.random.default_rng(0).normal(0, 2.0, (2000, 4)).std(axis=1, ddof=1)
    held = sum(low < 2.0 < high for low, high in (deviation_interval(float(std), 4) for std in draws))
    assert held / 2000 == pytest.approx(0.95, abs=0.015)
