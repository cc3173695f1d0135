"""Ratios, spread and the verdict, on times that are given; nothing here looks at the clock."""

import gc
import itertools
import sys
from contextlib import nullcontext

import pytest

from prproduct.bench.timing import (
    AGAIN,
    NATIVE,
    OURS,
    REFERENCE,
    Budget,
    Times,
    Verdict,
    time_interleaved,
    waiting_seconds,
)


def times(ours, native=None, again=None, reference=()):
    native = [1.0] * len(ours) if native is None else native
    again = list(native) if again is None else again
    return Times({NATIVE: native, AGAIN: again, OURS: ours, REFERENCE: list(reference)})


def test_the_ratio_is_the_median_of_ratios_within_a_round():
    """One disturbed round: the ratios are 3, 1.1 and 1; the medians of the times would say 3 / 2."""
    measured = times([3.0, 2.2, 3.0], native=[1.0, 2.0, 3.0])
    assert measured.ratio == pytest.approx(1.1)
    assert measured.native_ms == pytest.approx(2000)


def test_both_native_copies_count():
    assert times([1.2], native=[0.5], again=[1.5]).ratio == pytest.approx(1.2)


def test_the_spread_is_half_the_distance_between_the_quartiles():
    assert times([1.0, 1.1, 1.2, 1.3, 1.4]).spread == pytest.approx(0.15)  # quartiles 1.05 and 1.35


def test_one_turn_has_no_spread_and_is_not_judged():
    assert times([1.0]).verdict(2.0) is Verdict.NOISY


def test_the_reference_is_compared_with_the_turns_in_which_it_took_part():
    measured = times([1.0] * 3, native=[1.0, 2.0, 9.0], reference=[10.0, 20.0])
    assert measured.reference_ratio == pytest.approx(10.0)
    assert times([1.0]).reference_ratio is None


QUIET = [1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00, 1.00]


@pytest.mark.parametrize(
    ("ratio", "target", "verdict"),
    [(1.05, 1.10, Verdict.MET), (1.20, 1.10, Verdict.MISSED), (1.05, None, Verdict.OPEN), (1.10, 1.10, Verdict.NOISY)],
)
def test_quiet_times_are_judged_unless_they_are_at_their_target(ratio, target, verdict):
    assert times([ratio * t for t in QUIET]).verdict(target) is verdict


def test_a_native_step_that_differs_from_itself_spoils_the_row():
    measured = times([1.05] * 8, native=[1.0] * 8, again=[1.06] * 8)
    assert measured.verdict(2.0) is Verdict.NOISY
    assert "differs from itself by 6%" in measured.noise
    assert times([1.05] * 8, native=[1.0] * 8, again=[1.04] * 8).verdict(2.0) is Verdict.MET


def test_a_ratio_far_below_its_target_is_judged_although_the_native_step_differs_from_itself_by_more():
    """4 % of a ratio of 0.01 are nothing beside a target of 0.05."""
    assert times([0.01] * 8, native=[1.0] * 8, again=[1.04] * 8).verdict(0.05) is Verdict.MET


def test_a_wide_spread_spoils_the_row():
    measured = times([0.7, 1.4, 0.8, 1.3, 1.0, 0.7, 1.4, 1.0])
    assert measured.verdict(3.0) is Verdict.NOISY
    assert "spreads" in measured.noise


def test_waiting_for_a_core_spoils_the_row_although_the_ratio_looks_steady():
    """Both sides alike: a ratio of 1 that says nothing about the layer."""
    seconds = {name: [1.0] * 8 for name in (NATIVE, AGAIN, OURS)}
    starved = Times(seconds, waited=0.5)
    assert starved.verdict(1.5) is Verdict.NOISY
    assert "waited 0.50 s of every second" in starved.noise
    assert Times(seconds, waited=0.02).verdict(1.5) is Verdict.MET
    assert Times(seconds, waited=None).verdict(1.5) is Verdict.MET


def test_waiting_is_a_share_of_the_time_of_the_rounds_that_count():
    clock, waits = Clock(), iter([3.0, 103.0])
    steps = {name: Step(clock, 100.0) for name in (NATIVE, OURS, AGAIN)}
    budget = Budget(rounds=2, seconds=0.0, warm_up=1)
    measured = time_interleaved(steps, budget, clock, lambda: next(waits))
    assert measured.waited == pytest.approx(100.0 / (2 * 3 * 200.0))  # a step of 100 and its preparation of 100
    assert time_interleaved(steps, budget, clock, lambda: None).waited is None


def test_the_system_says_how_long_threads_waited():
    before = waiting_seconds()
    if before is None:
        assert sys.platform != "linux"
    else:
        assert 0.0 <= before <= waiting_seconds()


class Clock:
    """Moves on when a step says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Step:
    def __init__(self, clock, seconds, log=None, name=""):
        self.clock, self.seconds, self.log, self.name = clock, seconds, log, name

    def prepare(self):
        self.clock.now += 100.0  # must not be timed

    def __call__(self):
        self.clock.now += self.seconds
        if self.log is not None:
            self.log.append(self.name)


def run(budget, native=1.0, ours=2.0, reference=None, log=None):
    clock = Clock()
    seconds = {NATIVE: native, OURS: ours, AGAIN: native} | ({} if reference is None else {REFERENCE: reference})
    return time_interleaved({name: Step(clock, s, log, name) for name, s in seconds.items()}, budget, clock).seconds


def test_each_variant_is_timed_without_its_preparation():
    seconds = run(Budget(rounds=4, seconds=0.0))
    assert seconds[NATIVE] == pytest.approx([1.0] * 4)
    assert seconds[OURS] == pytest.approx([2.0] * 4)


def test_short_steps_get_more_rounds_up_to_a_bound():
    assert len(run(Budget(rounds=4, seconds=20.0))[OURS]) == 20
    assert len(run(Budget(rounds=4, seconds=1000.0, most=30))[OURS]) == 30


def test_more_rounds_are_done_if_more_are_asked_for_than_the_bound():
    assert len(run(Budget(rounds=300, seconds=0.0, most=200))[OURS]) == 300


def test_variants_rotate_and_none_follows_itself():
    log = []
    run(Budget(rounds=6, seconds=0.0, warm_up=0), log=log)
    assert [log[3 * place] for place in range(4)] == [NATIVE, OURS, AGAIN, NATIVE]
    assert all(first != second for first, second in itertools.pairwise(log))


def test_warm_up_rounds_do_not_count():
    log = []
    seconds = run(Budget(rounds=2, seconds=8.0, warm_up=3, most=2), log=log)  # a round takes 4 seconds
    assert log.count(OURS) == 3 + len(seconds[OURS]) == 5


def test_long_steps_warm_up_once():
    log = []
    run(Budget(rounds=2, seconds=3.0, warm_up=3, most=2), log=log)
    assert log.count(OURS) == 1 + 2


def test_the_slow_reference_takes_part_in_few_rounds():
    seconds = run(Budget(rounds=10, seconds=5.0, reference_rounds=3), reference=50.0)
    assert len(seconds[REFERENCE]) == 3
    assert len(seconds[OURS]) == 10


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_collection_is_left_as_it_was(fails):
    enabled = []

    class Broken(Step):
        def __call__(self):
            enabled.append(gc.isenabled())
            if fails:
                raise RuntimeError("no")

    steps = {name: Broken(Clock(), 0.0) for name in (NATIVE, OURS, AGAIN)}
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="no") if fails else nullcontext():
        time_interleaved(steps, Budget(rounds=2, most=2))
    assert enabled[0] is False, "it collects while it times"
    assert gc.isenabled()
