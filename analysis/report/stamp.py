"""Whether the report in a folder is current, and its stored part that a terminal shows. Imports no trace reader or plotting."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.folders import CELLS_NAME, TABLES_SUFFIX, files_in
from dpscope.profiling.store.ownership import STAMP_NAME, ReportStamp
from dpscope.profiling.store.training_folders import TRAININGS_NAME


@dataclass(frozen=True)
class PrintedReport:
    """`answers` are a verdict's, each with its label; `warnings` precede them; `missing` states why values are NA.

    `summary` is the first table (where a step goes), `shortcuts` the second (measured against the shortcuts). `first_rows` are
    the numbers of the rows of `summary` that a terminal shows.
    """

    setting: str
    warnings: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    summary: TextTable
    shortcuts: TextTable | None
    first_rows: tuple[int, ...]
    tables: tuple[TextTable, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """False if a finding is an error, such as a failed cell."""
        return not any(finding.severity == "error" for finding in self.findings)


DEFAULT_FORMATS = ("png",)  # of the files in figures/; the page embeds its figures
TRAINING_FILES = ("training.csv", "training.md")
_CODE = [Path(__file__).parents[2] / top for top in ("analysis", "profiling")]
_COMPUTED_BY = ("numpy", "pandas", "scipy", "matplotlib", "jinja2")


def data_digest(run: Path, request: str) -> str:
    """A digest of a run's measured files (by size and modification time), its name, the request and the code."""
    digest = hashlib.blake2b(digest_size=16)
    measured = [path for place in (CELLS_NAME, TRAININGS_NAME) for path in files_in(run / place)]
    measured += run.glob("*.json")  # manifests, a calibration
    kept = [path for path in measured if not path.name.endswith(TABLES_SUFFIX) and not path.name.startswith(".tmp-")]
    for path in sorted(kept):
        stat = path.stat()
        digest.update(f"{path.relative_to(run)}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="surrogatepass"))
    for text in (str(run), request, *map(metadata.version, _COMPUTED_BY)):
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    code = [path for folder in _CODE for path in files_in(folder)]
    for path in sorted(path for path in code if path.suffix in (".py", ".html", ".css", ".js")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def current_report(folder: Path, made_from: str, figure_formats: Sequence[str] | None = None) -> PrintedReport | None:
    """The printed part of the report in a folder; None unless the report is current (see `is_current`)."""
    stamp = _stamp(folder)
    if stamp is None or stamp.printed is None or not is_current(folder, made_from, figure_formats):
        return None
    try:
        return msgspec.convert(stamp.printed, PrintedReport)
    except msgspec.ValidationError:
        return None


def is_current(folder: Path, made_from: str, figure_formats: Sequence[str] | None = None) -> bool:
    """Whether the report in a folder was made from the same data, in these formats if given, and is unchanged since."""
    stamp = _stamp(folder)
    if stamp is None or stamp.made_from != made_from:
        return False
    if figure_formats is not None and set(figure_formats) != set(stamp.figure_formats):
        return False
    try:
        return _files(folder, stamp.files) == stamp.files
    except OSError:
        return False


def formats_there(folder: Path) -> tuple[str, ...]:
    """The formats of the figures of the report in a folder, or those of a new report if there is none."""
    stamp = _stamp(folder)
    return DEFAULT_FORMATS if stamp is None else stamp.figure_formats


def replace_stamp(
    folder: Path, made_from: str, names: Iterable[str], figure_formats: Sequence[str], printed: PrintedReport | None
) -> None:
    """Record from which data the named files were made, and remove files of the previous report that this one lacks.

    Files that were changed since and the files of trainings, which are kept next to a run's report, are not removed.
    """
    written = _files(folder, names)
    before = _stamp(folder)
    for name, stat in before.files.items() if before is not None else ():
        if name not in (*written, *TRAINING_FILES) and _files(folder, [name], missing_ok=True).get(name) == stat:
            (folder / name).unlink()
    content = None if printed is None else msgspec.to_builtins(printed)
    stamp = ReportStamp(made_from=made_from, files=written, figure_formats=tuple(figure_formats), printed=content)
    write_json(folder / STAMP_NAME, stamp)


def _stamp(folder: Path) -> ReportStamp | None:
    try:
        return read_json_if_there(folder / STAMP_NAME, ReportStamp)
    except (DpscopeError, OSError):
        return None


def _files(folder: Path, names: Iterable[str], missing_ok: bool = False) -> dict[str, tuple[int, int]]:
    there = [name for name in names if not missing_ok or (folder / name).is_file()]
    return {name: (stat.st_size, stat.st_mtime_ns) for name in there for stat in [(folder / name).lstat()]}
