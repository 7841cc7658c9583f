"""Ranks' clocks set by the ends of their collectives; expectations by hand."""

import pytest

from dpscope.analysis.traces.ranks.clock_alignment import rank_clocks
from dpscope.analysis.traces.ranks.job import NO_TABLES
from dpscope.analysis.traces.ranks.matching import RankOrigin
from dpscope.analysis.traces.reading.table import Table
from tests.helpers.run_cells import traced_table


def collectives(*ends_us: list[float | None], transfer_us: float | None = 1.0) -> Table:
    """Rows as `match_ranks` gives them: per rank the end of collective 0, 1, ..., None where it has
    no part.
    """
    rows = (
        {
            "rank": rank,
            "match": match,
            "start_us": end - 10.0,
            "duration_us": 10.0,
            "transfer_us": transfer_us,
        }
        for rank, ends in enumerate(ends_us)
        for match, end in enumerate(ends)
        if end is not None
    )
    return traced_table("collectives", rows)


def test_a_clock_is_moved_by_the_median_of_the_ends() -> None:
    # Rank 1's trace began 1 s later by its clock. The ends, on one axis as recorded, differ by 7, 5
    # and 6 us: it is set back by 6, and what is left is 1, 1 and 0.
    table = collectives([1_000_100.0, 1_000_200.0, 1_000_300.0], [107.0, 205.0, 306.0])
    first, second = rank_clocks(table, [RankOrigin(0, 0), RankOrigin(1, 1_000_000_000)])
    assert (first.place_us, first.residual_us) == (0.0, None)
    assert (second.moved_us, second.place_us, second.collectives) == (-6.0, 1_000_000.0 - 6.0, 3)
    assert (second.residual_us, second.worst_us) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("host", "moved_us", "left"), [("node", 0.0, (8.0, 14.0)), ("other", -8.0, (6.0, 6.0))]
)
def test_ranks_of_one_host_stand_as_recorded_while_ends_scatter_more(
    host: str, moved_us: float, left: tuple[float, float]
) -> None:
    """Differences 8, 14 and 2: median 8, of which 4.303 x 6 / sqrt(3) = 14.9 may be chance. Of one
    host that is a steady order, of two it is their clocks.
    """
    table = collectives([100.0, 200.0, 300.0], [108.0, 214.0, 302.0])
    _, found = rank_clocks(table, [RankOrigin(0, 0, "node"), RankOrigin(1, 0, host)])
    assert (found.moved_us, (found.residual_us, found.worst_us)) == (moved_us, left)


def test_a_rank_is_placed_by_others_than_the_reference() -> None:
    # Ranks 0 and 2 share nothing; 1 and 2 share collective 1. Rank 1 is 10 us ahead, rank 2 another
    # 5 us.
    table = collectives([100.0, None], [110.0, 210.0], [None, 215.0])
    clocks = rank_clocks(table, [RankOrigin(rank, 0) for rank in range(3)])
    assert [clock.moved_us for clock in clocks] == [0.0, -10.0, -15.0]


def test_without_a_synchronising_collective_clocks_stand_as_recorded_to_the_nanosecond() -> None:
    zero_ns = 1_711_964_646_123_456_789  # no float holds it
    for table in (collectives([100.0], [150.0], transfer_us=None), NO_TABLES.collectives):
        _, found = rank_clocks(table, [RankOrigin(0, zero_ns), RankOrigin(1, zero_ns + 3001)])
        assert found.place_us == pytest.approx(3.001, abs=1e-9)
        assert (found.collectives, found.worst_us) == (0, None)
