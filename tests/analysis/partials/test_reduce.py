"""One call of reduce: what it reads, keeps, reports and refuses."""

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpscope.analysis.partials import file as reducing
from dpscope.analysis.partials.file import (
    PARTIAL_SCHEMA,
    Partial,
    Share,
    analyze_partials,
    read_partial,
    read_share,
    reduce_traces,
    write_partial,
)
from dpscope.analysis.traces.ranks.process_pool import FileOutcome, files_as_read
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.launch.cli import app
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import ddp_trace, write_ddp_job, write_trace

RANKS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ddp_job(tmp_path_factory.mktemp("traces"), RANKS)


@pytest.fixture
def traces(made: Path, tmp_path: Path) -> Path:
    """With the times of the files of `made`."""
    return shutil.copytree(made, tmp_path / "traces")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the traces that are read, as they are."""
    names: list[str] = []

    def recorded(
        files: Sequence[Path], limits: ReadLimits, executor: Executor | None = None, jobs: int | None = None
    ) -> Generator[tuple[int, FileOutcome]]:
        for place, outcome in files_as_read(files, limits, executor, jobs):
            names.append(files[place].name)
            yield place, outcome

    monkeypatch.setattr(reducing, "files_as_read", recorded)
    return names


def test_a_second_call_reads_only_what_is_new_or_changed(traces: Path, tmp_path: Path, read: list[str]) -> None:
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
    assert read_partial(third.path).rows.column("rank").to_pylist() == [0, 1, 2, 3]


def test_another_version_of_the_reader_reads_anew(
    traces: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_traces(traces, tmp_path)
    read.clear()
    monkeypatch.setattr(reducing, "reader_version", lambda: "another")
    assert reduce_traces(traces, tmp_path).read == RANKS == len(read)


class Job:
    """What submitit gives in place of a future."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result = work


class Jobs:
    """An executor whose jobs are no futures; the job of one file is lost, as on a node that went away."""

    def submit(self, work: Callable[..., object], file: Path, *rest: object) -> Job:
        def lost() -> object:
            raise RuntimeError("job 17 is gone")

        return Job(lost if file.name.startswith("0_2") else lambda: work(file, *rest))


def test_jobs_that_are_not_futures_are_awaited_and_a_lost_one_is_reported(traces: Path, tmp_path: Path) -> None:
    made = reduce_traces(traces, tmp_path / "n0.dpscope", executor=cast("Any", Jobs()))
    assert made.ranks == RANKS - 1
    (unread,) = made.unread
    assert "0_2.pt.trace.json.gz ended without an answer (RuntimeError: job 17 is gone)" in unread.message
    assert reduce_traces(traces, made.path).ranks == RANKS


class Killed(BaseException):
    """Raised like an unhandled signal."""


@pytest.mark.parametrize("after", range(RANKS))
def test_a_killed_call_is_taken_up_and_nothing_is_read_twice(
    traces: Path, tmp_path: Path, read: list[str], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reduce_traces(traces, tmp_path / "whole.dpscope")
    read.clear()
    begin: Callable[..., Generator[tuple[int, FileOutcome]]] = vars(reducing)["files_as_read"]

    def dies(*arguments: object) -> Generator[tuple[int, FileOutcome]]:
        for count, answer in enumerate(begin(*arguments)):
            if count == after:
                read.pop()
                raise Killed
            yield answer

    with monkeypatch.context() as patched:
        patched.setattr(reducing, "files_as_read", dies)
        patched.setattr(reducing, "_MOST_OF_TIME", 0)
        with pytest.raises(Killed):
            reduce_traces(traces, tmp_path / "killed.dpscope")
    assert not (tmp_path / "killed.dpscope").exists()
    taken_up = reduce_traces(traces, tmp_path / "killed.dpscope")
    assert (taken_up.read, taken_up.kept) == (RANKS - after, after)
    assert sorted(read) == sorted(path.name for path in traces.iterdir())
    assert read_partial(taken_up.path).rows.equals(read_partial(whole.path).rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.dpscope", "traces", "whole.dpscope"]


def test_a_broken_trace_is_reported_and_the_rest_is_read(traces: Path, tmp_path: Path) -> None:
    (traces / "0_2.pt.trace.json.gz").write_bytes(b"no trace")
    ended = CliRunner().invoke(app, ["reduce", str(traces), "-o", str(tmp_path / "n0.dpscope")])
    assert ended.exit_code == 2
    assert "3 ranks" in ended.output
    assert [line for line in ended.output.splitlines() if "not read" in line and "0_2.pt.trace" in line]
    (finding,) = [one for one in analyze_partials(tmp_path / "n0.dpscope").findings if one.code == "file_not_read"]
    assert "0_2.pt.trace.json.gz" in finding.message
    write_trace(ddp_trace(2, RANKS).trace, traces / "0_2.pt.trace.json.gz")
    repeated = CliRunner().invoke(app, ["reduce", str(traces), "-o", str(tmp_path / "n0.dpscope")])
    assert repeated.exit_code == 0
    assert "4 ranks, 3 of them already reduced" in repeated.output
    assert "file_not_read" not in {one.code for one in analyze_partials(tmp_path / "n0.dpscope").findings}


def test_of_traces_none_of_which_can_be_read_nothing_is_written(traces: Path, tmp_path: Path) -> None:
    for path in traces.iterdir():
        path.write_bytes(b"no trace")
    with pytest.raises(
        DpscopeError, match=r"no trace could be read: .*0_0.pt.trace.json.gz.*; name torch.profiler traces"
    ):
        reduce_traces(traces, tmp_path / "partials" / "n0.dpscope")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_a_trace_that_is_cut_short_is_reduced_and_reported(traces: Path, tmp_path: Path) -> None:
    for rank in (1, 2):
        path = traces / f"0_{rank}.pt.trace.json.gz"
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    ended = CliRunner().invoke(app, ["reduce", str(traces), "-o", str(tmp_path / "n0.dpscope")])
    assert (ended.exit_code, "4 ranks" in ended.output) == (2, True)
    assert "0_1.pt.trace.json.gz and 1 more are cut short or damaged" in ended.output


@pytest.mark.parametrize("tasks", [1, 3, 33])
def test_shares_hold_every_file_once(tasks: int) -> None:
    files = list(map(str, range(20)))
    names = (
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    )
    stated = [read_share(f"{task + 1}/{tasks}", {}).among(files) for task in range(tasks)]
    assert sorted(name for share in stated for name in share) == sorted(files)
    for index, count in names:  # srun, Open MPI, MPICH
        auto = [read_share("auto", {index: str(task), count: str(tasks)}).among(files) for task in range(tasks)]
        assert auto == stated
    for text, environment in (("auto", {}), ("auto", {"SLURM_PROCID": "0"}), ("0/2", {}), ("3/2", {}), ("half", {})):
        with pytest.raises(DpscopeError, match="--share"):
            read_share(text, environment)


def test_tasks_of_a_shared_folder_write_a_partial_each(traces: Path, tmp_path: Path) -> None:
    made = [reduce_traces(traces, tmp_path / "partials", Share(task, 3)) for task in range(3)]
    assert [one.path.name for one in made] == [f"share-{task}of3.dpscope" for task in (1, 2, 3)]
    assert [one.ranks for one in made] == [2, 1, 1]
    assert len(analyze_partials(tmp_path / "partials").summaries) == RANKS


def foreign_file(traces: Path, place: Path) -> None:
    place.write_text("mine")


def other_traces(traces: Path, place: Path) -> None:
    reduce_traces(traces, place)
    (traces / "0_3.pt.trace.json.gz").unlink()


def newer(traces: Path, place: Path) -> None:
    of_version(place, 9)


def older(traces: Path, place: Path) -> None:
    of_version(place, 0)


def of_version(place: Path, version: int) -> None:
    write_partial(Partial(PARTIAL_SCHEMA.empty_table()), place)
    head = f'{{"schema_version": {version}}}'.encode()
    pq.write_table(pq.read_table(place).replace_schema_metadata({b"dpscope.partial": head}), place)


def no_traces(traces: Path, place: Path) -> None:
    for path in traces.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (foreign_file, "was not written by dpscope"),
        (other_traces, "holds 1 trace not among these"),
        (newer, "newer dpscope.*it is the output file: remove it first, or choose another"),
        (older, "older dpscope.*it is the output file: remove it first"),
        (no_traces, "holds no trace"),
    ],
)
def test_a_failure_is_reported_in_a_line_and_changes_nothing(
    traces: Path, tmp_path: Path, prepare: Callable[[Path, Path], None], message: str
) -> None:
    place = tmp_path / "n0.dpscope"
    prepare(traces, place)
    before = place.read_bytes() if place.exists() else b""
    with pytest.raises(DpscopeError, match=message) as caught:
        reduce_traces(traces, place)
    assert "\n" not in str(caught.value)
    assert (place.read_bytes() if place.exists() else b"") == before


def test_traces_saved_by_a_killed_call_of_another_version_are_read_again_and_a_foreign_file_stays(
    traces: Path, tmp_path: Path
) -> None:
    place = tmp_path / "n0.dpscope"
    unfinished = tmp_path / "n0.dpscope.unfinished"
    older(traces, unfinished)
    made = reduce_traces(traces, place)
    assert (made.read, made.kept) == (4, 0)
    assert not unfinished.exists()
    place.unlink()
    unfinished.write_text("mine")
    with pytest.raises(DpscopeError, match="was not written by dpscope"):
        reduce_traces(traces, place)
    assert unfinished.read_text() == "mine"


def test_an_unwritable_output_is_reported(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpscope.analysis.traces.ranks.rank_rows.write_rows", full)
    with pytest.raises(DpscopeError, match=r"cannot write .*: No space left on device; choose another"):
        reduce_traces(traces, tmp_path / "n0.dpscope")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_any_parquet_reader_shows_a_partial(traces: Path, tmp_path: Path) -> None:
    table = pq.read_table(reduce_traces(traces, tmp_path / "n0.dpscope").path)
    assert table.column("rank").to_pylist() == [0, 1, 2, 3]
    steps = table.column("steps").to_pylist()[0]
    assert {"step", "step_us", "exposed_us"} <= set(steps[0])
    assert pa.types.is_list(table.schema.field("collectives").type)
