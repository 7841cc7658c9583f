"""Partials: what reduce reads, keeps and refuses; however split and joined, they give the tables of
the traces.
"""

import os
import random
import re
import shutil
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpscope.analysis.traces.ranks import origin, readers, reduce
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.origin import Origin
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence, Requests
from dpscope.analysis.traces.ranks.partial import FORMAT_VERSION, read_partial, write_partial
from dpscope.analysis.traces.ranks.process_pool import FileOutcome, read_files
from dpscope.analysis.traces.ranks.rank_tables import (
    COLUMNS,
    NO_RANKS,
    RankRecord,
    RankTables,
    TraceSummary,
    join_ranks,
    of_rank,
)
from dpscope.analysis.traces.ranks.readers import (
    PARTIALS,
    TRACES,
    Reader,
    find_files,
    find_traces,
    holds_files,
)
from dpscope.analysis.traces.ranks.reduce import Share, read_share, reduce_traces
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.table import COLUMN_KINDS, Table
from dpscope.launch.contents import app
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import (
    ddp_trace,
    dp_trace,
    gloo_trace,
    write_ddp_job,
    write_trace,
)
from tests.helpers.paths import DATA, EXAMPLE_RUN

TABLES = (
    "steps",
    "collectives",
    "dp_phases",
    "exposed",
    "copies",
    "kernels",
    "exposed_parts",
    "waits",
)
RANKS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ddp_job(tmp_path_factory.mktemp("traces"), RANKS)


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> RankTables:
    return read_partial(reduce_traces(made, tmp_path_factory.mktemp("whole") / "all.dpscope").path)


@pytest.fixture(scope="module")
def expected(made: Path) -> Job:
    return analyze_traces(made)


@pytest.fixture
def traces(made: Path, tmp_path: Path) -> Path:
    """With the times of the files of `made`."""
    return shutil.copytree(made, tmp_path / "traces")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the traces that are read, as they are."""
    names: list[str] = []

    def recorded(files: Sequence[Path], *arguments: Any) -> list[FileOutcome]:
        names.extend(file.name for file in files)
        return read_files(files, *arguments)

    monkeypatch.setattr(reduce, "read_files", recorded)
    return names


def assert_equal(found: Job, expected: Job) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(
            getattr(found, name), getattr(expected, name), check_exact=True
        )
    assert found.findings == expected.findings
    # traces do not record where they were reduced
    here = [replace(one, read_on=None) for one in found.summaries]
    assert tuple(here) == expected.summaries
    assert found.timelines == expected.timelines


@pytest.mark.long
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 4), depth=st.integers(0, 2))
def test_any_partition_order_and_tree_gives_the_tables_of_the_traces(
    seed: int, parts: int, depth: int, whole: RankTables, expected: Job, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / f"{seed}-{parts}-{depth}"
    shutil.rmtree(folder, ignore_errors=True)
    places = [chance.randrange(parts) for _ in whole.ranks]
    for part in range(parts):
        own = [index for index, place in enumerate(places) if place == part]
        chance.shuffle(own)
        name = f"{chance.random()}.dpscope"
        write_partial(whole.take(own), folder / name)
    for level in range(depth):  # some are joined, and also kept: each rank counts once
        chosen = [path for path in find_files(folder).files if chance.random() < 0.6] or find_files(
            folder
        ).files
        reduce_traces(chosen, folder / f"{chance.random()}-{level}.dpscope")
    files = find_files(folder).files
    chance.shuffle(files)
    assert_equal(analyze_traces(files), expected)
    shutil.rmtree(folder)


def test_a_table_without_a_value_and_one_without_a_row_are_read_as_they_were_written(
    tmp_path: Path,
) -> None:
    """Each kind of value, known and missing, to the bit; -0.0 and the largest numbers too."""
    trace = Origin("/a", 1, 1, "tail", "reader")
    values: dict[str, list[object]] = {
        "word": ["all_reduce", None, "Größe"],
        "truth": [True, None, False],
        "real": [-0.0, None, 0.1 + 0.2],
        "whole": [2**53, None, 0],
    }
    tables = {}
    for name, columns in COLUMNS.items():
        tables[name] = Table.of(**{column: values[COLUMN_KINDS[column]] for column in columns})
    evidence = ParallelismEvidence(
        1, 2, False, False, True, True, frozenset(), Requests(), Requests()
    )
    counts = {"dpscope::forward": {None: 1, 3: 2}}
    summaries = [
        TraceSummary(
            source="a", rank=rank, on_device=True, range_counts=counts, parallelism=evidence
        )
        for rank in (None, 7)
    ]
    ranks = [RankRecord(summary, origin=trace) for summary in summaries]
    lengths = dict.fromkeys(COLUMNS, np.array([0, 3]))
    write_partial(RankTables(ranks, tables, lengths), tmp_path / "a.dpscope")
    found = read_partial(tmp_path / "a.dpscope")
    assert found.ranks == ranks
    for name, columns in COLUMNS.items():
        assert found.lengths[name].tolist() == [0, 3]
        for column in columns:
            expected = [{column: value} for value in values[COLUMN_KINDS[column]]]
            assert found.tables[name].records((column,)) == expected, (name, column)
    first, second = found.take([0]), found.take([1])
    assert [len(first.tables[name]) for name in COLUMNS] == [0] * len(COLUMNS)
    assert second.tables["steps"].records() == found.tables["steps"].records()


@pytest.mark.parametrize("kind", ["dp", "gloo"])
def test_every_table_of_every_kind_of_job_goes_through(kind: str, tmp_path: Path) -> None:
    ranks = [dp_trace(4)] if kind == "dp" else [gloo_trace(rank, 2) for rank in range(2)]
    (tmp_path / "traces").mkdir()
    for rank, generated in enumerate(ranks):
        write_trace(generated.trace, tmp_path / "traces" / f"0_{rank}.pt.trace.json")
    expected = analyze_traces(tmp_path / "traces")
    assert len(expected.dp_phases) > 0 if kind == "dp" else len(expected.collectives) > 0
    reduce_traces(tmp_path / "traces", tmp_path / "partials")
    assert_equal(analyze_traces(tmp_path / "partials"), expected)


def test_bad_partials_are_reported_in_a_line(
    traces: Path, whole: RankTables, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        DpscopeError,
        match=r"holds no trace: no \*\.dpscope, .+ or \*\.nsys-rep in it, and no record of collectives",
    ):
        analyze_traces(empty)
    write_partial(NO_RANKS, empty / "a.dpscope")
    with pytest.raises(DpscopeError, match="contains no rank"):
        analyze_traces(empty)
    write_partial(whole, tmp_path / "jobs" / "four.dpscope")
    damaged = tmp_path / "damaged.dpscope"
    damaged.write_bytes((tmp_path / "jobs" / "four.dpscope").read_bytes()[:-50])
    with pytest.raises(DpscopeError, match="is not a complete partial"):
        analyze_traces(damaged)
    with pytest.raises(
        DpscopeError, match=r"four.dpscope is read as partial and .*traces as trace: give one kind"
    ):
        analyze_traces([tmp_path / "jobs" / "four.dpscope", traces])
    damaged.rename(tmp_path / "jobs" / "damaged.dpscope")
    found = analyze_traces(tmp_path / "jobs")
    assert len(found.summaries) == RANKS
    (finding,) = [one for one in found.findings if one.code == "file_not_read"]
    assert "damaged.dpscope is not a complete partial" in finding.message


def test_files_are_found_by_their_names_and_read_as_one_format(
    traces: Path, whole: RankTables, tmp_path: Path
) -> None:
    assert find_files(traces).reader is TRACES
    assert len(find_files(traces).files) == RANKS
    named = (traces / "0_0.pt.trace.json.gz").rename(traces / "export")
    assert find_files(named).files == [named]  # a named file of any name is a trace
    assert len(find_files(traces).files) == RANKS - 1
    # next to its traces, as `reduce -o` of their folder writes it
    write_partial(whole, traces / "all.dpscope")
    for name in (".tmp-b.dpscope", "events.out.tfevents.1.dpscope"):
        (traces / name).write_bytes(b"")
    found = find_files(traces)
    assert (found.reader, found.files) == (PARTIALS, [traces / "all.dpscope"])
    with pytest.raises(DpscopeError, match=r"all\.dpscope is a partial and holds no events"):
        find_traces(traces)
    assert holds_files(traces)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("")
    assert not holds_files(tmp_path / "notes")


def test_traces_next_to_a_partial_of_others_are_not_dropped_in_silence(
    traces: Path, tmp_path: Path
) -> None:
    """Those that the partial was made of are read by it, wherever they were then."""
    folder = tmp_path / "moved"
    shutil.copytree(traces, folder)
    reduce_traces(traces, folder / "all.dpscope")
    assert not [found for found in analyze_traces(folder).findings if found.code == "file_not_read"]
    other = shutil.copy(DATA / "a100x2_ddp_resnet50_rank0.json.gz", folder)
    (unread,) = [
        found for found in analyze_traces(folder).findings if found.code == "file_not_read"
    ]
    assert f"{other}: trace, not read" in unread.message


def test_a_folder_of_more_files_than_a_job_has_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of its files is opened."""
    monkeypatch.setattr(readers, "MOST_FILES", 3)
    (tmp_path / "within").mkdir()
    for name in ("0_0.pt.trace.json", "a.txt", "within/b"):
        (tmp_path / name).write_text("{}")
    assert find_files(tmp_path).files == [tmp_path / "0_0.pt.trace.json"]
    (tmp_path / "within" / "c").write_text("{}")
    monkeypatch.setattr(readers, "_start", pytest.fail)
    with pytest.raises(DpscopeError, match=r"holds more than 3 files.* was not searched; name"):
        find_files(tmp_path)


def read_letters(file: Path, limits: ReadLimits) -> RankTables:
    """A format that holds ranks' names alone."""
    evidence = ParallelismEvidence(
        1, 2, False, False, True, True, frozenset(), Requests(), Requests()
    )
    parts = []
    for rank, letter in enumerate(file.read_text()):
        summary = TraceSummary(
            source=f"{file} ({letter})",
            rank=rank,
            on_device=True,
            range_counts={},
            parallelism=evidence,
        )
        parts.append(of_rank(RankRecord(summary), **NO_RANKS.tables))
    return join_ranks(parts)


def test_another_format_needs_its_module_and_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module with `read`, and a line of READERS: analyze, reduce and messages know it."""
    module = types.ModuleType("letters")
    module.read = read_letters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{readers.__package__}.letters", module)
    letters = Reader("list of letters", (".letters",), "letters")
    monkeypatch.setattr(readers, "READERS", (PARTIALS, letters, TRACES))
    with pytest.raises(
        DpscopeError, match=r"no \*\.dpscope, \*\.letters, \*\.json or \*\.json\.gz in it"
    ):
        analyze_traces(tmp_path)
    (tmp_path / "job.letters").write_text("ab")
    assert [summary.rank for summary in analyze_traces(tmp_path).summaries] == [0, 1]
    made = reduce_traces(tmp_path, tmp_path / "out")
    assert (made.ranks, made.read) == (2, 1)
    assert [summary.rank for summary in analyze_traces(tmp_path / "out").summaries] == [0, 1]
    with pytest.raises(
        DpscopeError, match=r"job\.letters is a list of letters and holds no events"
    ):
        find_traces(tmp_path / "job.letters")


def changed(partial: RankTables, name: str, value: Any) -> RankTables:
    """With another value in the first row of a table's column, or of a field of the first rank."""
    table, _, column = name.partition(".")
    first, *others = partial.ranks
    if table == "summary":
        summary = replace(first.summary, **{column: value})
        return replace(partial, ranks=[msgspec.structs.replace(first, summary=summary), *others])
    if table == "findings":
        found = Finding(severity="info", code="a", message="b", next_step="c")
        found = msgspec.structs.replace(found, **{column: value})
        return replace(partial, ranks=[msgspec.structs.replace(first, findings=(found,)), *others])
    rows = partial.tables[table]
    values = rows[column].copy()
    values[0] = value
    return replace(partial, tables={**partial.tables, table: rows.assign(**{column: values})})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("summary.rank", -1, "is not a complete partial"),
        ("summary.world_size", 2**62, "is not a complete partial"),
        ("steps.step_us", -5.0, "steps.step_us is -5"),
        ("steps.compute_us", float("inf"), "steps.compute_us is inf"),
        ("steps.collective_count", -1, "steps.collective_count is -1"),
        ("collectives.bytes", 2**63 - 1, "collectives.bytes is 9.2"),
        ("collectives.start_us", 1e300, r"collectives.start_us is 1e\+300"),
        ("exposed.end_us", float("-inf"), "exposed.end_us is -inf"),
        ("kernels.pace", -1.0, "kernels.pace is -1"),
        ("findings.severity", "grave", "is not a complete partial"),
    ],
)
def test_a_number_that_no_trace_gives_is_refused(
    name: str, value: float | bytes, told: str, whole: RankTables, tmp_path: Path
) -> None:
    path = tmp_path / "a.dpscope"
    write_partial(changed(whole, name, value), path)
    with pytest.raises(DpscopeError, match=told) as raised:
        read_partial(path)
    assert str(path) in str(raised.value)


def test_a_second_call_reads_only_what_is_new_or_changed_unless_the_reader_is(
    traces: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = (traces / "0_3.pt.trace.json.gz").rename(tmp_path / "later")
    first = reduce_traces(traces, tmp_path / "n0.dpscope")
    assert (first.ranks, first.read, first.kept) == (3, 3, 0)
    read.clear()
    again = reduce_traces(traces, tmp_path / "n0.dpscope")
    assert (again.ranks, again.read, again.kept) == (3, 0, 3)
    new.rename(traces / "0_3.pt.trace.json.gz")
    os.utime(traces / "0_1.pt.trace.json.gz", ns=(1, 1))
    third = reduce_traces(traces, tmp_path / "n0.dpscope")
    assert (third.ranks, third.read, third.kept) == (4, 2, 2)
    assert read == ["0_1.pt.trace.json.gz", "0_3.pt.trace.json.gz"]
    assert [rank.summary.rank for rank in read_partial(third.path).ranks] == [0, 1, 2, 3]
    steps = pq.read_table(third.path)["steps"].to_pylist()  # as other programs read them
    assert [{row["rank"] for row in rows} for rows in steps] == [{0}, {1}, {2}, {3}]
    monkeypatch.setattr(origin, "reader_version", lambda: "another")
    assert reduce_traces(traces, third.path).read == RANKS == len(read) - 2


TASKS = (
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
)


@pytest.mark.parametrize("tasks", [1, 3, 33])
def test_shares_hold_every_file_once(tasks: int) -> None:
    files = list(map(str, range(20)))
    stated = [read_share(f"{task + 1}/{tasks}", {}).among(files) for task in range(tasks)]
    assert sorted(name for share in stated for name in share) == sorted(files)
    for index, count in zip(TASKS[::2], TASKS[1::2], strict=True):
        auto = [
            read_share("auto", {index: str(task), count: str(tasks)}).among(files)
            for task in range(tasks)
        ]
        assert auto == stated
    wrong = ("0/2", "3/2", "half", f"1/{'9' * 5000}")  # int() refuses so many digits
    for text, environment in (
        ("auto", {}),
        ("auto", {"SLURM_PROCID": "0"}),
        *((one, {}) for one in wrong),
    ):
        with pytest.raises(DpscopeError, match="--share"):
            read_share(text, environment)


def other_traces(traces: Path, place: Path) -> None:
    reduce_traces(traces, place)
    (traces / "0_3.pt.trace.json.gz").unlink()


def of_version(place: Path, version: int) -> None:
    write_partial(NO_RANKS, place)
    head = f'{{"schema_version": {version}}}'.encode()
    pq.write_table(pq.read_table(place).replace_schema_metadata({b"dpscope.partial": head}), place)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda _, place: place.write_text("mine"), "was not written by dpscope"),
        (other_traces, "holds 1 trace not among these"),
        (
            lambda _, place: of_version(place, FORMAT_VERSION + 1),
            "this dpscope reads.*it is the output file: remove it first, or choose another",
        ),
        (
            lambda _, place: of_version(place, 0),
            "of version 0.*it is the output file: remove it first",
        ),
        (lambda traces, _: [path.unlink() for path in traces.iterdir()], "holds no trace"),
    ],
)
def test_a_failure_is_reported_in_a_line_and_changes_nothing(
    traces: Path, tmp_path: Path, prepare: Callable[[Path, Path], object], message: str
) -> None:
    place = tmp_path / "n0.dpscope"
    prepare(traces, place)
    before = place.read_bytes() if place.exists() else b""
    with pytest.raises(DpscopeError, match=message) as caught:
        reduce_traces(traces, place)
    assert "\n" not in str(caught.value)
    assert (place.read_bytes() if place.exists() else b"") == before


def test_a_name_that_is_no_partial_s_is_refused_and_makes_no_folder(
    traces: Path, tmp_path: Path
) -> None:
    with pytest.raises(DpscopeError, match=r"out.json.gz: name a folder, or a file that ends in"):
        reduce_traces(traces, tmp_path / "out.json.gz")
    assert not (tmp_path / "out.json.gz").exists()


def test_an_unwritable_output_is_reported(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(
        DpscopeError, match=r"cannot write .*: No space left on device; choose another"
    ):
        reduce_traces(traces, tmp_path / "n0.dpscope")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_a_run_folder_is_refused(tmp_path: Path) -> None:
    """Its traces are those of several jobs, and its other files are no traces."""
    ended = CliRunner().invoke(app, ["reduce", str(EXAMPLE_RUN), "-o", str(tmp_path / "n.dpscope")])
    assert isinstance(ended.exception, DpscopeError)  # one line, status 2
    assert "is a run folder, of several jobs" in str(ended.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_trace_is_reported_and_the_rest_is_read(traces: Path, tmp_path: Path) -> None:
    (traces / "0_2.pt.trace.json.gz").write_bytes(b"no trace")
    ended = CliRunner().invoke(app, ["reduce", str(traces), "-o", str(tmp_path / "n0.dpscope")])
    assert ended.exit_code == 2
    assert "3 traces" in ended.output
    assert [
        line for line in ended.output.splitlines() if "not read" in line and "0_2.pt.trace" in line
    ]
    (finding,) = [
        one
        for one in analyze_traces(tmp_path / "n0.dpscope").findings
        if one.code == "file_not_read"
    ]
    assert "0_2.pt.trace.json.gz" in finding.message
    write_trace(ddp_trace(2, RANKS).trace, traces / "0_2.pt.trace.json.gz")
    repeated = CliRunner().invoke(app, ["reduce", str(traces), "-o", str(tmp_path / "n0.dpscope")])
    assert repeated.exit_code == 0
    assert re.search(r"4 traces in [\d.]+ kB, 3 of them reduced before", repeated.output)
    assert "file_not_read" not in {
        one.code for one in analyze_traces(tmp_path / "n0.dpscope").findings
    }


def test_of_traces_none_of_which_can_be_read_nothing_is_written(
    traces: Path, tmp_path: Path
) -> None:
    for path in traces.iterdir():
        path.write_bytes(b"no trace")
    with pytest.raises(DpscopeError, match=r"no trace could be read: .*0_0.pt.trace.json.gz.*"):
        reduce_traces(traces, tmp_path / "partials" / "n0.dpscope")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_a_trace_that_is_cut_short_is_reduced_and_reported(traces: Path, tmp_path: Path) -> None:
    for rank in (1, 2):
        path = traces / f"0_{rank}.pt.trace.json.gz"
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    ended = CliRunner().invoke(app, ["reduce", str(traces), "-o", str(tmp_path / "n0.dpscope")])
    assert (ended.exit_code, "4 traces" in ended.output) == (2, True)
    assert "cut short or damaged: " in ended.output
    assert "0_1.pt.trace.json.gz, " in ended.output


def test_tasks_of_a_shared_folder_write_a_partial_each_also_where_nothing_can_be_read(
    traces: Path, tmp_path: Path
) -> None:
    (traces / "0_1.pt.trace.json.gz").write_bytes(b"no trace")
    made = [reduce_traces(traces, tmp_path / "partials", Share(task, 3)) for task in range(3)]
    assert [one.path.name for one in made] == [f"share-{task}of3.dpscope" for task in (1, 2, 3)]
    assert [(one.ranks, len(one.unread)) for one in made] == [(2, 0), (0, 1), (1, 0)]
    found = analyze_traces(tmp_path / "partials")
    assert len(found.summaries) == RANKS - 1
    (finding,) = [one for one in found.findings if one.code == "file_not_read"]
    assert "0_1.pt.trace.json.gz" in finding.message


def test_a_partial_without_a_column_of_its_tables_is_of_another_dpscope(
    whole: RankTables, tmp_path: Path
) -> None:
    write_partial(whole, tmp_path / "whole.dpscope")
    rows = pq.read_table(tmp_path / "whole.dpscope")
    place = rows.column_names.index("steps")
    fewer = [
        [{name: row[name] for name in list(row)[:-1]} for row in steps]
        for steps in rows["steps"].to_pylist()
    ]
    head = pq.read_metadata(tmp_path / "whole.dpscope").metadata
    older = rows.set_column(place, "steps", pa.array(fewer)).replace_schema_metadata(head)
    pq.write_table(older, tmp_path / "older.dpscope")
    with pytest.raises(
        DpscopeError,
        match="written by another dpscope: its columns differ; reduce its traces again",
    ):
        analyze_traces(tmp_path / "older.dpscope")


def test_unknown_numbers_and_times_before_a_trace_s_zero_are_kept(
    whole: RankTables, tmp_path: Path
) -> None:
    for name, value in (
        ("steps.step_us", float("nan")),
        ("collectives.queue_us", -3.0),
        ("steps.idle_us", -1e-9),
    ):
        write_partial(changed(whole, name, value), tmp_path / "a.dpscope")
        assert len(read_partial(tmp_path / "a.dpscope").ranks) == RANKS
