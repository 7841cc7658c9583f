"""Who stopped a job: the jobs whose authors injected the fault, and made ones."""

from pathlib import Path

from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import read_job
from dpscope.analysis.whole_job.summary import summarise
from dpscope.analysis.whole_job.unfinished import Unfinished, unfinished_of
from tests.helpers.collective_records import dump, entry, write_dumps
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
    assert found.oldest.stopped == ()
    summary = summarise(read_job(find_files(folder), 1 << 30))
    texts = " ".join(fact.text for fact in summary.verdict.shown)
    assert "no record shows which" in texts
    assert "rank 12" not in texts
    assert "rank 14" not in texts


def pending(number: int) -> dict[str, object]:
    return entry(number, state="scheduled", retired=False)


def test_a_job_that_ended_has_nothing_unfinished(tmp_path: Path) -> None:
    assert unfinished(write_dumps(tmp_path, [dump([entry(1)]), dump([entry(1)])])) is None


def test_calls_in_flight_that_all_ranks_began_name_nobody(tmp_path: Path) -> None:
    found = unfinished(write_dumps(tmp_path, [dump([entry(1), pending(2)])] * 2))
    assert found is not None
    assert found.oldest is None
    assert not found.only


def test_a_rank_that_is_not_read_is_not_named(tmp_path: Path) -> None:
    dumps = [dump([pending(2)], range(3)), dump([pending(2)], range(3))]
    found = unfinished(write_dumps(tmp_path, dumps))
    assert found is not None
    assert found.oldest is None


def shown(folder: Path) -> list[tuple[str, str]]:
    """Severity and message of what is reported as not begun."""
    findings = summarise(read_job(find_files(folder), 1 << 30)).findings
    return [(one.severity, one.message) for one in findings if one.code == "collective_not_begun"]


def test_collective_not_begun_is_reported_where_a_member_lacks_it(tmp_path: Path) -> None:
    begun, both = dump([entry(1)]), dump([entry(1), pending(2)])
    stopped = (
        "rank 1 never began the oldest unfinished call, in which rank 0 waits: "
        "all_reduce 2 of default_pg (ranks 0 to 1, 4.00 kB)"
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
