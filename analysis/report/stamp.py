"""Whether a report that stands in its folder is the one that would be made now. Loads nothing that reads traces or draws."""

import hashlib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from dpscope.analysis.report.printed import PrintedReport
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.folders import CELLS_NAME, TABLES_SUFFIX
from dpscope.profiling.store.layout import files_in
from dpscope.profiling.store.ownership import STAMP_NAME, ReportStamp
from dpscope.profiling.store.training_folders import TRAININGS_NAME

DEFAULT_FORMATS = ("png",)  # of the files in figures/; the page holds its own
TRAINING_FILES = ("training.csv", "training.md")
_CODE = [Path(__file__).parents[2] / top for top in ("analysis", "profiling")]
_COMPUTED_BY = ("numpy", "pandas", "scipy", "matplotlib", "jinja2")


def data_digest(run: Path, asked: str) -> str:
    """A digest of a run's measured files (by size and time of change), of its name, of what is asked of it and of the code."""
    digest = hashlib.blake2b(digest_size=16)
    measured = [path for place in (CELLS_NAME, TRAININGS_NAME) for path in files_in(run / place)]
    measured += run.glob("*.json")  # manifests, a calibration
    kept = [path for path in measured if not path.name.endswith(TABLES_SUFFIX) and not path.name.startswith(".tmp-")]
    for path in sorted(kept):
        told = path.stat()
        digest.update(f"{path.relative_to(run)}\0{told.st_size}\0{told.st_mtime_ns}\0".encode(errors="surrogatepass"))
    for text in (str(run), asked, *map(metadata.version, _COMPUTED_BY)):
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    code = [path for folder in _CODE for path in files_in(folder)]
    for path in sorted(path for path in code if path.suffix in (".py", ".html", ".css", ".js")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def current_report(folder: Path, made_from: str, figure_formats: Sequence[str] | None = None) -> PrintedReport | None:
    """What a terminal shows of the report in a folder, if it was made from the same and every file is as it was written.

    None as well where its figures are of other formats than those asked for, if any are.
    """
    stamp = _stamp(folder)
    if stamp is None or stamp.printed is None or not is_current(folder, made_from, figure_formats):
        return None
    try:
        return msgspec.convert(stamp.printed, PrintedReport)
    except msgspec.ValidationError:
        return None


def is_current(folder: Path, made_from: str, figure_formats: Sequence[str] | None = None) -> bool:
    """Whether the report in a folder was made from the same, in these formats if any are asked for, and is as it was written."""
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
    """The formats of the figures of the report in a folder; where there is none, those of a new one."""
    stamp = _stamp(folder)
    return DEFAULT_FORMATS if stamp is None else stamp.figure_formats


def replace_stamp(
    folder: Path, made_from: str, names: Iterable[str], figure_formats: Sequence[str], printed: PrintedReport | None
) -> None:
    """Say of which data the named files were made; files of the report before that are none of this one are removed.

    One that was changed since is not: it is somebody's work. Nor are the trainings' own: they stand beside a run's report.
    """
    written = _files(folder, names)
    before = _stamp(folder)
    for name, told in before.files.items() if before is not None else ():
        if name not in (*written, *TRAINING_FILES) and _files(folder, [name], missing_ok=True).get(name) == told:
            (folder / name).unlink()
    shown = None if printed is None else msgspec.to_builtins(printed)
    stamp = ReportStamp(made_from=made_from, files=written, figure_formats=tuple(figure_formats), printed=shown)
    write_json(folder / STAMP_NAME, stamp)


def _stamp(folder: Path) -> ReportStamp | None:
    try:
        return read_json_if_there(folder / STAMP_NAME, ReportStamp)
    except (DpscopeError, OSError):
        return None


def _files(folder: Path, names: Iterable[str], missing_ok: bool = False) -> dict[str, tuple[int, int]]:
    there = [name for name in names if not missing_ok or (folder / name).is_file()]
    return {name: (told.st_size, told.st_mtime_ns) for name in there for told in [(folder / name).lstat()]}
