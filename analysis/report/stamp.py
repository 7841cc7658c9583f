"""A report's files, whether they are current, and the part that a terminal shows. Imports no trace reader or plotting."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json, write_together
from dpscope.profiling.store.folders import CELLS_NAME, TABLES_SUFFIX, files_in
from dpscope.profiling.store.ownership import STAMP_NAME, ReportStamp, check_report_folder
from dpscope.profiling.store.training_folders import TRAININGS_NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PrintedReport:
    """`answers` are a verdict's, each with its label; `warnings` precede them; `missing` states why values are NA.

    `summary` is the first table (where a step goes), `shortcuts` the second (measured against the shortcuts). `first_cells` are
    those whose rows a terminal shows of both.
    """

    setting: str
    warnings: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    summary: TextTable
    shortcuts: TextTable | None
    first_cells: tuple[str, ...]
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
    for path in sorted([*measured, *run.glob("*.json")]):  # manifests, a calibration
        if path.name.endswith(TABLES_SUFFIX) or path.name.startswith(".tmp-"):
            continue
        stat = path.stat()
        digest.update(f"{path.relative_to(run)}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="surrogatepass"))
    for text in (str(run), request, *map(metadata.version, _COMPUTED_BY)):
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    for path in sorted(path for folder in _CODE for path in files_in(folder)):
        if path.suffix in (".py", ".html", ".css", ".js"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def current_report(folder: Path, made_from: str, figure_formats: Sequence[str] | None = None) -> PrintedReport | None:
    """The printed part of the report in a folder; None unless the report is current (see `current_stamp`)."""
    stamp = current_stamp(folder, made_from, figure_formats)
    if stamp is not None and stamp.printed is not None:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(stamp.printed, PrintedReport)
    return None


def current_stamp(folder: Path, made_from: str, figure_formats: Sequence[str] | None = None) -> ReportStamp | None:
    """The stamp of a report that was made from the same data, in these formats if given, and is unchanged since; else None."""
    stamp = _stamp(folder)
    if stamp is None or stamp.made_from != made_from:
        return None
    if figure_formats is not None and set(figure_formats) != set(stamp.figure_formats):
        return None
    with suppress(OSError):
        return stamp if _files(folder, stamp.files) == stamp.files else None
    return None


def write_with_figures(
    folder: Path,
    figures: "Mapping[str, Figure]",
    figure_formats: Sequence[str] | None,
    texts: Callable[[dict[str, str]], Mapping[str, str]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write a report's `texts`, made from its figures' SVG, and its figures; returns the names of the files, and the formats.

    None as `figure_formats` keeps the formats of the report in the folder, and means DEFAULT_FORMATS if there is none.
    """
    from dpscope.analysis.figures.draw import figure_files

    stamp = _stamp(folder)
    kept = DEFAULT_FORMATS if stamp is None else stamp.figure_formats
    formats = kept if figure_formats is None else tuple(figure_formats)
    check_report_folder(folder, [f"{name}.{one}" for name in figures for one in formats])
    svg, drawn = figure_files(figures, formats)
    contents: dict[str, str | bytes] = {**texts(svg), **{f"figures/{name}": content for name, content in drawn.items()}}
    write_together({folder / name: content for name, content in contents.items()})
    return tuple(contents), formats


def replace_stamp(
    folder: Path, made_from: str, names: Iterable[str], figure_formats: Sequence[str], printed: PrintedReport | None
) -> None:
    """Record from which data the named files were made, and remove files of the previous report that this one lacks.

    Files that were changed since and the files of trainings, which are kept next to a run's report, are not removed.
    """
    written, before = _files(folder, names), _stamp(folder)
    for name, stat in before.files.items() if before is not None else ():
        if name not in (*written, *TRAINING_FILES) and _files(folder, [name]) == {name: stat}:
            (folder / name).unlink()
    content = None if printed is None else msgspec.to_builtins(printed)
    stamp = ReportStamp(made_from=made_from, files=written, figure_formats=tuple(figure_formats), printed=content)
    write_json(folder / STAMP_NAME, stamp)


def _stamp(folder: Path) -> ReportStamp | None:
    try:
        return read_json_if_there(folder / STAMP_NAME, ReportStamp)
    except (DpscopeError, OSError):
        return None


def _files(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Size and modification time of those of these files that are there."""
    there = [(name, (folder / name).lstat()) for name in names if (folder / name).is_file()]
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in there}
