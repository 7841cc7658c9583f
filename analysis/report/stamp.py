"""Whether a report that stands in its folder is the one that would be written now."""

import hashlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from dpscope.profiling.records.report_stamp import ReportStamp
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.folders import CELLS_NAME, TABLES_SUFFIX
from dpscope.profiling.store.layout import files_in
from dpscope.profiling.store.ownership import STAMP_NAME
from dpscope.profiling.store.training_folders import TRAININGS_NAME

_CODE = Path(__file__).parents[1]  # all of analysis: figures and page with what they show


def data_digest(run: Path, said: Iterable[str]) -> str:
    """A digest of a run's measured files (by size and time of change), of what is said of them, and of the code."""
    digest = hashlib.blake2b(digest_size=16)
    measured = [path for place in (CELLS_NAME, TRAININGS_NAME) for path in files_in(run / place)]
    measured += run.glob("*.json")  # manifests
    kept = [path for path in measured if not path.name.endswith(TABLES_SUFFIX) and not path.name.startswith(".tmp-")]
    for path in sorted(kept):
        told = path.stat()
        digest.update(f"{path.relative_to(run)}\0{told.st_size}\0{told.st_mtime_ns}\0".encode())
    for text in (*said, metadata.version("matplotlib")):
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    for path in sorted(path for path in files_in(_CODE) if path.suffix in (".py", ".html", ".css", ".js")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(folder: Path, made_from: str) -> bool:
    """Whether the folder holds a report made from the same, with every file as it was written."""
    try:
        stamp = read_json_if_there(folder / STAMP_NAME, ReportStamp)
        return stamp is not None and stamp.made_from == made_from and _files(folder, stamp.files) == stamp.files
    except (DpscopeError, OSError):
        return False


def write_stamp(folder: Path, made_from: str, names: Iterable[str]) -> None:
    """Say of which data the named files were made."""
    write_json(folder / STAMP_NAME, ReportStamp(made_from=made_from, files=_files(folder, names)))


def _files(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    return {name: (told.st_size, told.st_mtime_ns) for name in names for told in [(folder / name).lstat()]}
