"""Matching across ranks: transfer, wait, bandwidth factors, stragglers; expectations by hand."""

from collections.abc import Mapping, Sequence

import pytest

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.traces.ranks.frames import match_ranks, step_waits, waits_caused
from dpscope.analysis.traces.ranks.lateness import last_rank
from dpscope.analysis.traces.ranks.matching import MatchedRanks
from dpscope.analysis.traces.reading.table import Table
from tests.helpers.collective_tables import rank_table
from tests.helpers.known import known

Rows = Sequence[Mapping[str, object]]


def matched(*ranks: Rows, device: int | None = 0) -> MatchedRanks:
    return match_ranks([rank_table(rank, rows, device) for rank, rows in enumerate(ranks)])


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [  # nccl-tests, doc/PERFORMANCE.md
        ("all_reduce", 2, 1.0), ("all_reduce", 4, 1.5), ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75), ("reduce_scatter", 4, 0.75), ("all_to_all", 4, 0.75),
        ("broadcast", 4, 1.0), ("reduce", 4, 1.0), ("send_recv", 2, 1.0),
        ("all_reduce", 1, None), ("barrier", 4, None), (None, 4, None),
    ],
)  # fmt: skip
def test_bus_factor(kind: str | None, ranks: int, factor: float | None) -> None:
    assert bus_factor(kind, ranks) == factor


def test_the_shortest_rank_gives_the_transfer_and_the_rest_is_wait() -> None:
    found = matched([{"duration_us": 700.0}], [{"duration_us": 200.0}])
    assert found.table["transfer_us"].tolist() == [200.0, 200.0]
    assert found.table["wait_us"].tolist() == [500.0, 0.0]
    # 1e6 B / 200 us = 5 GB/s, on two ranks busbw is the same; rank 0's own duration gives 1e6 / 700
    # us
    assert (
        found.table["algbw_gb_per_s"].tolist()
        == found.table["busbw_gb_per_s"].tolist()
        == [5.0, 5.0]
    )
    assert found.table["lower_bound_gb_per_s"].tolist() == pytest.approx([1e6 / 700 / 1e3, 5.0])
    assert found.unmatched == 0


def test_sequence_numbers_match_windows_that_start_at_different_collectives() -> None:
    found = matched(
        [{"sequence": 8, "duration_us": 20.0}, {"sequence": 9, "duration_us": 30.0}],
        [{"sequence": 7, "duration_us": 99.0}, {"sequence": 8, "duration_us": 25.0}],
    )
    by_sequence = found.table.set_index(["rank", "sequence"])
    assert by_sequence["transfer_us"].dropna().to_dict() == {(0, 8): 20.0, (1, 8): 20.0}
    assert by_sequence["wait_us"].dropna().to_dict() == {(0, 8): 0.0, (1, 8): 5.0}
    assert found.unmatched == 2
    assert [finding.code for finding in found.findings] == ["collectives_unmatched"]
    # Whatever the step.
    found = matched(
        [{"sequence": 4, "step": None, "duration_us": 9.0}],
        [{"sequence": 4, "step": 2, "duration_us": 8.0}],
    )
    assert found.table["transfer_us"].tolist() == [8.0, 8.0]


def test_a_number_given_twice_goes_by_its_repetition() -> None:
    """Coalesced calls share a number; a send of the same number is another matter."""
    coalesced = [
        {"sequence": 4, "kind": kind, "bytes": size, "duration_us": duration}
        for kind, size, duration in (
            ("all_reduce", 80, 9.0),
            ("send", 7, 3.0),
            ("all_reduce", 90, 5.0),
        )
    ]
    found = matched(coalesced, coalesced)
    assert found.unmatched == 0
    assert found.table["transfer_us"].fillna(-1).tolist() == [9.0, -1.0, 5.0] * 2


def test_rooted_collectives_and_a_group_of_one_have_neither_transfer_nor_wait() -> None:
    found = matched(*([{"kind": "broadcast", "duration_us": 10.0 + rank}] for rank in range(2)))
    assert found.table[["transfer_us", "wait_us", "busbw_gb_per_s"]].isna().all(axis=None)
    assert found.table["lower_bound_gb_per_s"].notna().all()
    alone = matched([{"group_size": 1, "duration_us": 10.0}])
    assert alone.table[["transfer_us", "busbw_gb_per_s"]].isna().all(axis=None)
    assert found.unmatched == alone.unmatched == 0


def test_waits_that_overlap_are_lost_once() -> None:
    """gloo: two collectives wait from 0 to 50 and from 20 to 70 for one late rank: 70 us, not
    100.
    """
    waiting = [
        {"start_us": 0.0, "duration_us": 60.0},
        {"start_us": 20.0, "duration_us": 60.0, "bytes": 5},
    ]
    late = [
        {"start_us": 50.0, "duration_us": 10.0},
        {"start_us": 70.0, "duration_us": 10.0, "bytes": 5},
    ]
    waits = step_waits(matched(waiting, late, device=None).table).set_index("rank")
    assert waits["wait_us"].tolist() == [70.0, 0.0]
    assert waits["transfer_us"].tolist() == [20.0, 20.0]


@pytest.mark.parametrize(
    ("waits", "steps", "lateness_us", "share"),
    [
        # Rank 1 is 50 us late in both steps, rank 2 never: two collectives a step, both wait 50 us,
        # once lost.
        ({(1, 1, 2, 2): ((50.0,) * 4, (0.0,) * 4, (50.0,) * 4)}, 2, 50.0, 1.0),
        # Step 1: ranks 0 and 2 wait 50 and 30 us for rank 1. Step 2: ranks 1 and 2 wait 20 us each
        # for rank 0. Rank 1: 80 of 120 us, over two other ranks and two steps 20 us each. It is
        # last in one step of two; so is rank 0, to which less is lost.
        ({(1, 2): ((50.0, 0.0), (0.0, 20.0), (30.0, 20.0))}, 1, 20.0, 80 / 120),
    ],
)
def test_the_last_rank_is_the_one_that_is_last_in_most_steps(
    waits: dict[tuple[int, ...], tuple[tuple[float, ...], ...]],
    steps: int,
    lateness_us: float,
    share: float,
) -> None:
    ((labels, by_rank),) = waits.items()
    rows = [
        [
            {"step": label, "group_size": 3, "duration_us": 10.0 + wait}
            for label, wait in zip(labels, own, strict=True)
        ]
        for own in by_rank
    ]
    last = known(last_rank(Table.from_frame(matched(*rows).table)))
    assert (last.rank, last.steps, last.of_steps) == (1, steps, 2)
    assert (last.lateness_us, last.share) == pytest.approx((lateness_us, share))


def test_a_step_of_which_a_rank_lacks_some_is_not_matched_by_order() -> None:
    """Four alike in both steps, of which rank 1 lacks two in the first: any two may be the ones
    that it shows.
    """
    alike = [{"step": step, "duration_us": 10.0 + number} for step in (1, 2) for number in range(4)]
    found = matched(alike, alike[2:])
    by_step = found.table.groupby("step")["transfer_us"]
    assert by_step.apply(lambda values: values.notna().sum()).to_dict() == {1: 0, 2: 8}
    assert found.unmatched == 6


def test_who_made_whom_wait() -> None:
    """Step 1: rank 2 is 50 us late to two collectives that wait side by side (0-60, 40-100: 90 us
    lost by rank 0).

    Step 2: rank 0 is 30 us late; rank 1 always comes with the last.
    """
    waits = {0: (50.0, 50.0, 0.0), 1: (0.0, 0.0, 30.0), 2: (-1.0, -1.0, 30.0)}
    starts = ((1, 0.0), (1, 40.0), (2, 200.0))
    caused = waits_caused(
        matched(
            *(
                [
                    {"step": step, "group_size": 3, "start_us": start, "duration_us": 10 + wait}
                    for (step, start), wait in zip(starts, own, strict=True)
                ]
                for own in waits.values()
            )
        ).table
    )
    found = {(row["late_rank"], row["waiting_rank"]): row for row in caused.to_dict("records")}
    # rank 2 is the shortest by 1 us in step 1: rank 0 waits 51 and 51, from 0 and from 40: 0-91;
    # rank 1 waits 1 and 1
    expected = {(2, 0): 91.0, (2, 1): 2.0, (0, 1): 30.0, (0, 2): 30.0}
    assert {key: row["wait_us"] for key, row in found.items()} == expected
    assert (found[2, 0]["wait_per_step_us"], found[2, 0]["collectives"]) == (45.5, 2)
    assert caused["wait_us"].is_monotonic_decreasing
    assert caused["wait_share"].sum() == pytest.approx(1.0)
