"""Which traces are of one job: by world size, times, hosts, folders and content."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.traces.merge.merge_ranks import merge_traces
from dpscope.analysis.traces.ranks.jobs import FoundJobs, find_jobs, recordings_of
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs, analyze_traces
from dpscope.analysis.what_if.job_profile import job_profile
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.several_jobs import write_job

SECOND = 10**9
EPOCH = 1_700_000_000 * SECOND


def trace(
    rank: int | None, place: str = "", start_s: float | None = None, **recorded: Any
) -> TraceSummary:
    start = None if start_s is None else EPOCH + round(start_s * SECOND)
    end = None if start is None else start + SECOND
    return TraceSummary(place or f"rank{rank}.json", rank, start_ns=start, end_ns=end, **recorded)


def found_jobs(*traces: TraceSummary) -> FoundJobs:
    return find_jobs(traces, [Path("/traces", one.source) for one in traces])


def jobs(*traces: TraceSummary) -> dict[str, list[str]]:
    return {
        name: [traces[index].source for index in job]
        for name, job in found_jobs(*traces).jobs.items()
    }


def codes(*traces: TraceSummary) -> list[str]:
    found = found_jobs(*traces)
    return [finding.code for name in found.jobs for finding in found.of(name)]


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        (  # ranks that differ are of one job wherever they lie
            [(0, "node0/a.json"), (1, "node0/b.json"), (2, "node1/b.json"), (3, "c.json")],
            {"": ["node0/a.json", "node0/b.json", "node1/b.json", "c.json"]},
        ),
        (  # equal ranks are separated by folder, and no deeper than that
            [
                (0, "run10/node0/r"),
                (1, "run10/node1/r"),
                (0, "run2/node0/r"),
                (1, "run2/node1/r"),
                (0, "alone"),
            ],
            {
                ".": ["alone"],
                "run2": ["run2/node0/r", "run2/node1/r"],
                "run10": ["run10/node0/r", "run10/node1/r"],
            },
        ),
        (
            [(0, "a/x/0"), (0, "a/y/0"), (0, "b/x/0"), (1, "b/y/1")],
            {"a/x": ["a/x/0"], "a/y": ["a/y/0"], "b": ["b/x/0", "b/y/1"]},
        ),
        # what cannot be separated stands alone
        ([(0, "a"), (0, "b"), (1, "c")], {"a": ["a"], "b": ["b"], "c": ["c"]}),
        ([(None, "a"), (None, "b")], {"a": ["a"], "b": ["b"]}),
    ],
)
def test_folders_separate_equal_ranks(
    traces: list[tuple[int | None, str]], expected: dict[str, list[str]]
) -> None:
    assert jobs(*(trace(*one) for one in traces)) == expected


@pytest.mark.parametrize(
    ("start_s", "host", "together"),
    # the first trace lasts from 0 to 1 s; 2 s of distance are allowed, of two hosts' clocks an hour
    [
        (3.0 - 0.001, "a", True),
        (5.0 - 0.001, "a", False),
        (600.0, "b", True),
        (2 * 3600 + 1.0, "b", False),
    ],
)
def test_times_separate_jobs_that_lie_apart(start_s: float, host: str, together: bool) -> None:
    assert (
        len(jobs(trace(0, start_s=0, host="a"), trace(1, start_s=start_s, host=host))) == 1
    ) is together


def test_jobs_at_the_same_time_are_separated_by_host() -> None:
    by_host = jobs(
        *(trace(rank, f"{host}{rank}", 0.0, host=host) for rank in (0, 1) for host in "ab")
    )
    assert list(by_host.values()) == [["a0", "a1"], ["b0", "b1"]]
    assert "several_jobs" in codes(trace(0, "a"), trace(0, "b"), trace(1, "c"))


def test_a_trace_of_another_world_size_is_left_out_of_a_job() -> None:
    job = [trace(rank, world_size=4) for rank in (1, 2, 3)]
    stray = trace(0, "single.json", world_size=1)
    assert jobs(stray, *job) == {"": ["rank1.json", "rank2.json", "rank3.json"]}
    assert codes(stray, *job) == ["trace_of_another_job"]
    assert codes(trace(0, world_size=4), *job) == []
    # a world size that is not recorded is no disagreement
    assert list(jobs(trace(0), *job)) == [""]
    elsewhere = trace(0, "other/single.json", world_size=1)
    assert list(jobs(elsewhere, *job)) == [".", "other"]


def test_later_recordings_of_the_same_processes_are_one_job() -> None:
    def window(rank: int, number: int, first_step: int) -> TraceSummary:
        steps = {"first_step": first_step, "last_step": first_step + 2}
        return trace(rank, f"w{number}r{rank}", 60.0 * number, process_id=100 + rank, **steps)

    later = [window(rank, number, 5 + 10 * number) for number in (0, 1) for rank in (0, 1)]
    assert jobs(*later) == {"": ["w0r0", "w0r1", "w1r0", "w1r1"]}
    assert recordings_of(later) == [[0, 1], [2, 3]]
    again = [window(rank, number, 5) for number in (0, 1) for rank in (0, 1)]
    assert list(jobs(*again).values()) == [["w0r0", "w0r1"], ["w1r0", "w1r1"]]


# The same on files: what each command makes of them.


def test_identical_content_is_one_rank() -> None:
    traces = (trace(0, content="x"), trace(1, content="x"), trace(0, "copy.json", content="x"))
    assert jobs(*traces) == {"": ["rank0.json", "rank1.json"]}
    assert codes(*traces) == ["file_not_read"]


@pytest.mark.long
def test_two_jobs_in_one_folder_are_answered_one_by_one(tmp_path: Path) -> None:
    first = write_job(tmp_path, "a_rank", ranks=4)
    second = write_job(tmp_path, "b_rank", ranks=4, later_s=265, process=5000)
    found = analyze_jobs(tmp_path)
    assert list(found) == ["job 1", "job 2"]
    for analysis, files in zip(found.values(), (first, second), strict=True):
        alone = analyze_traces(files)
        assert analysis.steps["step_us"].tolist() == alone.steps["step_us"].tolist()
        pd.testing.assert_series_equal(
            analysis.collectives["transfer_us"], alone.collectives["transfer_us"]
        )
        assert analysis.collectives["transfer_us"].notna().any()
        messages = [one.message for one in analysis.findings if one.code == "several_jobs"]
        assert len(messages) == 1
        assert files[0].name in messages[0]
    for refused in (
        lambda: analyze_traces(tmp_path),
        lambda: merge_traces(tmp_path, tmp_path.parent / "merged.json"),
        lambda: job_profile(sorted(tmp_path.iterdir())),
    ):
        jobs = r"traces of 2 jobs: job 1 \(.+\), job 2 \(.+\); .* takes one job"
        with pytest.raises(DpscopeError, match=jobs):
            refused()
