"""What each of several collectives in flight would cost alone on the link that they share."""

import pytest

from dpscope.analysis.what_if.step_buckets import as_replayed
from dpscope.analysis.what_if.step_profile import MeasuredBucket


@pytest.mark.parametrize(
    ("servers", "spans"),
    [
        # ready at 0, 10 and 12, 20 us each alone; two share every byte, the third waits for one of
        # two workers, see test_collective_streams.py
        (2, [(0, 0, 30), (10, 10, 50), (12, 30, 60)]),
        (1, [(0, 0, 20), (10, 20, 40), (12, 40, 60)]),  # one stream runs them one after another
    ],
)
def test_each_costs_alone_what_it_would(
    servers: int, spans: list[tuple[float, float, float]]
) -> None:
    measured = [
        MeasuredBucket(1e6, *span, late_us=0.0, cost_us=span[2] - span[1]) for span in spans
    ]
    costs = [one.cost_us for one in as_replayed(measured, 0.0, 0.0, servers)]
    assert costs == pytest.approx([20, 20, 20], abs=0.1)


def test_the_way_of_a_stream_from_one_to_the_next_and_a_late_rank_are_no_cost() -> None:
    """The first is ready at 0, waits 5 us for a late rank and moves until 30; 2 us later the second
    does, until 50.
    """
    first = MeasuredBucket(1e6, 0, 0, 30, late_us=5.0, cost_us=30.0)
    second = MeasuredBucket(1e6, 10, 32, 50, late_us=0.0, cost_us=18.0)
    assert [one.cost_us for one in as_replayed([first, second], 0.0, 2.0, 1)] == [25, 18]
