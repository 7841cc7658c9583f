"""Calibrations read from files: one reader for each format, chosen by the file's suffix."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.nccl_tests_log import calibration_from_logs
from dpscope.profiling.records.calibration import CALIBRATION_SCHEMA_VERSION, Calibration
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import CALIBRATION_NAME


def calibration_path(out: Path) -> Path:
    """The path of a calibration: `out` itself if it is a .json file, else calibration.json in that folder."""
    return out if out.suffix == ".json" else out / CALIBRATION_NAME


def load_calibration(path: Path) -> Calibration:
    """Read what `dpscope calibrate` wrote (a run folder or the file itself); raises DpscopeError for a file of another kind."""
    calibration = read_json(calibration_path(path), Calibration)
    if calibration.schema_version != CALIBRATION_SCHEMA_VERSION:
        raise DpscopeError(
            f"{calibration_path(path)} has schema version {calibration.schema_version}, this dpscope reads "
            f"{CALIBRATION_SCHEMA_VERSION}; calibrate again"
        )
    return fit_calibration(calibration)


LOG_READERS: Mapping[str, Callable[[Sequence[Path]], Calibration]] = dict.fromkeys(
    (".log", ".txt", ".out"), calibration_from_logs
)
"""Readers of other programs' logs by suffix; the first log's suffix chooses the reader for a folder."""


def costs_at(path: Path, option: str = "--calibration") -> Calibration:
    """A calibration from calibration.json, a folder that holds one, or logs (a file or a folder of them).

    Raises DpscopeError for anything else.
    """
    if calibration_path(path).is_file() and (path.is_dir() or path.suffix == ".json"):
        return load_calibration(path)
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    logs = [one for one in inside if one.is_file() and (one == path or one.suffix in LOG_READERS)]
    if not logs:
        raise DpscopeError(
            f"{option} {path}: neither a calibration.json, a folder that holds one, nor nccl-tests' logs "
            f"({', '.join(LOG_READERS)}); make one with dpscope calibrate"
        )
    return LOG_READERS.get(logs[0].suffix, calibration_from_logs)(logs)
