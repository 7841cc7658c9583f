"""The latest of N ranks: from what was seen, steady and random apart."""

from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.what_if.lateness import Lateness, lateness, on_time
from dpscope.analysis.what_if.step_profile import MeasuredBucket
from tests.helpers.replayed_steps import SIMPLE


def test_the_latest_of_n_normal_draws() -> None:
    # tables of order statistics: 0.564 of two, 1.423 of eight, 2.34 of 64, in standard deviations
    late = Lateness((0.0, 0.0), (-3.0, 3.0) * 20)
    for ranks, expected in ((1, 0.0), (2, 0.564), (8, 1.423), (64, 2.34)):
        assert late.latest_us(ranks) == pytest.approx(3 * expected, rel=0.05)


def arrivals(table: list[list[float]]) -> Lateness:
    """By step and rank, how much later than the first the last rank was."""
    found = []
    for step, late in enumerate(table):
        for rank, one in enumerate(late):
            bucket = MeasuredBucket(1e6, 0, 0, 0, max(late) - one, 0)
            found.append(replace(SIMPLE, rank=rank, step=step, buckets=(bucket,)))
    return lateness(found)


def test_means_that_are_taken_off_take_no_randomness_with_them() -> None:
    """Two ranks, four steps, a standard deviation of 3, many times over: the last of 32 is (2.07 -
    0.56) x 3 later than of 2.
    """
    generator = np.random.default_rng(5)
    found = [arrivals(generator.normal(0.0, 3.0, (4, 2)).tolist()) for _ in range(300)]
    assert np.mean([np.var(one.random_us) for one in found]) == pytest.approx(9.0, rel=0.1)
    # a standard deviation of few samples is too small by itself, 0.92 of three independent ones, so
    # not quite 1.51 x 3
    grown = np.mean([one.latest_us(32) - one.latest_us(2) for one in found])
    assert grown == pytest.approx(1.51 * 3 * 0.92, rel=0.05)
    assert found[0].independent == 3
    assert arrivals([[0.0, 1.0, 2.0]]).independent == 2


def test_without_the_lateness_of_one_rank_the_others_wait_for_the_last_of_the_rest() -> None:
    """Of ranks that are ready at 0, 10, 30 and 100 us the last is on time: the others wait until
    30; in a second step, 5.
    """
    profiles = []
    for step, ready in enumerate(([0.0, 10.0, 30.0, 100.0], [0.0, 5.0, 2.0, 1.0])):
        for rank, when in enumerate(ready):
            bucket = MeasuredBucket(1e6, when, 0, 0, max(ready) - when, 0)
            profiles.append(replace(SIMPLE, rank=rank, step=step, buckets=(bucket,)))
    waits = {(one.step, one.rank): one.buckets[0].late_us for one in on_time(profiles, 3)}
    assert waits == {(0, 0): 30, (0, 1): 20, (0, 2): 0, (1, 0): 5, (1, 1): 0, (1, 2): 3}
