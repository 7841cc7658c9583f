"""Partials of a job, however split, ordered and joined, give exactly the tables of its traces."""

import hashlib
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpscope.analysis.partials import file
from dpscope.analysis.partials.file import (
    PARTIAL_SCHEMA,
    PARTIAL_VERSION,
    Partial,
    analyze_partial_jobs,
    analyze_partials,
    read_partial,
    reduce_traces,
    write_partial,
)
from dpscope.analysis.partials.found import find_partials
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_jobs, analyze_traces
from dpscope.launch.cli import app
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import dp_trace, gloo_trace, write_ddp_job, write_trace

TABLES = ("steps", "collectives", "dp_phases", "exposed", "copies", "steps_with_waits", "waits_caused")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ddp_job(tmp_path_factory.mktemp("traces"), 4)


@pytest.fixture(scope="module")
def rows(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    return read_partial(reduce_traces(traces, tmp_path_factory.mktemp("whole") / "all.dpscope").path).rows


@pytest.fixture(scope="module")
def expected(traces: Path) -> TraceAnalysis:
    return analyze_traces(traces)


def assert_equal(found: TraceAnalysis, expected: TraceAnalysis) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name), check_exact=True)
    assert found.findings == expected.findings
    here = [replace(one, read_on=None) for one in found.summaries]  # traces do not record where they were reduced
    assert tuple(here) == expected.summaries
    assert found.timelines == expected.timelines


@pytest.mark.long
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 4), depth=st.integers(0, 2))
def test_any_partition_order_and_tree_gives_the_tables_of_the_traces(
    seed: int, parts: int, depth: int, rows: pa.Table, expected: TraceAnalysis, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / f"{seed}-{parts}-{depth}"
    shutil.rmtree(folder, ignore_errors=True)
    places = [chance.randrange(parts) for _ in range(rows.num_rows)]
    for part in range(parts):
        own = [index for index, place in enumerate(places) if place == part]
        chance.shuffle(own)
        name = f"{chance.random()}.dpscope"
        write_partial(Partial(rows.take(pa.array(own, pa.int64()))), folder / name)
    for level in range(depth):  # some are joined, and also kept: each rank counts once
        chosen = [path for path in find_partials(folder) if chance.random() < 0.6] or find_partials(folder)
        reduce_traces(chosen, folder / f"{chance.random()}-{level}.dpscope")
    files = find_partials(folder)
    chance.shuffle(files)
    assert_equal(analyze_partials(files), expected)
    shutil.rmtree(folder)


def test_a_changed_schema_has_another_version() -> None:
    columns = f"{PARTIAL_VERSION} {sorted(map(str, PARTIAL_SCHEMA))}"
    digest = hashlib.blake2b(columns.encode(), digest_size=8).hexdigest()
    assert digest == "2d34a8d1fb5ab331", "raise PARTIAL_VERSION, then put the new digest here"


def test_each_partial_s_timelines_are_read_once(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reduce_traces(traces, tmp_path)
    read: list[tuple[Path, bool]] = []

    def noted(path: Path, columns: Sequence[str]) -> Partial:
        read.append((path, "timeline" in columns))
        return read_partial(path, columns)

    monkeypatch.setattr(file, "read_partial", noted)
    assert len(analyze_partials(tmp_path).timelines) > 1
    assert read == [(made.path, False), (made.path, True)]


@pytest.mark.parametrize("kind", ["dp", "gloo"])
def test_every_table_of_every_kind_of_job_goes_through(kind: str, tmp_path: Path) -> None:
    ranks = [dp_trace(4)] if kind == "dp" else [gloo_trace(rank, 2) for rank in range(2)]
    (tmp_path / "traces").mkdir()
    for rank, generated in enumerate(ranks):
        write_trace(generated.trace, tmp_path / "traces" / f"0_{rank}.pt.trace.json")
    expected = analyze_traces(tmp_path / "traces")
    assert len(expected.dp_phases) > 0 if kind == "dp" else len(expected.collectives) > 0
    reduce_traces(tmp_path / "traces", tmp_path / "partials")
    assert_equal(analyze_partials(tmp_path / "partials"), expected)


@pytest.mark.long
def test_the_command_prints_the_same_for_partials_as_for_traces_and_reports_them(traces: Path, tmp_path: Path) -> None:
    reduce_traces(traces, tmp_path / "partials")
    of_traces, of_partials = (
        CliRunner().invoke(app, ["analyze", str(path), "--format", "json"]) for path in (traces, tmp_path / "partials")
    )
    assert len(of_traces.output) > 1000
    assert of_partials.output == of_traces.output
    assert of_partials.exit_code == of_traces.exit_code == 0
    page = tmp_path / "page"
    ended = CliRunner().invoke(app, ["analyze", str(tmp_path / "partials"), "--report", str(page), "--figures", "none"])
    assert ended.exit_code == 0, ended.output
    assert "traces of 4 ranks" in (page / "report.html").read_text()


def test_bad_partials_are_reported_in_a_line(traces: Path, rows: pa.Table, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DpscopeError, match=r"contains no partial \(\*\.dpscope\)"):
        analyze_partials(empty)
    write_partial(Partial(rows.slice(0, 0)), empty / "a.dpscope")
    with pytest.raises(DpscopeError, match="contains no rank"):
        analyze_partials(empty)
    write_partial(Partial(rows), tmp_path / "jobs" / "four.dpscope")
    damaged = tmp_path / "damaged.dpscope"
    damaged.write_bytes((tmp_path / "jobs" / "four.dpscope").read_bytes()[:-50])
    for path in (damaged, traces):
        with pytest.raises(DpscopeError, match=r"is not a complete partial|contains no partial"):
            analyze_partials(path)
    with pytest.raises(DpscopeError, match="pass only partials or only traces"):
        analyze_partials([tmp_path / "jobs" / "four.dpscope", traces])


def test_an_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(DpscopeError, match=r"cannot read .*: Permission denied"):
        find_partials(tmp_path)


@pytest.mark.long
def test_partials_of_several_jobs_are_distinguished_by_folder_and_compared_as_repeats(tmp_path: Path) -> None:
    """As their traces are; a folder in which a job's partials lie next to one that joins them is still one job."""
    for side, factor in (("before", 1.0), ("after", 1.5)):
        for job in "012":
            made = write_ddp_job(tmp_path / "traces" / side / job, 2, factor + int(job) / 100)
            folder = tmp_path / "partials" / side / job
            for rank, trace in enumerate(sorted(made.iterdir())):
                reduce_traces(trace, folder / f"{rank}.dpscope")
            reduce_traces(folder, folder / "all.dpscope")
    found = analyze_partial_jobs(tmp_path / "partials" / "before")
    expected = analyze_jobs(tmp_path / "traces" / "before")
    assert list(found) == list(expected) == ["0", "1", "2"]
    for name, own in found.items():
        assert_equal(own, expected[name])
    results = [
        CliRunner().invoke(
            app, ["compare", str(tmp_path / kind / "before"), str(tmp_path / kind / "after"), "--format", "json"]
        )
        for kind in ("traces", "partials")
    ]
    assert results[0].exit_code == results[1].exit_code
    assert json.loads(results[0].stdout)["changes"] == json.loads(results[1].stdout)["changes"] != []
