"""Who stopped a job: the jobs whose authors injected the fault, and made ones."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from dpscope.analysis.text.units import as_ranges, ranks_named
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import RecordedJob, read_job
from dpscope.analysis.whole_job.summary import Summary, summarise
from dpscope.analysis.whole_job.tables import waiting_rows
from dpscope.analysis.whole_job.unfinished import Unfinished, ranks_in, unfinished_of
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.collective_records import dump, entry, write_dumps
from tests.helpers.known import known
from tests.helpers.made_verdicts import said
from tests.helpers.paths import DATA


def unfinished(folder: Path) -> Unfinished | None:
    return unfinished_of(read_job(find_files(folder), 1 << 30))


def test_ranks_whose_interpreter_was_held_are_named() -> None:
    found = known(unfinished(DATA / "flight_recorder" / "lock_gil"))
    assert found.only
    assert found.stopped == (9, 14)
    first = found.not_begun[0]
    assert first.waiting == (8, 10, 11, 12, 13, 15)
    assert first.call.kind == "all_to_all"
    assert first.call.group.ranks == tuple(range(8, 16))


def test_no_rank_is_named_where_hosts_ran_ahead_of_dead_gpus() -> None:
    folder = DATA / "flight_recorder" / "gpu_error"
    summary = summarise(read_job(find_files(folder), 1 << 30))
    found = known(summary.unfinished)
    assert found.stopped == ()
    assert found.ends == (12, 14)  # the GPUs that its authors stopped
    assert "chain of waits ends at ranks 12, 14" in said(summary.verdict, "stopped")
    assert "failed device" in said(summary.verdict, "next")
    assert summary.verdict.fact("cost") is None


def pending(number: int) -> dict[str, object]:
    return entry(number, state="scheduled", retired=False)


def test_a_job_that_ended_has_nothing_unfinished(tmp_path: Path) -> None:
    assert unfinished(write_dumps(tmp_path, [dump([entry(1)]), dump([entry(1)])])) is None


def test_calls_in_flight_that_all_ranks_began_name_nobody(tmp_path: Path) -> None:
    assert unfinished(write_dumps(tmp_path, [dump([entry(1), pending(2)])] * 2)) is None


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
    found = known(summary.unfinished)
    assert (found.stopped, found.missing) == (stopped, missing)
    step = said(summary.verdict, "next")
    assert f" {as_ranges(stopped or missing)} first" in step
    assert ("add the records of" in step) == (not stopped)
    assert ("(no record)" in step) == bool(stopped and missing)
    assert ("a failed device (Xid, ECC, links)" in step) == (not stopped)
    (limit,) = [one for one in summary.verdict.limits if one.label == "INCOMPLETE"]
    assert limit.lines[0].endswith(f" {as_ranges(sorted(gone))}")
    assert any(one.severity == "error" for one in summary.findings)


CULPRITS = {"lock_gil": {9, 14}, "gpu_error": {12, 14}}


def without_up_to_two(job: RecordedJob) -> Iterator[tuple[set[int], Unfinished]]:
    """What had not completed by the dumps of all ranks but none, one or two."""
    for count in range(3):
        for gone in combinations(job.ranks, count):
            kept = [(rank, process) for rank, process in job.by_rank if rank not in gone]
            ranks, processes = zip(*kept, strict=True)
            fewer = replace(job, processes=processes, ranks=ranks, hosts=(None,) * len(ranks))
            yield set(gone), known(unfinished_of(fewer))


@pytest.mark.long
@pytest.mark.parametrize("name", CULPRITS)
def test_without_any_two_dumps_no_innocent_is_accused(name: str) -> None:
    """The culprits are proven, or else among those that are said to be possible."""
    culprits = CULPRITS[name]
    job = read_job(find_files(DATA / "flight_recorder" / name), 1 << 30)
    for gone, found in without_up_to_two(job):
        possible = {*found.missing, *ranks_in(found.not_recorded)}
        if name == "lock_gil":
            assert set(found.stopped) == culprits - gone, gone
            assert found.ends == (), gone
            assert culprits & gone <= possible, gone
        else:
            assert found.stopped == (), gone
            assert culprits.issuperset(found.ends), gone
            assert culprits <= {*found.ends, *possible}, gone


def test_all_that_never_began_a_call_come_before_those_without_a_record(tmp_path: Path) -> None:
    """Ranks 1 and 6 send to ranks 9 and 14, which wait in nothing."""
    summary = without(tmp_path, 8, *range(10, 14), 15)
    first, missing, _ = known(summary.verdict.fact("stopped")).lines
    assert first.startswith(
        "ranks 9, 14 never began calls pending on ranks 1, 6, such as send 0->1 14"
    )
    assert missing.startswith(
        "ranks 8, 10 to 13, 15 left no record, and may never have begun calls"
    )
    step = said(summary.verdict, "next")
    assert step.startswith(
        "NEXT: Look at ranks 9, 14 first, then at ranks 8, 10 to 13, 15 (no record)"
    )


@pytest.mark.parametrize(
    ("gone", "ends", "missing"),
    [(0, (12, 14), False), (8, (12, 14), True), (13, (14,), True), (14, (12,), True)],
)
def test_hosts_that_ran_ahead_show_it_without_a_rank_s_dump(
    tmp_path: Path, gone: int, ends: tuple[int, ...], missing: bool
) -> None:
    """The device's failure is the first answer, a lost dump that is waited for the second."""
    summary = without(tmp_path, gone, job="gpu_error")
    ranks = f"{'rank' if len(ends) == 1 else 'ranks'} {as_ranges(ends)}"
    chain, *lost, _ = known(summary.verdict.fact("stopped")).lines
    perhaps = "perhaps " * missing
    begin = f"{perhaps}a device or link stopped: the chain of waits ends at {ranks},"
    assert chain.startswith(begin)
    assert [line.partition(",")[0] for line in lost] == [f"rank {gone} left no record"] * missing
    step = said(summary.verdict, "next")
    assert f"first of {ranks}" in step
    assert step.endswith(f"add the records of rank {gone}") == missing


def test_ranks_that_wait_for_each_other_are_no_failed_device(tmp_path: Path) -> None:
    """Rank 0 is in the first of two groups and rank 1 in the second, and neither began the other."""
    calls = [pending(5) | {"process_group": (name, name)} for name in ("a", "b")]
    dumps = [dump([call]) for call in calls]
    for one in dumps:
        one["pg_config"] |= {name: {"name": name, "desc": name, "ranks": "[0, 1]"} for name in "ab"}
    summary = summarise(read_job(find_files(write_dumps(tmp_path, dumps)), 1 << 30))
    first, _ = known(summary.verdict.fact("stopped")).lines
    assert first.startswith("ranks wait for each other: they call in unlike orders, or a device")
    assert "Compare the order in which ranks call" in said(summary.verdict, "next")


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


def test_an_open_last_call_of_gloo_is_no_hang_and_no_device(tmp_path: Path) -> None:
    """Rank 1 wrote its dump in the barrier before it, and rank 0's is not there."""
    file = DATA / "flight_recorder" / "gloo_late_rank" / "fr_rank1.json"
    summary = summarise(read_job(find_files(file), 1 << 30))
    assert "or the job still ran" in said(summary.verdict, "stopped")
    step = said(summary.verdict, "next")
    assert step.startswith("NEXT: Add the records of rank 0; if the job had stopped, look there")
    assert "device" not in step
    # near miss: a watchdog of gloo's wrote nothing but open calls
    call = pending(2) | {"profiling_name": "gloo:all_reduce"}
    write_dumps(tmp_path, [dump([call])])
    stopped = summarise(read_job(find_files(tmp_path), 1 << 30))
    step = said(stopped.verdict, "next")
    assert "Look at rank 1 first" in step
    assert "then look for a failed link of rank 0" in step
    assert "device" not in step


MIXES = {
    "rank 9 holds no call": ("gpu_error", "lock_gil", (9,)),
    "lost GPUs": ("gpu_error", "lock_gil", (12, 14)),
    "a rank that never began": ("lock_gil", "gpu_error", (9,)),
    "both that never began": ("lock_gil", "gpu_error", (9, 14)),
}


@pytest.mark.parametrize("mix", MIXES)
def test_dumps_of_another_job_are_left_out_and_accuse_nobody(tmp_path: Path, mix: str) -> None:
    own, other, ranks = MIXES[mix]
    lost = without(tmp_path, *ranks, job=own)
    for rank in ranks:
        shutil.copy(DATA / "flight_recorder" / other / f"_dump_{rank}", tmp_path / "dumps")
    mixed = summarise(read_job(find_files(tmp_path / "dumps"), 1 << 30))
    assert mixed.unfinished == lost.unfinished
    labels = [limit.label for limit in mixed.verdict.limits]
    assert labels == ["LEFT OUT", "INCOMPLETE"]
    left_out = mixed.verdict.limits[0].text
    assert f"_dump_{ranks[0]}" in left_out
    assert f"({ranks_named(ranks)}): of another job" in left_out


def test_two_halves_of_two_jobs_are_refused(tmp_path: Path) -> None:
    for name, ranks in (("gpu_error", range(8)), ("lock_gil", range(8, 16))):
        for rank in ranks:
            shutil.copy(DATA / "flight_recorder" / name / f"_dump_{rank}", tmp_path)
    with pytest.raises(DpscopeError) as error:
        read_job(find_files(tmp_path), 1 << 30)
    for ranks_of_one in ("(ranks 0 to 7)", "(ranks 8 to 15)"):
        assert ranks_of_one in str(error.value)
    assert "are of different jobs" in str(error.value)


@pytest.mark.parametrize("kept_bytes", [0, 1000])
def test_a_damaged_dump_is_no_lost_one(tmp_path: Path, kept_bytes: int) -> None:
    folder = tmp_path / "dumps"
    shutil.copytree(DATA / "flight_recorder" / "lock_gil", folder)
    damaged = folder / "_dump_9"
    damaged.write_bytes(damaged.read_bytes()[:kept_bytes])
    summary = summarise(read_job(find_files(folder), 1 << 30))
    (limit,) = summary.verdict.limits
    assert limit.label == "NOT READ"
    assert f"{damaged}: " in limit.text
    assert "copy it again" in limit.text
    assert "rank 9 left a record that could not be read" in said(summary.verdict, "stopped")


def test_a_dump_that_knows_no_group_proves_nothing(tmp_path: Path) -> None:
    """It holds no call either: it may be of any job."""
    unknown = dump([]) | {"pg_config": {}}
    found = known(unfinished(write_dumps(tmp_path, [dump([pending(2)]), unknown])))
    assert (found.stopped, found.missing) == ((), (1,))


def test_one_dump_without_a_call_asks_for_the_others() -> None:
    dump = DATA / "flight_recorder" / "lock_gil" / "_dump_9"
    summary = summarise(read_job(find_files(dump), 1 << 30))
    step = said(summary.verdict, "next")
    assert step == "NEXT: No unfinished call on rank 9: add the records of ranks 0 to 8, 10 to 15"


def test_ranks_that_wait_for_a_culprit_come_first_and_transfers_show_for_whom() -> None:
    """Rank 0 sends to rank 8 in the pipeline, which waits for ranks 9 and 14."""
    folder = DATA / "flight_recorder" / "lock_gil"
    rows = waiting_rows(summarise(read_job(find_files(folder), 1 << 30)))
    assert [row["ranks"][0] for row in rows] == [1, 6, 8, 0, 2, 3, 4, 5, 7]
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
    (call,) = known(unfinished(folder)).not_begun
    assert (call.name, call.stopped) == ("recv 0->1 1", (0,))


def shown(folder: Path) -> list[tuple[str, str]]:
    """Severity and message of what is reported as not begun."""
    findings = summarise(read_job(find_files(folder), 1 << 30)).findings
    return [(one.severity, one.message) for one in findings if one.code == "collective_not_begun"]


def test_collective_not_begun_is_reported_where_a_member_lacks_it(tmp_path: Path) -> None:
    begun, both = dump([entry(1)]), dump([entry(1), pending(2)])
    stopped = "rank 1 never began calls pending on rank 0, such as all_reduce 2 of default_pg (ranks 0, 1, 4.00 kB)"
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


def test_hosts_that_run_ahead_in_a_running_job_are_no_failed_device(tmp_path: Path) -> None:
    """Rank 0's host is one all-reduce ahead of rank 1's, and the devices are in the one before."""
    ahead, behind = dump([entry(1), pending(2), pending(3)]), dump([entry(1), pending(2)])
    summary = summarise(read_job(find_files(write_dumps(tmp_path, [ahead, behind])), 1 << 30))
    stopped = known(summary.verdict.fact("stopped"))
    assert stopped.label == "UNFINISHED"
    assert "or the job still ran: calls in flight look the same" in stopped.lines
    assert {finding.severity for finding in summary.findings} == {"warning"}
    assert "failed device" not in said(summary.verdict, "next")
