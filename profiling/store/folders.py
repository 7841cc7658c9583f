"""The run folder and its files. Imports no torch.

runs/<run>/manifest.json runs/<run>/cells/<cell>/repeat<k>/            result.json (renamed last),
rank_*.json, samples_*.parquet, log.txt runs/<run>/cells/<cell>/repeat<k>/traces/
<node>_<rank>.pt.trace.json.gz runs/<run>/cells/<cell>/repeat<k>/counters/   the same, and
<node>_<rank>.json runs/<run>/calibration.json                   written by `dpscope calibrate`,
with its figure calibration.png runs/<run>/report/

profiling/store/training_folders.py describes the files of `dpscope train`.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.quantities import MOST_COUNT
from dpscope.profiling.records.run import (
    SCHEMA_VERSION,
    Cell,
    CellResult,
    CellStatus,
    DdpCounters,
    Manifest,
    RankResult,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import decodes, natural_order, read_json, read_json_if_there

if TYPE_CHECKING:
    from dpscope.profiling.records.training import TrainManifest

# of a folder in cells, in which an attached job's processes collect their measurements
ATTACHED_PREFIX = ".tmp-attached-"
# in a repeat, or in the run for jobs of an attached script: the records of collectives
COLLECTIVES_NAME = "collectives"
LOCK_NAME = ".lock"  # of a folder that a command writes to, from its start on
TORCHRUN_NAME = "torchrun"  # of a job's folder with torchrun's logs
_TORCHRUN = r"torchrun/[^/]+/attempt_\d+/\d+/(stdout\.log|stderr\.log|error\.json)"
_LOGS = rf"(node\d+/)?(log\.txt|{_TORCHRUN})"
_JOB = rf"result\.json|progress\.txt|job\.txt|failure_\d+_\d+\.json|{_LOGS}"
_TRACE = r"\d+_\d+\.(pt\.trace\.json\.gz|tables\.parquet)"
_RECORDS = rf"{COLLECTIVES_NAME}/dump_\d+"
_MEASURED = rf"{_RECORDS}|rank_\d+_\d+\.json|samples_\d+_\d+\.parquet|traces/{_TRACE}|counters/({_TRACE}|\d+_\d+\.json)"
_RANDOM = r"[a-z0-9_]{8}"  # as the tempfile module ends or begins a name
_TEMPORARY = re.compile(rf"\.tmp-[^/]+-{_RANDOM}")  # of a file that was being written
_LAYOUT = re.compile(
    rf"""
      cells/[^/]+/repeat\d+/ ({_JOB} | {_MEASURED})
    | cells/{re.escape(ATTACHED_PREFIX)}[^/]+/ (result\.json | {_MEASURED})
    | training/[^/]+/seed\d+/ ({_JOB} | epochs\.json | checkpoints/(last|previous|best)\.pt)
    | equality/ (settings\.json | [^/]+/({_JOB}) | [^/]+/[^/]+/rank_\d+\.(json|npz))
    | {COLLECTIVES_NAME}/[^/]+/dump_\d+
    | (cells|training|equality)/ (.+/)? \.tmp-([^/]+-{_RANDOM} | {_RANDOM}/trace\.json)
    """,
    re.VERBOSE,
)


def fits_layout(relative: Path) -> bool:
    """Whether dpscope writes this path, relative to a run folder, below cells, training or
    equality.
    """
    return _LAYOUT.fullmatch(relative.as_posix()) is not None


def remove_written(
    out: Path, folder: Path, stays: Callable[[Path], bool] = lambda path: False
) -> None:
    """Remove the files that dpscope wrote in a folder below the run folder `out`, except those for
    which `stays` is true, and empty folders.

    Other files and their folders stay; links are neither followed nor removed.
    """
    _remove_written_files(out, folder, stays)
    remove_empty_folders(folder)


def _remove_written_files(out: Path, folder: Path, stays: Callable[[Path], bool]) -> None:
    """Results first, so that a half-removed repeat does not count as done."""
    files = [path for path in files_in(folder) if not path.is_symlink() and not stays(path)]
    written = [path for path in files if fits_layout(path.relative_to(out))]
    for path in sorted(written, key=lambda path: path.name != "result.json"):
        path.unlink(missing_ok=True)


def remove_torchrun_logs(folder: Path) -> None:
    """Remove torchrun's files from its log folder, which is called torchrun; other files stay."""
    for path in files_in(folder):
        if re.fullmatch(_TORCHRUN, path.relative_to(folder.parent).as_posix()):
            path.unlink(missing_ok=True)
    remove_empty_folders(folder)
    if folder.is_dir() and not folder.is_symlink() and not os.listdir(folder):
        folder.rmdir()


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, without following links to folders; empty if the folder does not
    exist.
    """
    return [Path(parent) / name for parent, _, names in os.walk(folder) for name in names]


def remove_temporaries(folder: Path) -> None:
    """Remove unfinished files of killed processes directly in a folder."""
    for path in folder.glob(".tmp-*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_empty_folders(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        if Path(path) != folder and not os.listdir(path):
            os.rmdir(path)


MANIFEST_NAME = "manifest.json"
CELLS_NAME = "cells"
REPORT_NAME = "report"
CALIBRATION_NAME = "calibration.json"
RESULT_NAME = "result.json"
SETTINGS_NAME = "settings.json"
TRACE_SUFFIX = ".pt.trace.json.gz"
# of what was read from a trace; earlier versions kept it next to the trace
TABLES_SUFFIX = ".tables.parquet"


class JobFolder:
    """The files of one torchrun job: its settings, if it has separate ones, its log, and its
    result, which is written last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result_path = path / RESULT_NAME
        self.settings_path = path / SETTINGS_NAME
        self.log_path = path / "log.txt"
        self.torchrun_path = path / TORCHRUN_NAME

    def of_node(self, node: int) -> "JobFolder":
        """The log of another node's part until it is added to the job's log."""
        return JobFolder(self.path / f"node{node}")

    def status(self) -> CellStatus | None:
        """The status of the job's result, None without one."""
        ended = read_json_if_there(self.result_path, _Ended)
        return None if ended is None else ended.status


class _Ended(msgspec.Struct):
    """The field that results of all kinds of jobs have."""

    status: CellStatus


_COUNTS, _TIMES = ("epoch", "step", "samples"), ("step_us", "data_wait_us")


def _sound_samples(path: Path) -> dict[str, list[Any]]:
    """A process's samples by column; raises DpscopeError for a number that cannot have been
    measured.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        # as arrays they would import pandas
        columns: dict[str, list[Any]] = file.read().to_pydict()
    names = ("measuring_pass", *_COUNTS, *_TIMES)
    if missing := [name for name in names if name not in columns]:
        raise DpscopeError(f"{path}: it has no column {', '.join(sorted(missing))}")
    for name in (*_COUNTS, *_TIMES):
        values = [value for value in columns[name] if value is not None]
        if not all(isinstance(value, int if name in _COUNTS else int | float) for value in values):
            raise DpscopeError(
                f"{path}: its column {name} does not hold {'whole ' * (name in _COUNTS)}numbers"
            )
        if wrong := [value for value in values if value < 0 or value > MOST_COUNT]:
            raise DpscopeError(f"{path}: {name} is {wrong[0]:g} in {counted(len(wrong), 'row')}")
    return {name: columns[name] for name in names}


class RepeatFolder(JobFolder):
    @property
    def run(self) -> "RunFolder":
        return RunFolder(self.path.parents[2])

    def rank_path(self, node: int, rank: int) -> Path:
        return self.path / f"rank_{node}_{rank}.json"

    def samples_path(self, node: int, rank: int) -> Path:
        return self.path / f"samples_{node}_{rank}.parquet"

    def trace_path(self, node: int, rank: int) -> Path:
        return self.path / "traces" / f"{node}_{rank}{TRACE_SUFFIX}"

    @property
    def collectives_path(self) -> Path:
        return self.path / COLLECTIVES_NAME

    def counters_trace_path(self, node: int, rank: int) -> Path:
        return self.path / "counters" / f"{node}_{rank}{TRACE_SUFFIX}"

    def counters_path(self, node: int, rank: int) -> Path:
        return self.path / "counters" / f"{node}_{rank}.json"

    def result(self) -> CellResult | None:
        """The repeat's result, None while it is not done."""
        return read_json_if_there(self.result_path, CellResult)

    def ranks(self) -> list[RankResult]:
        """The results of all processes, in rank order."""
        results = [read_json(path, RankResult) for path in self.path.glob("rank_*_*.json")]
        return sorted(results, key=lambda result: result.rank)

    def samples(self, ranks: Sequence[RankResult]) -> dict[str, list[Any]]:
        """These ranks' samples by column: those of `instruments.step_timer` plus `rank`; None for a
        missing value.
        """
        columns: defaultdict[str, list[Any]] = defaultdict(list)
        for rank in ranks:
            of_rank = _sound_samples(self.samples_path(rank.node, rank.rank))
            for name, values in {**of_rank, "rank": [rank.rank] * len(of_rank["step"])}.items():
                columns[name] += values
        return dict(columns)

    def traces(self, folder: str = "traces") -> list[Path]:
        return sorted((self.path / folder).glob(f"*{TRACE_SUFFIX}"), key=natural_order)

    def counters_traces(self) -> list[Path]:
        return self.traces("counters")

    def counters(self, node: int, rank: int) -> list[DdpCounters]:
        return read_json(self.counters_path(node, rank), list[DdpCounters])

    def clear(self) -> None:
        """Remove all files of an attempt that did not finish or will be repeated."""
        remove_written(self.run.path, self.path)

    def clear_attempt(self) -> None:
        """Remove the measurements of an earlier attempt; files of the running job stay, and folders
        in which torchrun on another node is about to open its logs.
        """
        measured = (RESULT_NAME, "rank_", "samples_")
        folders = (self.path / "traces", self.path / "counters", self.collectives_path)
        _remove_written_files(
            self.run.path,
            self.path,
            lambda path: not path.name.startswith(measured) and path.parent not in folders,
        )


_NAME_A_RUN = "name a folder that `dpscope run` or `dpscope attach` made"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / MANIFEST_NAME
        self.calibration_path = path / CALIBRATION_NAME
        self.report_path = path / REPORT_NAME

    def manifest(self) -> Manifest:
        """The manifest; raises DpscopeError if this is not a run folder or has another schema."""
        if not self.path.exists():
            raise DpscopeError(f"{self.path} does not exist; {_NAME_A_RUN}")
        if not self.manifest_path.exists():
            raise DpscopeError(
                f"{self.path} is not a run folder: it has no {MANIFEST_NAME}; {_NAME_A_RUN}"
            )
        return read_manifest(self.manifest_path, Manifest, SCHEMA_VERSION)

    def repeat(self, cell: Cell, repeat: int) -> RepeatFolder:
        return RepeatFolder(self.path / CELLS_NAME / cell.name / f"repeat{repeat}")

    def repeats(self, cell: Cell) -> list[tuple[int, RepeatFolder]]:
        """The repeats of a cell that were begun, in order."""
        folders = (self.path / CELLS_NAME / cell.name).glob("repeat*")
        numbered = {path.name.removeprefix("repeat"): RepeatFolder(path) for path in folders}
        return [
            (int(number), numbered[number])
            for number in sorted(filter(str.isdecimal, numbered), key=int)
        ]

    def collectives(self) -> list[Path]:
        """The folders of jobs whose collectives were recorded."""
        recorded = self.path.glob(f"{COLLECTIVES_NAME}/*/dump_0")
        of_repeats = self.path.glob(f"{CELLS_NAME}/*/*/{COLLECTIVES_NAME}/dump_0")
        return sorted((file.parent for file in (*recorded, *of_repeats)), key=natural_order)

    def done_repeats(self, cell: Cell) -> list[tuple[int, RepeatFolder]]:
        """Repeats of a cell that ended well, in order."""
        return [(index, folder) for index, folder in self.repeats(cell) if folder.status() == "ok"]


FIRST_VERSION_READ = (0, 2)

_Versioned = TypeVar("_Versioned", Manifest, "TrainManifest")


def read_manifest(path: Path, kind: type[_Versioned], version: int) -> _Versioned:
    """A manifest; raises DpscopeError if it has another schema than `version`, or is older than
    FIRST_VERSION_READ.
    """
    if _version_of(path) < FIRST_VERSION_READ:
        first = ".".join(map(str, FIRST_VERSION_READ))
        raise DpscopeError(
            f"{path} is of a dpscope before {first}, which this one does not read; measure the run again"
        )
    manifest = read_json(path, kind)
    if manifest.schema_version != version:
        raise DpscopeError(
            f"{path} has schema version {manifest.schema_version}, this dpscope reads {version}; read it with the dpscope "
            f"{manifest.dpscope_version} that wrote it"
        )
    return manifest


class _AnyManifest(msgspec.Struct):
    """The fields that manifests of all versions and commands have."""

    schema_version: int
    dpscope_version: str
    created_at: str
    config: dict[str, object]


def _version_of(manifest: Path) -> tuple[int, ...]:
    """Major and minor version of the dpscope that wrote a manifest."""
    numbers = re.match(r"(\d+)\.(\d+)", read_json(manifest, _AnyManifest).dpscope_version)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2]))


def is_dpscope_manifest(manifest: Path) -> bool:
    """Whether a file is a dpscope manifest of any version: web apps and browser extensions have
    manifests, too.
    """
    return decodes(manifest, _AnyManifest)


def is_run_folder(path: Path) -> bool:
    """Whether `path` is a folder with a dpscope manifest."""
    return is_dpscope_manifest(path / MANIFEST_NAME)
