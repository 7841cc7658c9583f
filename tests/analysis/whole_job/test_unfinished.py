"""Who stopped a job: the jobs whose authors injected the fault, and made ones."""

import shutil
from pathlib import Path

import pytest

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import read_job
from dpscope.analysis.whole_job.summary import Summary, called, summarise
from dpscope.analysis.whole_job.tables import waiting_rows
from dpscope.analysis.whole_job.unfinished import Unfinished, unfinished_of
from tests.helpers.collective_records import dump, entry, write_dumps
from tests.helpers.known import known
from tests.helpers.made_verdicts import said
from tests.helpers.paths import DATA


def unfinished(folder: Path) -> Unfinished | None:
    return unfinished_of(read_job(find_files(folder), 1 << 30))


def test_ranks_whose_interpreter_was_held_are_named() -> None:
    found = unfinished(DATA / "flight_recorder" / "lock_gil")
    assert found is not None
    assert found.only
    assert found.oldest is not None
    assert found.oldest.stopped == (9, 14)
    assert found.oldest.waiting == (8, 10, 11, 12, 13, 15)
    assert found.oldest.call.kind == "all_to_all"
    assert found.oldest.call.group.ranks == tuple(range(8, 16))


def test_no_rank_is_named_where_hosts_ran_ahead_of_dead_gpus() -> None:
    folder = DATA / "flight_recorder" / "gpu_error"
    found = unfinished(folder)
    assert found is not None
    assert found.oldest is not None
    assert found.oldest.ran_ahead
    assert found.ends == (12, 14)  # the GPUs that its authors stopped
    summary = summarise(read_job(find_files(folder), 1 << 30))
    texts = " ".join(fact.text for fact in summary.verdict.shown)
    assert "the chain of waits ends at ranks 12, 14" in texts
    assert "rank 12 never began all_to_all 20537" in texts
    assert "calls before it had not completed there, either" in texts
    assert "look at rank" not in texts.lower()


def pending(number: int) -> dict[str, object]:
    return entry(number, state="scheduled", retired=False)


def test_a_job_that_ended_has_nothing_unfinished(tmp_path: Path) -> None:
    assert unfinished(write_dumps(tmp_path, [dump([entry(1)]), dump([entry(1)])])) is None


def test_calls_in_flight_that_all_ranks_began_name_nobody(tmp_path: Path) -> None:
    found = unfinished(write_dumps(tmp_path, [dump([entry(1), pending(2)])] * 2))
    assert found is not None
    assert found.oldest is None
    assert not found.only


def without(tmp_path: Path, *ranks: int, job: str = "lock_gil") -> Summary:
    """A job of which these ranks' dumps are lost."""
    folder = tmp_path / "dumps"
    shutil.copytree(DATA / "flight_recorder" / job, folder)
    for rank in ranks:
        (folder / f"_dump_{rank}").unlink()
    return summarise(read_job(find_files(folder), 1 << 30))


@pytest.mark.parametrize(
    ("gone", "stopped", "missing"),
    [
        ((9, 14), (), (9, 14)),  # the ranks that stopped the job left no dump
        ((5, 9, 14), (), (9, 14)),  # nobody waits for rank 5 first
        ((9,), (14,), (9,)),
        ((*range(8), *range(9, 16)), (), tuple(range(9, 16))),  # rank 8's dump alone
        ((8,), (9, 14), (8,)),
        ((3,), (9, 14), ()),  # also where others left none
    ],
)
def test_a_rank_without_a_dump_may_be_what_stopped_the_job(
    tmp_path: Path, gone: tuple[int, ...], stopped: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    """A dead rank writes no dump."""
    summary = without(tmp_path, *gone)
    oldest = known(known(summary.unfinished).oldest)
    assert called(oldest.call, oldest.number) == "all_to_all 45265"
    assert (oldest.stopped, oldest.missing) == (stopped, missing)
    step = said(summary.verdict, "next")
    first = stopped or missing
    assert (
        f"NEXT: Look at {'rank' if len(first) == 1 else 'ranks'} {as_ranges(first)} first" in step
    )
    assert ("add the records of" in step) == (not stopped)
    assert ("(no record)" in step) == bool(stopped and missing)
    assert ("device failed (Xid, ECC)" in step) == (not stopped)
    (limit,) = [one for one in summary.verdict.limits if one.label == "INCOMPLETE"]
    assert limit.lines[0].endswith(f" {as_ranges(sorted(gone))}")
    assert any(one.severity == "error" for one in summary.findings)
    if missing:
        assert f"{as_ranges(missing)} left no record, and may never have" in said(
            summary.verdict, "stopped"
        )


@pytest.mark.parametrize(
    ("gone", "ends"),
    [(0, (12, 14)), (8, (12, 14)), (12, (14,)), (13, (14,)), (14, (12,)), (15, (12,))],
)
def test_hosts_that_ran_ahead_show_it_without_a_rank_s_dump(
    tmp_path: Path, gone: int, ends: tuple[int, ...]
) -> None:
    """The device's failure is the first answer, the lost dump the second."""
    summary = without(tmp_path, gone, job="gpu_error")
    assert known(known(summary.unfinished).oldest).ran_ahead
    assert known(summary.unfinished).ends == ends
    *_, ran_ahead, chain, lost = known(summary.verdict.fact("stopped")).lines
    assert ran_ahead.endswith("hosts ran ahead of a device that stopped")
    assert chain.endswith(f"ends at {'rank' if len(ends) == 1 else 'ranks'} {as_ranges(ends)}")
    assert lost.startswith(f"rank {gone} left no record")
    step = said(summary.verdict, "next")
    first = chain.partition("ends at ")[2]
    assert f"Look for a failed device in the logs of {first} first, then of all hosts (X" in step
    assert summary.verdict.fact("cost") is None
    assert step.endswith(f"add the records of rank {gone}")


def test_without_both_dead_gpus_ranks_all_wait_for_what_is_missing(tmp_path: Path) -> None:
    summary = without(tmp_path, 12, 14, job="gpu_error")
    assert known(summary.unfinished).ends == ()
    step = said(summary.verdict, "next")
    assert step.startswith("NEXT: Look at ranks 12, 14 first: device failed (Xid, ECC), or")


def test_a_rank_behind_an_older_call_of_its_own_is_no_end(tmp_path: Path) -> None:
    """Rank 0 of three waits in a call with rank 1, which waits for the dead rank 2 before it."""
    pair = pending(9) | {"process_group": ("1", "pair"), "collective_seq_id": 1}
    dumps = [dump([pair], (0, 1, 2)), dump([pending(5), pair], (0, 1, 2))]
    for one in dumps:
        one["pg_config"]["1"] = {"name": "1", "desc": "pair", "ranks": "[0, 1]"}
    summary = summarise(read_job(find_files(write_dumps(tmp_path, dumps)), 1 << 30))
    waits_for = {row["oldest"]: row["waits_for"] for row in waiting_rows(summary)}
    assert waits_for == {"all_reduce 1": [1], "all_reduce 5": [0, 2]}
    assert known(summary.unfinished).ends == ()
    assert "Look at rank 2 first" in said(summary.verdict, "next")


def test_one_dump_without_a_call_asks_for_the_others() -> None:
    dump = DATA / "flight_recorder" / "lock_gil" / "_dump_9"
    summary = summarise(read_job(find_files(dump), 1 << 30))
    step = said(summary.verdict, "next")
    assert step == "NEXT: No unfinished call on rank 9: add the records of ranks 0 to 8, 10 to 15"


def test_ranks_that_wait_for_a_culprit_come_first() -> None:
    folder = DATA / "flight_recorder" / "lock_gil"
    rows = waiting_rows(summarise(read_job(find_files(folder), 1 << 30)))
    assert [row["ranks"][0] for row in rows] == [1, 6, 8, 0, 2, 3, 4, 5, 7]


def test_transfers_show_who_waits_for_whom() -> None:
    """Rank 0 sends to rank 8 in the pipeline, which waits for ranks 9 and 14."""
    folder = DATA / "flight_recorder" / "lock_gil"
    rows = waiting_rows(summarise(read_job(find_files(folder), 1 << 30)))
    by_rank = {rank: row for row in rows for rank in row["ranks"]}
    assert by_rank[0]["oldest"] == "send 0->1 14147"
    assert (by_rank[0]["group_ranks"], by_rank[0]["waits_for"]) == ([0, 8], [8])
    assert (by_rank[8]["oldest"], by_rank[8]["waits_for"]) == ("all_to_all 45265", [9, 14])


def test_a_rank_that_never_began_a_transfer_is_named_where_all_collectives_were_begun(
    tmp_path: Path,
) -> None:
    """Rank 1 of two waits for rank 0's send."""
    received = entry(
        7,
        profiling_name="nccl:recv 1<-0",
        is_p2p=True,
        p2p_seq_id=1,
        state="scheduled",
        retired=False,
    )
    folder = write_dumps(tmp_path, [dump([entry(1)]), dump([entry(1), received])])
    oldest = known(known(unfinished(folder)).oldest)
    assert (called(oldest.call, oldest.number), oldest.stopped) == ("recv 0->1 1", (0,))


def shown(folder: Path) -> list[tuple[str, str]]:
    """Severity and message of what is reported as not begun."""
    findings = summarise(read_job(find_files(folder), 1 << 30)).findings
    return [(one.severity, one.message) for one in findings if one.code == "collective_not_begun"]


def test_collective_not_begun_is_reported_where_a_member_lacks_it(tmp_path: Path) -> None:
    begun, both = dump([entry(1)]), dump([entry(1), pending(2)])
    stopped = (
        "rank 1 never began the oldest unfinished call, in which rank 0 waits: "
        "all_reduce 2 of default_pg (ranks 0, 1, 4.00 kB)"
    )
    assert shown(write_dumps(tmp_path / "lacks", [both, begun])) == [("warning", stopped)]
    # a watchdog writes what had not completed alone: rank 1 began 1 and nothing later
    alone = [dump([pending(2)]), dump([])]
    assert shown(write_dumps(tmp_path / "watchdog", alone)) == [("error", stopped)]
    # near misses: rank 1 began it, and completed it; or it began a later one
    assert shown(write_dumps(tmp_path / "began", [both, both])) == []
    completed = dump([entry(1), entry(2)])
    assert shown(write_dumps(tmp_path / "completed", [both, completed])) == []
    later = dump([entry(1), entry(3)])
    assert shown(write_dumps(tmp_path / "later", [both, later])) == []
