"""Four ranks whose traces name no group: one group of all, or two of two that only look alike."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.known import codes
from tests.helpers.made_traces import ALL_REDUCE, operator, steps_with, write


def analyzed(
    folder: Path,
    starts: Sequence[Sequence[float]],
    ends: Sequence[Sequence[float]],
    hosts: Sequence[str] = ("node",) * 4,
    all_to_all: bool = False,
) -> Job:
    """Per rank steps of 1,000 us (for an all-to-all of 3 s), an all-reduce in each, from its start
    to its end within the step.

    The clock of the host "second" is 300 us behind the others'.
    """
    step_us, kernel = (3e6, "ncclDevKernel_SendRecv") if all_to_all else (1e3, ALL_REDUCE)
    for rank, (own_starts, own_ends, host) in enumerate(zip(starts, ends, hosts, strict=True)):
        spans = list(zip(own_starts, own_ends, strict=True))
        events = steps_with(spans, kernel, 0.0 if host == "second" else 300.0, step_us)
        if all_to_all:
            events += [
                operator("c10d::alltoall_base_", step_us * index + 300, 4.0)
                for index in range(len(spans))
            ]
        write(folder, events, rank, 4, **({"host_name": host} if host else {}))
    return analyze_traces([folder])


TWO_HOSTS = ("first", "first", "second", "second")


@pytest.mark.parametrize("hosts", [("node",) * 4, TWO_HOSTS])
def test_two_pairs_are_not_matched_as_one_group(tmp_path: Path, hosts: Sequence[str]) -> None:
    """100 us in each of the pairs, the second one's 300 us long: 200 us of waiting would be
    invented.

    On two hosts, whose clocks may be apart, the steady distance looks like one group's.
    """
    analysis = analyzed(tmp_path, [[100] * 3] * 4, [[200] * 3] * 2 + [[400] * 3] * 2, hosts)
    assert (
        analysis.collectives[["wait_us", "transfer_us", "group_size", "busbw_gb_per_s"]]
        .isna()
        .all(axis=None)
    )
    assert "groups_unknown" in codes(analysis)
    assert "collectives_unmatched" not in codes(analysis)


@pytest.mark.parametrize("host", ["node", ""])
def test_ranks_that_end_together_are_one_group(tmp_path: Path, host: str) -> None:
    """All end at 400; the last to come, at 300, needed 100 us, the others waited 200, 100 and 50
    more.
    """
    analysis = analyzed(
        tmp_path, [[100] * 3, [200] * 3, [250] * 3, [300] * 3], [[400] * 3] * 4, [host] * 4
    )
    first = analysis.collectives[analysis.collectives["step"] == 1]
    assert first["wait_us"].tolist() == [200, 100, 50, 0]
    assert analysis.collectives["group_size"].eq(4).all()
    assert "groups_unknown" not in codes(analysis)


def test_a_clock_that_is_off_outweighs_no_steady_distance(tmp_path: Path) -> None:
    """Rank 3's clock is 500 us ahead of its host's; its ends keep that distance while its waits are
    150, 0 and 90 us.
    """
    starts = [[200, 250, 300]] * 3 + [[550, 750, 710]]
    ends = [[300, 350, 400]] * 3 + [[800, 850, 900]]
    analysis = analyzed(tmp_path, starts, ends)
    assert "groups_unknown" not in codes(analysis)
    assert analysis.collectives.set_index(["rank", "step"])["wait_us"][3].tolist() == [150, 0, 90]


def late_by_a_second(apart_us: float) -> tuple[list[list[float]], list[list[float]]]:
    """Starts and ends of 12 collectives on four ranks: rank 2 is late by about 1 s, ends are up to
    `apart_us` apart.

    Ranks 0 and 3, which wait equally long, are within 20 us of each other in half of them.
    """
    starts: list[list[float]] = [[], [], [], []]
    ends: list[list[float]] = [[], [], [], []]
    for index in range(12):
        ends_at = 1_000_100.0 + 300.0 * index
        far = 0.4 * apart_us if index % 2 else 10.0
        for rank, shift in enumerate((0.0, 0.5 * apart_us, apart_us, far)):
            starts[rank].append(ends_at - 100.0 + shift if rank == 2 else 5.0)
            ends[rank].append(ends_at + shift)
    return starts, ends


@pytest.mark.parametrize("apart_us", [16.0, 113.0])
def test_one_late_rank_shows_that_all_take_part(tmp_path: Path, apart_us: float) -> None:
    """Rank 2 transfers in about 100 us and the others wait about 1 s for it, in each of 12
    collectives.
    """
    starts, ends = late_by_a_second(apart_us)
    analysis = analyzed(tmp_path, starts, ends, all_to_all=True)
    assert "groups_unknown" not in codes(analysis)
    waits = analysis.collectives.groupby("rank")["wait_us"].min()
    assert waits[2] == 0
    assert (waits.drop(2) > 990_000).all()
    assert set(analysis.waits["late_rank"]) == {2}


def test_ends_that_are_far_apart_for_the_wait_show_nothing(tmp_path: Path) -> None:
    """By up to 3 ms after a wait of 1 s, which excuses one."""
    starts, ends = late_by_a_second(3_000.0)
    assert "groups_unknown" in codes(analyzed(tmp_path, starts, ends, all_to_all=True))
