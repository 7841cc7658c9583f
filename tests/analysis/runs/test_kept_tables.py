"""Tables kept beside a run's traces: read once, equal to the bit, made anew for any doubt, never in the way."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.report.build import make_report
from dpscope.analysis.runs.run_data import load_cell, load_run
from dpscope.analysis.traces.ranks import kept_tables, trace_analysis
from dpscope.analysis.traces.ranks.process_pool import RowsOutcome, read_trace_rows
from dpscope.analysis.traces.reading.limits import ReadLimits
from dpscope.profiling.store.folders import RunFolder
from dpscope.profiling.store.layout import fits_layout
from tests.helpers.paths import EXAMPLE_RUN

DDP = Path("cells/ddp-d2-b8/repeat0/traces/0_0.pt.trace.json.gz")
TABLES = Path("cells/ddp-d2-b8/repeat0/traces/0_0.tables.parquet")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the example run without tables."""
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run", ignore=shutil.ignore_patterns("*.tables.parquet"))
    return tmp_path / "run"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The trace files that are read, as they are."""
    files: list[Path] = []

    def recorded(named: Sequence[Path], limits: ReadLimits) -> list[RowsOutcome]:
        files.extend(named)
        return read_trace_rows(named, limits)

    monkeypatch.setattr(kept_tables, "read_trace_rows", recorded)
    return files


def told(run: Path) -> str:
    """Everything that is said of a run."""
    return run_json(make_report(load_run(run)))


def rows(run: Path) -> str:
    """What the traces of DDP's cell gave, which is quicker."""
    folder = RunFolder(run)
    (planned,) = (one for one in folder.manifest().plan if one.cell.strategy == "ddp")
    data = load_cell(folder, planned)
    return f"{data.steps.to_json()}{data.collectives.to_json()}{data.findings}"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the example run with the tables of DDP's cell, and its rows."""
    run = tmp_path_factory.mktemp("kept") / "run"
    shutil.copytree(EXAMPLE_RUN, run, ignore=shutil.ignore_patterns("*.tables.parquet"))
    return run, rows(run)


@pytest.fixture
def kept_run(kept: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of it, with the times of its files."""
    return shutil.copytree(kept[0], tmp_path / "run")


def test_a_second_time_no_trace_is_read_and_every_byte_is_the_same(run: Path, read: list[Path]) -> None:
    traces = sorted(run.rglob("*.pt.trace.json.gz"))
    assert len(traces) == 12  # two repeats: single 1, dp-host 1, DDP 2, and 2 of its counters pass
    first = told(run)
    assert sorted(read) == traces
    read.clear()
    assert told(run) == first
    assert read == []
    kept = sorted(run.rglob("*.tables.parquet"))
    assert [path.name.partition(".")[0] for path in kept] == [path.name.partition(".")[0] for path in traces]
    assert all(fits_layout(path.relative_to(run)) for path in kept)  # so --fresh removes them
    one_row = pd.read_parquet(kept[0])  # as other programs read them
    assert len(one_row) == 1


def test_what_is_kept_moves_with_the_run_and_names_its_new_place(run: Path, read: list[Path]) -> None:
    damaged = run / DDP
    damaged.write_bytes(damaged.read_bytes()[:-2000])  # findings about it name its path
    assert str(damaged) in rows(run)
    moved = run.rename(run.with_name("elsewhere"))
    read.clear()
    text = rows(moved)
    assert read == []
    assert str(moved / DDP) in text
    assert str(damaged) not in text


def damage_nothing(run: Path) -> None:
    """The near case: read times change, and nothing is read anew."""
    os.utime(run / TABLES)


def touch_the_trace(run: Path) -> None:
    os.utime(run / DDP)


def truncate_the_tables(run: Path) -> None:
    (run / TABLES).write_bytes((run / TABLES).read_bytes()[:-100])


def change_a_byte(run: Path) -> None:
    """In the middle of the first page, whose checksum then fails."""
    content = bytearray((run / TABLES).read_bytes())
    content[100] ^= 0xFF
    (run / TABLES).write_bytes(content)


def put_a_foreign_file(run: Path) -> None:
    pd.DataFrame({"mine": [1]}).to_parquet(run / TABLES)


def exchange_two_ranks(run: Path) -> None:
    shutil.copy2((run / TABLES).with_name("0_1.tables.parquet"), run / TABLES)


@pytest.mark.parametrize(
    "change",
    [touch_the_trace, truncate_the_tables, change_a_byte, put_a_foreign_file, exchange_two_ranks, damage_nothing],
)
def test_what_may_be_stale_is_made_anew_alone(
    kept: tuple[Path, str], kept_run: Path, read: list[Path], change: Callable[[Path], None]
) -> None:
    change(kept_run)
    assert rows(kept_run) == kept[1]
    assert read == ([] if change is damage_nothing else [kept_run / DDP])
    read.clear()
    assert rows(kept_run) == kept[1]
    assert read == []


@pytest.mark.parametrize("name", ["FORMAT_VERSION", "_code_digest"])
def test_another_version_reads_anew(
    kept: tuple[Path, str], kept_run: Path, read: list[Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_tables, name, -1 if name == "FORMAT_VERSION" else lambda: "of other code")
    assert rows(kept_run) == kept[1]
    assert len(read) == 8  # two repeats of two ranks, and their counters' passes


def test_nothing_is_kept_through_a_link_nor_of_traces_outside_a_run(run: Path, read: list[Path]) -> None:
    elsewhere = (run / DDP).parent.rename(run.with_name("elsewhere"))
    (run / DDP).parent.symlink_to(elsewhere)
    rows(run)
    assert len(list(run.rglob("*.tables.parquet"))) == 6  # of the cell's other folders
    trace_analysis.analyze_traces(elsewhere)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["0_0.pt.trace.json.gz", "0_1.pt.trace.json.gz"]


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_no_error(run: Path) -> None:
    for path in (path for path in run.parents if "pytest-" in str(path)):  # one more under xdist
        path.chmod(0o755)
    code = (
        "import os, sys; from pathlib import Path; from dpscope.analysis.runs.run_data import load_run\n"
        "run = Path(sys.argv[1]); first = load_run(run)\n"
        "for path in run.rglob('*.tables.parquet'): path.unlink()\n"
        "for path in [run, *run.rglob('*')]: path.chmod(0o555 if path.is_dir() else 0o444)\n"
        "os.getuid() or os.setuid(65534)  # a superuser may write everywhere\n"
        "try: (run / 'cells' / 'file').touch()\n"
        "except PermissionError: print('refused')\n"
        "second = load_run(run)\n"
        "print(all(data.steps.equals(second.cells[name].steps) for name, data in first.cells.items()))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["refused", "True"], ended.stderr
    assert list(run.rglob("*.tables.parquet")) == []
    assert list(run.rglob(".tmp-*")) == []
