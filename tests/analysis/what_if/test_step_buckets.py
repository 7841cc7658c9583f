"""What each of several collectives in flight would cost alone, and how much they slow each other."""

from dataclasses import replace

import pytest

from dpscope.analysis.what_if.replay import Prepared, base_error
from dpscope.analysis.what_if.step_buckets import at_slowdown, slowdown_of
from dpscope.analysis.what_if.step_profile import MeasuredBucket, StepProfile
from tests.helpers.replayed_steps import profile, works


def step_of(*spans: tuple[float, float, float], megabytes: float = 1.0, **more: object) -> StepProfile:
    """Buckets on two workers of gloo by (ready, start, end), microseconds; nothing follows the last."""
    gaps = [later - earlier for (earlier, *_), (later, *_) in zip([(0.0, 0.0, 0.0), *spans], spans, strict=False)]
    rows = tuple(MeasuredBucket(megabytes * 1e6, *times, late_us=0.0, cost_us=times[2] - times[1]) for times in spans)
    made = profile(works([*gaps, 0.0]), after=list(range(1, len(spans) + 1)), ends=tuple(range(len(spans))))
    return replace(made, buckets=rows, servers=2, step_us=max(one.end_us for one in rows), **more)  # type: ignore[arg-type]


# Ready at 0, 10 and 12, 20 us each alone; the third waits for one of two workers.
APART = step_of((0, 0, 20), (10, 10, 30), (12, 20, 40))  # none slows another
SHARED = step_of((0, 0, 30), (10, 10, 50), (12, 30, 60))  # two share every byte, see test_collective_streams.py
# half as much again: 10 left at 10, until 25; by then the second has moved 10, until 40; by then the third 10, until 50
BETWEEN = step_of((0, 0, 25), (10, 10, 40), (12, 25, 50))


@pytest.mark.parametrize(("step", "slowdown"), [(APART, 1.0), (BETWEEN, 1.5), (SHARED, 2.0)])
def test_each_costs_alone_what_it_would(step: StepProfile, slowdown: float) -> None:
    stated = at_slowdown(step, slowdown)
    assert [one.cost_us for one in stated.buckets] == pytest.approx([20, 20, 20], abs=0.1)
    assert base_error(Prepared(stated)) == pytest.approx(0, abs=1e-3)  # the replay uses these costs


def test_the_wrong_factor_gives_equal_buckets_unequal_costs() -> None:
    # taken to share: the first alone 10 of its 20 us, then 5; the second 5 + 5; the third 5, then 10 alone
    assert [one.cost_us for one in at_slowdown(APART, 2.0).buckets] == pytest.approx([15, 10, 15], abs=0.1)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([APART], (1.0, 1.0, 1.0)),
        ([BETWEEN], (1.5, 1.5, 1.5)),
        # twice the bytes in twice the time, next to others and alone: nothing slows anything
        ([APART, step_of((0, 0, 40), (10, 10, 50), (12, 40, 80), megabytes=2.0)], (1.0, 1.0, 1.0)),
        ([SHARED], None),  # as assumed
        ([step_of((0, 0, 20), (30, 30, 50))], None),  # nothing overlaps
        ([replace(APART, servers=1)], None),  # one stream runs all
        # two that overlap, noisy by a tenth: any factor makes costs as unlike
        ([step_of((0, 0, 20), (10, 10, 32)), step_of((0, 0, 23), (10, 10, 31))], None),
    ],
)
def test_how_much_transfers_that_overlap_slow_each_other(
    steps: list[StepProfile], expected: tuple[float, float, float] | None
) -> None:
    assert slowdown_of(steps) == expected


def test_one_stream_has_no_slowdown() -> None:
    assert at_slowdown(replace(APART, servers=1), 1.5).buckets == APART.buckets
