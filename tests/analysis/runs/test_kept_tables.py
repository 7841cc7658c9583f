"""Tables of a run's traces in the user's cache: read once, equal to the bit, made again for any
doubt, never in the way.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from dpscope.analysis.bundle.write import collect
from dpscope.analysis.output.changes import print_comparison
from dpscope.analysis.output.merge import print_merge
from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.report.build import make_report
from dpscope.analysis.runs.run_data import load_cell, load_run
from dpscope.analysis.traces.ranks import kept_tables, origin, partial, trace_analysis, trace_files
from dpscope.analysis.traces.ranks.kept_tables import CONTENT_SUFFIX
from dpscope.analysis.traces.ranks.process_pool import FileOutcome, read_files
from dpscope.analysis.traces.ranks.trace_analysis import read_kept
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.traces import read_traces
from dpscope.analysis.what_if import job_profile as job
from dpscope.analysis.what_if.bases import base_of_run
from dpscope.profiling.store.folders import TABLES_SUFFIX, RunFolder
from tests.helpers.paths import EXAMPLE_RUN

DDP = Path("cells/ddp-d2-b8/repeat0/traces/0_0.pt.trace.json.gz")
OTHER = DDP.with_name("0_1.pt.trace.json.gz")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the example run, and the cache after its DDP cell was read."""
    folder = tmp_path_factory.mktemp("warm")
    shutil.copytree(EXAMPLE_RUN, folder / "run", ignore=shutil.ignore_patterns("*.tables.parquet"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSCOPE_CACHE", str(folder / "cache"))
        (folder / "rows.txt").write_text(rows(folder / "run"))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test."""
    monkeypatch.setenv("DPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tables"


def tables_of(trace: Path) -> Path:
    found = origin.origin_of(trace)
    assert found is not None
    return kept_tables._place(found.key, TABLES_SUFFIX)


@pytest.fixture
def run(warm: Path, tmp_path: Path) -> Path:
    """A copy of the example run without tables."""
    shutil.copytree(warm / "run", tmp_path / "run")  # with the files' times
    return tmp_path / "run"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The trace files that are read, as they are."""
    files: list[Path] = []

    def recorded(named: Sequence[Path], limits: ReadLimits) -> list[FileOutcome]:
        files.extend(named)
        return read_files(named, limits)

    monkeypatch.setattr(kept_tables, "read_files", recorded)
    return files


def printed(run: Path) -> str:
    """Everything that is said of a run, its predictions among it."""
    report = make_report(load_run(run))
    predictions = report.what_if
    assert predictions is not None
    return run_json(report) + predictions.as_json()


def rows(run: Path) -> str:
    """What the traces of DDP's cell gave, which is quicker."""
    folder = RunFolder(run)
    (planned,) = (one for one in folder.manifest().plan if one.cell.strategy == "ddp")
    data = load_cell(folder, planned)
    return f"{data.steps.to_json()}{data.collectives.to_json()}{data.findings}"


@pytest.fixture
def kept(warm: Path, cache: Path) -> str:
    """The rows of DDP's cell, whose tables are in the cache."""
    shutil.copytree(warm / "cache", cache.parent)
    return (warm / "rows.txt").read_text()


@pytest.mark.long
def test_a_second_time_no_trace_is_read_and_every_byte_is_the_same(
    run: Path, read: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = sorted(run.rglob("*.pt.trace.json.gz"))
    assert len(traces) == 12  # two repeats: single 1, dp-host 1, DDP 2, and 2 of its counters pass
    parsed: list[Path] = []

    def parse(path: Path, limits: ReadLimits) -> list[Trace]:
        parsed.append(path)
        return list(read_traces(path, limits))

    monkeypatch.setattr(trace_files, "read_traces", parse)
    first = printed(run)
    # once, although the predictions replay the traced steps
    assert sorted(read) == sorted(parsed) == traces
    read.clear()
    parsed.clear()
    assert printed(run) == first
    assert read == parsed == []
    kept = sorted(cache.glob(f"*{TABLES_SUFFIX}"))
    assert len(kept) == len(traces)
    assert len(list(cache.glob(f"*{CONTENT_SUFFIX}"))) == 2  # the replayed cell's repeats
    assert not list(run.rglob("*.tables.parquet"))
    one_row = pd.read_parquet(kept[0])  # as other programs read them
    assert len(one_row) == 1


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-20], lambda content: b"other", lambda content: b""]
)
def test_a_damaged_profile_is_made_again(
    run: Path, cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    traces = [run / DDP, run / OTHER]
    first = repr(job.job_profile(traces).profiles[0].works)
    assert repr(job.run_profile(traces, []).profiles[0].works) == first
    (kept,) = cache.glob(f"*{CONTENT_SUFFIX}")
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert repr(job.run_profile(traces, []).profiles[0].works) == first
    assert kept.read_bytes() == whole


def change_a_byte(run: Path) -> None:
    """In a page of the tables, whose checksum then fails."""
    content = bytearray(tables_of(run / DDP).read_bytes())
    content[len(content) // 4] ^= 0xFF
    tables_of(run / DDP).write_bytes(content)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the trace touched": lambda run: os.utime(run / DDP),
    "tables truncated": lambda run: os.truncate(
        tables_of(run / DDP), tables_of(run / DDP).stat().st_size - 100
    ),
    "a byte changed": change_a_byte,
    "a foreign file": lambda run: pd.DataFrame({"mine": [1]}).to_parquet(tables_of(run / DDP)),
    "two ranks exchanged": lambda run: shutil.copy2(tables_of(run / OTHER), tables_of(run / DDP)),
    # the time of last use, and nothing is read again
    "nothing": lambda run: os.utime(tables_of(run / DDP)),
}


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_what_may_be_stale_is_made_again_alone(
    kept: str, run: Path, read: list[Path], change: str
) -> None:
    CHANGES[change](run)
    assert rows(run) == kept
    assert read == ([] if change == "nothing" else [run / DDP])
    read.clear()
    assert rows(run) == kept
    assert read == []


def state(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))
    }


@pytest.mark.long
def test_commands_that_read_leave_the_folder_as_it_is(run: Path, tmp_path: Path) -> None:
    before = state(run)
    load_run(run)
    trace_analysis.analyze_traces((run / DDP).parent)
    print_comparison(run, run, None, "json", Console(quiet=True))
    collect(run, [], {})
    print_merge([run], tmp_path / "merged.json", None, None, DEFAULT_LIMITS, Console(quiet=True))
    base_of_run(run, None)
    assert state(run) == before


@pytest.mark.long
@pytest.mark.parametrize("where", ["a file", "below a file"])
def test_a_cache_that_cannot_be_written_is_no_error(
    kept: str, run: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(
        "DPSCOPE_CACHE", str(tmp_path / "file" / ("deep" if where == "below a file" else ""))
    )
    assert rows(run) == kept


@pytest.mark.long
def test_the_tables_used_least_recently_are_removed(
    kept: str, run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in cache.iterdir():
        os.utime(path, (1000, 1000))
    read_kept([run / DDP])  # used now
    used = tables_of(run / DDP)
    monkeypatch.setattr(kept_tables, "MOST_BYTES", used.stat().st_size * 2 + 1000)
    other = Path(shutil.copy(run / DDP, run.with_name("other.pt.trace.json.gz")))
    read_kept([other])
    assert set(cache.iterdir()) == {used, tables_of(other)}


@pytest.mark.long
@pytest.mark.parametrize("name", ["FORMAT_VERSION", "code_digest"])
def test_another_version_reads_again(
    kept: str, run: Path, read: list[Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "FORMAT_VERSION":
        monkeypatch.setattr(partial, name, -1)
    else:
        monkeypatch.setattr(origin, name, lambda folders: "of other code")
    assert rows(run) == kept
    assert len(read) == 8  # two repeats of two ranks, and their counters' passes


@pytest.mark.long
def test_what_is_kept_moves_with_the_run_and_names_its_new_place(
    run: Path, read: list[Path]
) -> None:
    damaged = run / DDP
    damaged.write_bytes(damaged.read_bytes()[:-2000])  # a finding names it
    before = rows(run)
    assert damaged.name in before
    moved = run.rename(run.with_name("elsewhere"))
    read.clear()
    text = rows(moved)
    assert read == []
    assert damaged.name in text
    assert str(run) not in text
