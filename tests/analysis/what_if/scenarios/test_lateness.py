"""The latest of N ranks: from what was seen, steady and random apart."""

from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.what_if.replay.step_profile import MeasuredBucket
from dpscope.analysis.what_if.scenarios.lateness import Lateness, expected_latest, lateness
from tests.helpers.replayed_steps import SIMPLE


def test_the_latest_of_n_normal_draws() -> None:
    # tables of order statistics: 0.564 of two, 1.423 of eight, 2.34 of 64, in standard deviations
    samples = [-1.0, 1.0] * 20
    for ranks, expected in ((2, 0.564), (8, 1.423), (64, 2.34)):
        assert expected_latest(samples, ranks) == pytest.approx(expected, rel=0.05)
    assert expected_latest(samples, 1) == 0
    assert expected_latest([5.0], 8) == 0


def test_many_samples_tell_their_own_tail() -> None:
    """Of exponential draws the latest of N is 1 + 1/2 + ... + 1/N less the mean: 4.74 - 1 at 64, where a normal says 2.34."""
    samples = np.random.default_rng(1).exponential(1.0, 4000) - 1.0
    harmonic = sum(1 / n for n in range(1, 65))
    assert expected_latest(samples.tolist(), 64) == pytest.approx(harmonic - 1, rel=0.15)


def arrivals(table: list[list[float]]) -> Lateness:
    """By step and rank, how much later than the first the last rank was."""
    found = []
    for step, late in enumerate(table):
        for rank, one in enumerate(late):
            bucket = MeasuredBucket(1e6, 0, 0, 0, max(late) - one, 0)
            found.append(replace(SIMPLE, rank=rank, step=step, buckets=(bucket,)))
    return lateness(found)


def test_what_is_steady_is_told_from_what_is_random() -> None:
    # rank 1 is 20 late always, and 2 more or less at random: about the mean of both, -10 and 10, and 1 either way
    said = arrivals([[0.0, 18.0], [0.0, 22.0]])
    assert said.steady_us == pytest.approx((-10, 10))
    assert sorted(said.random_us) == pytest.approx([-1, -1, 1, 1])
    assert said.latest_us(2) == pytest.approx(10 + 0.564, rel=0.02)
    assert "4 samples of 2 ranks, normal tail assumed" in said.told


def test_one_rank_tells_nothing() -> None:
    assert not lateness([SIMPLE]).known
    assert lateness([SIMPLE]).latest_us(64) == 0
    assert "--jitter" in Lateness().told
