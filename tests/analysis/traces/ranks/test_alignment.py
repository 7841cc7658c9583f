"""Shifted windows and who made whom wait; expectations by hand."""

import pytest

from dpscope.analysis.traces.ranks.frames import match_ranks, waits_caused
from tests.helpers.collective_tables import rank_table

SIZES = (800, 300, 200, 400, 500)


def rows(first: int, last: int, duration: float, step: int | None = 1) -> list[dict[str, object]]:
    """Collectives number first to last of a series of three steps of five."""
    return [
        {"bytes": SIZES[number % 5], "duration_us": duration + number, "start_us": 100.0 * number, "step": step}
        for number in range(first, last)
    ]


@pytest.mark.parametrize(("first", "last"), [(2, 15), (0, 13), (1, 12), (4, 15)])
def test_a_window_that_begins_later_is_shifted(first: int, last: int) -> None:
    matched = match_ranks([rank_table(0, rows(0, 15, 20.0, None)), rank_table(1, rows(first, last, 10.0, None))])
    own = matched.table[matched.table["rank"] == 1]
    # rank 1's collective k lasts 10 + k, rank 0's 20 + k: the transfer is rank 1's own duration
    assert own["transfer_us"].tolist() == [10.0 + number for number in range(first, last)]
    other = matched.table[matched.table["rank"] == 0]
    assert other["wait_us"].dropna().tolist() == [10.0] * (last - first)
    assert matched.unmatched == 15 - (last - first)


def test_both_ranks_may_miss_some() -> None:
    tables = [rank_table(0, rows(0, 13, 20.0, None)), rank_table(1, rows(2, 15, 10.0, None))]
    matched = match_ranks(tables)
    assert matched.table["transfer_us"].dropna().tolist() == 2 * [10.0 + number for number in range(2, 13)]
    assert matched.unmatched == 4


def test_a_step_that_lost_its_beginning_is_shifted_and_the_others_are_not() -> None:
    whole = rows(0, 5, 20.0, 1) + rows(5, 10, 20.0, 2)
    matched = match_ranks([rank_table(0, whole), rank_table(1, rows(3, 5, 10.0, 1) + rows(5, 10, 10.0, 2))])
    assert matched.unmatched == 3
    assert matched.table.loc[matched.table["rank"] == 0, "wait_us"].dropna().tolist() == [10.0] * 7


def test_where_several_shifts_fit_nothing_is_matched() -> None:
    alike: list[dict[str, object]] = [{"duration_us": 10.0 + number} for number in range(4)]
    matched = match_ranks([rank_table(0, alike), rank_table(1, alike[:2])])
    assert matched.table["transfer_us"].isna().all()
    assert matched.unmatched == 6


def test_a_number_given_twice_goes_by_its_repetition() -> None:
    """Coalesced calls share a number; a send of the same number is another matter."""
    coalesced = [
        {"sequence": 4, "kind": kind, "bytes": size, "duration_us": duration}
        for kind, size, duration in (("all_reduce", 80, 9.0), ("send", 7, 3.0), ("all_reduce", 90, 5.0))
    ]
    matched = match_ranks([rank_table(rank, coalesced) for rank in range(2)])
    assert matched.unmatched == 0
    assert matched.table["transfer_us"].fillna(-1).tolist() == [9.0, -1.0, 5.0] * 2


def test_a_number_matches_whatever_the_step() -> None:
    first = rank_table(0, [{"sequence": 4, "step": None, "duration_us": 9.0}])
    second = rank_table(1, [{"sequence": 4, "step": 2, "duration_us": 8.0}])
    assert match_ranks([first, second]).table["transfer_us"].tolist() == [8.0, 8.0]


def test_who_made_whom_wait() -> None:
    """Step 1: rank 2 is 50 us late to two collectives that wait side by side (0-60, 40-100: 90 us lost by rank 0).

    Step 2: rank 0 is 30 us late; rank 1 always comes with the last.
    """
    waits = {0: ((50.0, 50.0), 0.0), 1: ((0.0, 0.0), 30.0), 2: ((0.0, 0.0), 30.0)}
    tables = []
    for rank, ((first, second), third) in waits.items():
        tables.append(
            rank_table(
                rank,
                [
                    {"step": 1, "group_size": 3, "start_us": 0.0, "duration_us": 10 + first - (rank == 2)},
                    {"step": 1, "group_size": 3, "start_us": 40.0, "duration_us": 10 + second - (rank == 2)},
                    {"step": 2, "group_size": 3, "start_us": 200.0, "duration_us": 10 + third},
                ],
            )
        )
    caused = waits_caused(match_ranks(tables).table)
    found = {(row["late_rank"], row["waiting_rank"]): row for row in caused.to_dict("records")}
    # rank 2 is the shortest by 1 us in step 1: rank 0 waits 51 and 51, from 0 and from 40: 0-91; rank 1 waits 1 and 1
    assert {key: row["wait_us"] for key, row in found.items()} == {
        (2, 0): 91.0,
        (2, 1): 2.0,
        (0, 1): 30.0,
        (0, 2): 30.0,
    }
    assert found[2, 0]["wait_per_step_us"] == 45.5
    assert found[2, 0]["collectives"] == 2
    assert caused["wait_us"].is_monotonic_decreasing
    assert caused["share"].sum() == pytest.approx(1.0)


def test_without_waits_the_table_is_empty() -> None:
    tables = [rank_table(rank, [{"duration_us": 10.0}]) for rank in range(2)]
    assert waits_caused(match_ranks(tables).table).empty
    assert waits_caused(match_ranks(tables[:1]).table).empty
