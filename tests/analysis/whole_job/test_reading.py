"""Dumps and logs as they are, and what is wrong with those that cannot be read."""

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpscope.analysis.traces.ranks.readers import RECORDS, TRACES, find_files, find_traces
from dpscope.analysis.whole_job.job import RecordedJob, read_job
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.collective_records import (
    dump,
    entry,
    log_line,
    timed_dump,
    write_dumps,
    write_logs,
)
from tests.helpers.paths import DATA


def job_in(*paths: Path) -> RecordedJob:
    return read_job(find_files(paths), 1 << 30)


def refused(*paths: Path) -> str:
    with pytest.raises(DpscopeError) as error:
        job_in(*paths)
    message = str(error.value)
    assert "\n" not in message
    return message


def codes(job: RecordedJob) -> list[str]:
    return [one.code for one in job.findings]


def test_records_are_recognised_by_their_content(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", [[log_line(0, 1, 5.0)], [log_line(1, 1, 6.0)]])
    (logs / "notes.txt").write_text("no record")
    packed = tmp_path / "logs.jsonl.gz"
    packed.write_bytes(gzip.compress((logs / "node0-pid100.log").read_bytes()))
    dumps = write_dumps(tmp_path / "dumps", [dump([entry(1)])])
    as_json = write_dumps(tmp_path / "json", [dump([entry(1)])], as_json=True)
    for path in (logs, packed, dumps, as_json, DATA / "flight_recorder" / "lock_gil"):
        found = find_files(path)
        assert found.reader is RECORDS, path
        assert not [file for file in found.files if file.name == "notes.txt"]
    assert find_files(DATA / "v100x8_ddp_dlrm").reader is TRACES
    with pytest.raises(DpscopeError, match="holds no events"):
        find_traces(dumps)


class _Calls:
    """Pickled, it calls os.system when it is loaded without care."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_no_code_of_a_pickle_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    content = {"version": _Calls(f"touch {witness}"), "pg_config": {}, "entries": []}
    path = tmp_path / "_dump_0"
    for protocol in range(6):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        if protocol >= 2:
            assert "system" in refused(path)
        else:  # without its mark it is no pickle to the readers, and is not unpickled at all
            assert find_files(path).reader is TRACES
    assert not witness.exists()


def test_a_dump_must_have_a_rank_that_is_in_its_groups(tmp_path: Path) -> None:
    content = pickle.dumps(dump([entry(1)]), protocol=2)
    (tmp_path / "dump").write_bytes(content)
    assert "no rank in its name" in refused(tmp_path / "dump")
    (tmp_path / "dump_5").write_bytes(content)
    assert "not in all of its groups" in refused(tmp_path / "dump_5")
    alone = tmp_path / "alone"
    alone.write_bytes(pickle.dumps(dump([entry(1)], ranks=[3]), protocol=2))
    assert job_in(alone).ranks == (3,)


def test_two_jobs_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_dumps(tmp_path / "a", [timed_dump([1.0]), timed_dump([2.0])])
    write_dumps(tmp_path / "b", [timed_dump([3.0]), timed_dump([4.0])])
    assert "rank 0 is recorded in" in refused(tmp_path)
    logs = write_logs(tmp_path / "logs", [[log_line(0, 1, 5.0)]])
    assert "of different kinds" in refused(logs, tmp_path / "a" / "_dump_1")
    other = [[log_line(0, 1, 5.0, header={"id": "0xother"}, metadata={"hostname": "x"})]]
    assert "share no communicator" in refused(logs, write_logs(tmp_path / "other", other))


@pytest.mark.parametrize("as_json", [False, True])
def test_a_cut_dump_is_one_line_or_a_finding(tmp_path: Path, as_json: bool) -> None:
    folder = write_dumps(tmp_path, [timed_dump([1.0]), timed_dump([2.0])], as_json)
    cut = folder / "_dump_1"
    cut.write_bytes(cut.read_bytes()[:-40])
    assert "cut short or damaged" in refused(cut)
    job = job_in(folder)
    assert job.ranks == (0,)
    assert codes(job) == ["file_not_read"]
    assert (job.missing, job.absent) == ([1], [])


def test_both_formats_of_one_dump_count_once(tmp_path: Path) -> None:
    dumps = [timed_dump([1.0]), timed_dump([2.0])]
    write_dumps(tmp_path / "packed", dumps)
    write_dumps(tmp_path / "json", dumps, as_json=True)
    job = job_in(tmp_path)
    assert (job.ranks, job.records) == ((0, 1), 2)
    assert codes(job) == ["file_not_read", "file_not_read"]
    assert "the same record as" in job.findings[0].message


def test_cut_lines_of_a_log_are_counted(tmp_path: Path) -> None:
    lines = [[log_line(rank, number, 5.0) for number in (1, 2, 3)] for rank in (0, 1)]
    folder = write_logs(tmp_path, lines)
    path = folder / "node1-pid101.log"
    path.write_text(path.read_text()[:-30])
    job = job_in(folder)
    assert [len(one) for one in job.processes] == [3, 2]
    assert "1 line of the records of rank 1" in job.findings[0].message
    many = [log_line(1, number, 5.0) for number in range(2000)]
    packed = gzip.compress(b"".join(b"%s\n" % json.dumps(line).encode() for line in many))
    path.unlink()
    (folder / "node1.log.gz").write_bytes(packed[:-20])
    assert 100 < len(job_in(folder).processes[1]) < 2000


def test_a_log_of_several_processes_is_that_of_each(tmp_path: Path) -> None:
    own = [[log_line(rank, number, 5.0 + rank) for number in range(1, 400)] for rank in (0, 1)]
    apart = job_in(write_logs(tmp_path / "apart", own))
    in_turns = [line for pair in zip(*own, strict=True) for line in pair]
    joined = job_in(write_logs(tmp_path / "joined", [in_turns]))
    assert joined.ranks == apart.ranks == (0, 1)
    assert joined.hosts == ("node0", "node1")
    for one, other in zip(joined.processes, apart.processes, strict=True):
        assert one.number.tolist() == other.number.tolist() == list(range(1, 400))
        assert one.duration_us.tolist() == other.duration_us.tolist()
        assert one.calls == other.calls


def test_the_header_of_format_4_3_applies_to_the_lines_behind_it(tmp_path: Path) -> None:
    ranks = []
    for rank in (0, 1):
        line = log_line(rank, 1, 5.0)
        stated = {"dump_stats": {"header": line.pop("header"), "metadata": line.pop("metadata")}}
        ranks.append([stated, line, log_line(rank, 2, 6.0) | {"header": None, "metadata": None}])
    job = job_in(write_logs(tmp_path, ranks))
    assert job.ranks == (0, 1)
    assert job.hosts == ("node0", "node1")
    assert [one.number.tolist() for one in job.processes] == [[1, 2], [1, 2]]


def test_unknown_times_are_missing_and_never_zero(tmp_path: Path) -> None:
    zero = dump([entry(1, duration_ms=0.0, time_created_ns=0)])
    (process,) = job_in(write_dumps(tmp_path / "a", [zero], as_json=True)).processes
    assert np.isnan(process.duration_us).all()
    assert process.created_ns.tolist() == [0]
    logs = [[log_line(0, 1, 0), log_line(0, 2, None)]]
    (process,) = job_in(write_logs(tmp_path / "b", logs)).processes
    assert np.isnan(process.duration_us).all()


def test_a_clock_that_was_set_back_is_a_finding(tmp_path: Path) -> None:
    back = dump([entry(1), entry(2, time_created_ns=entry(1)["time_created_ns"] - 10**9)])
    job = job_in(write_dumps(tmp_path, [dump([entry(1), entry(2)]), back]))
    assert codes(job) == ["clocks_as_recorded"]


def left_by_the_last_job(ranks: list[int]) -> dict[str, Any]:
    """A dump of another attempt, whose file lies where this job's should."""
    before_ns = entry(1)["time_created_ns"] - 600 * 10**9
    return dump([entry(1, time_created_ns=before_ns)], ranks)


def of_another_version(ranks: list[int]) -> dict[str, Any]:
    return dump([entry(1)], ranks) | {"version": "2.9"}


@pytest.mark.parametrize("other", [left_by_the_last_job, of_another_version])
def test_a_dump_of_another_attempt_is_left_out(
    tmp_path: Path, other: Callable[[list[int]], dict[str, Any]]
) -> None:
    ranks = [0, 1, 2]
    own = dump([entry(1)], ranks)
    job = job_in(write_dumps(tmp_path, [own, own, other(ranks)]))
    assert job.ranks == (0, 1)
    assert codes(job) == ["trace_of_another_job", "ranks_missing"]


def test_a_copy_named_as_of_another_rank_is_refused(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path, [timed_dump([1.0]), timed_dump([2.0])])
    copy = shutil.copy(folder / "_dump_0", folder / "_dump_1")
    assert f"{copy} are copies of one record" in refused(folder)


def test_a_file_of_hosts_must_state_each_rank_once(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "job", [timed_dump([1.0]), timed_dump([2.0])])
    hosts = tmp_path / "hosts"

    def refused_hosts(text: str) -> str:
        hosts.write_text(text)
        with pytest.raises(DpscopeError) as error:
            read_job(find_files(folder), 1 << 30, hosts)
        return str(error.value)

    assert "no line for rank 1" in refused_hosts("0 a\n")
    assert "line 2: rank 0 has a line already" in refused_hosts("0 a\n0 b\n")
    assert "line 1: 'node1'" in refused_hosts("node1\n")
    assert "holds no line" in refused_hosts("# nothing\n")
    hosts.write_text("rank,host\n0,a # first\n1,b\n")
    assert read_job(find_files(folder), 1 << 30, hosts).hosts == ("a", "b")
