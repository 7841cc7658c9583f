"""Four ranks whose traces name no group: one group of all, or two of two that only look alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.known import codes
from tests.helpers.made_traces import ALL_REDUCE, event, operator, step, steps_with, write


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


NAMED = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 4}


@pytest.mark.parametrize(
    ("durations", "recorded"), [((100, 300), {}), ((100, 100, 300, 300), NAMED)]
)
def test_two_ranks_and_known_groups_are_not_judged_by_their_ends(
    tmp_path: Path, durations: Sequence[int], recorded: dict[str, Any]
) -> None:
    """Two ranks can only be one group; and of four the traces name the group, whatever the clocks
    say.
    """
    for rank, duration in enumerate(durations):
        write(
            tmp_path,
            steps_with([(100, 100 + duration)], **recorded),
            rank,
            len(durations),
            host_name="node",
        )
    table = analyze_traces([tmp_path]).collectives
    assert table["wait_us"].tolist() == [duration - 100 for duration in durations]
    assert table["match"].notna().all()


def test_ranges_of_gloo_may_end_apart(tmp_path: Path) -> None:
    """A worker closes its range once it has a core again: 200 us later on two of the ranks is no
    evidence of groups.
    """
    for rank, duration in enumerate((100, 100, 300, 300)):
        events = [step(1, 0, 1_000), event("user_annotation", "gloo:all_reduce", 100, duration)]
        write(tmp_path, events, rank, 4, host_name="node")
    analysis = analyze_traces([tmp_path])
    assert "groups_unknown" not in codes(analysis)
    assert analysis.collectives["transfer_us"].eq(100).all()


def test_one_group_on_two_hosts_is_matched_whatever_their_clocks(tmp_path: Path) -> None:
    """All end at 400, 420 and 430 by the first host's clock; late by turns: rank 0 waits 150, 0 and
    30 us, rank 2 0, 100, 0.
    """
    ends = [[400, 420, 430]] * 4
    starts = [[150, 320, 300], [200, 300, 310], [300, 220, 330], [250, 270, 320]]
    analysis = analyzed(tmp_path, starts, ends, TWO_HOSTS)
    assert "groups_unknown" not in codes(analysis)
    waits = analysis.collectives.set_index(["rank", "step"])["wait_us"]
    assert waits[0].tolist() == [150, 0, 30]
    assert waits[2].tolist() == [0, 100, 0]


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


def test_a_late_rank_in_each_of_two_pairs_is_no_group_of_four(tmp_path: Path) -> None:
    """Ranks 0 and 2 are late in their pairs by 1 s, but 5 ms apart: 0.5% of the waiting."""
    starts, ends = late_by_a_second(16.0)
    starts[0] = [end - 100.0 for end in ends[0]]
    starts[2] = [start + 5_000.0 for start in starts[2]]
    for rank in (2, 3):
        ends[rank] = [end + 5_000.0 for end in ends[rank]]
    analysis = analyzed(tmp_path, starts, ends, all_to_all=True)
    assert "groups_unknown" in codes(analysis)
    assert analysis.collectives["wait_us"].isna().all()
