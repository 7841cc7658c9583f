"""Calibrations read from files, one reader for each format, chosen by the file's suffix; among them
nccl-tests' logs.
"""

import importlib.metadata
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.nccl_tests_log import LoggedTest, read_tests
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.machine.link_specifications import gpu_model, model_link
from dpscope.profiling.records.calibration import (
    CALIBRATION_SCHEMA_VERSION,
    Calibration,
    CalibrationPoint,
)
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import decodes, read_json
from dpscope.profiling.store.folders import CALIBRATION_NAME


def calibration_path(out: Path) -> Path:
    """The path of a calibration: `out` itself if it is a .json file, else calibration.json in that
    folder.
    """
    return out if out.suffix == ".json" else out / CALIBRATION_NAME


def load_calibration(path: Path) -> Calibration:
    """Read what `dpscope calibrate` wrote (a run folder or the file itself); raises DpscopeError
    for a file of another kind.
    """
    file = calibration_path(path)
    if file.exists() and not decodes(file, Calibration):
        raise DpscopeError(
            f"{file} is no calibration that this dpscope reads; dpscope calibrate writes one"
        )
    calibration = read_json(file, Calibration)
    if calibration.schema_version != CALIBRATION_SCHEMA_VERSION:
        raise DpscopeError(
            f"{file} has schema version {calibration.schema_version}, this dpscope reads "
            f"{CALIBRATION_SCHEMA_VERSION}; calibrate again"
        )
    return fit_calibration(calibration)


def calibration_of_run(folder: Path) -> Calibration | None:
    """The calibration in a run's folder; None where there is none."""
    return load_calibration(folder) if calibration_path(folder).exists() else None


LOG_SUFFIXES = (".log", ".txt", ".out")  # of nccl-tests' logs in a folder
# of a test's times over another's, in the median over sizes, if one repeats the other
LARGEST_SPREAD = 1.25


def calibration_from_logs(
    paths: Sequence[Path], in_place: bool = False, link: LinkRate | None = None
) -> Calibration:
    """The logs as one calibration with its fits; in-place columns instead of out-of-place ones on
    request.

    A log holds one mean per size and no samples. The link is `link` where the user states one, else
    what the GPUs' names show, else unknown. Raises DpscopeError with the file and line of what is
    no such log or is damaged.
    """
    if not paths:
        raise DpscopeError("--from-nccl-tests: name one log or more")
    tests = [test for path in paths for test in read_tests(path, in_place)]
    spans: dict[int, set[int]] = {}
    for test in tests:
        spans.setdefault(test.devices, set()).add(test.nodes)
    # what the user states holds for every count
    rates = {test.devices: link or _link_by_model(test) for test in tests}
    alike = grouped(((test.collective, test.devices, test.nodes), test) for test in tests)
    for repeats in alike.values():
        _check_repeats(repeats)
    calibration = Calibration(
        schema_version=CALIBRATION_SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source="nccl-tests",
        settings=None,
        backend="nccl",
        environment=None,
        device_names=max((test.device_names for test in tests), key=len),
        points=tuple(_placed_points(tests, spans)),
        links={devices: rate for devices, rate in rates.items() if rate is not None},
        findings=tuple(_wrong_results(tests)),
        nodes={devices: min(nodes) for devices, nodes in spans.items()},
    )
    return fit_calibration(calibration)


def _placed_points(
    tests: Sequence[LoggedTest], spans: Mapping[int, Collection[int]]
) -> Iterator[CalibrationPoint]:
    """The points of all tests; with their nodes where a device count was tested over several, or
    over different numbers (`spans`).
    """
    for test in tests:
        # a point without nodes is on those that the calibration states for its device count
        stated = test.nodes > 1 or len(spans[test.devices]) > 1
        nodes = test.nodes if stated else None
        yield from (msgspec.structs.replace(point, nodes=nodes) for point in test.points)


def _link_by_model(test: LoggedTest) -> LinkRate | None:
    """Of GPUs of one model on one node: a switch between nodes is in no model's name."""
    if test.nodes > 1 or len(set(test.device_names)) > 1:
        return None
    model = gpu_model(test.device_names[0])
    return None if model is None else model_link(model)


def _check_repeats(tests: Sequence[LoggedTest]) -> None:
    """Raise DpscopeError unless the tests of a collective on one layout are one test and its
    repeats.
    """
    first = tests[0]
    what = f"{first.collective} on {counted(first.devices, 'device')}"
    for other in tests[1:]:
        differing = dict(first.variant.items() ^ other.variant.items())
        if differing:
            raise DpscopeError(
                f"{_where(first, other)}: tests of {what} that differ in {listed(sorted(differing))}, of which a "
                "calibration holds one; give only the rows of one"
            )
    slowness = [_slowness(test, tests) for test in tests]
    fast, slow = tests[slowness.index(min(slowness))], tests[slowness.index(max(slowness))]
    if max(slowness) > LARGEST_SPREAD * min(slowness):
        size = max(_times(fast).keys() & _times(slow).keys())
        times = [show_time(_times(test)[size]) for test in (fast, slow)]
        raise DpscopeError(
            f"{_where(fast, slow)}: {show_bytes(size)} of {what} take {times[0]} on {fast.hosts[0]} and {times[1]} on "
            f"{slow.hosts[0]}: too different for repeats of one test; give only the log of one"
        )


def _where(test: LoggedTest, other: LoggedTest) -> str:
    return " and ".join(dict.fromkeys(str(each.path) for each in (test, other)))


def _times(test: LoggedTest) -> dict[int, float]:
    """Median times in microseconds by size in bytes."""
    times = grouped((point.size_bytes, point.times_us[0]) for point in test.points)
    return {size: median(own) for size, own in times.items()}


def _slowness(test: LoggedTest, tests: Sequence[LoggedTest]) -> float:
    """How many times longer a test takes than the median of all, in the median over its sizes."""
    every = grouped(pair for stored in tests for pair in _times(stored).items())
    return median(time / median(every[size]) for size, time in _times(test).items())


def _wrong_results(tests: Sequence[LoggedTest]) -> Iterator[Finding]:
    for test in tests:
        if test.wrong is not None:
            message = (
                f"{test.path.name}: {test.collective} on {counted(test.devices, 'device')} gave wrong results {test.wrong}: "
                "its times are those of a collective that did not work"
            )
            yield RunCode.CALIBRATION_RESULTS_WRONG.finding(message)


def wrong_results(calibration: Calibration | None) -> tuple[Finding, ...]:
    """A calibration's findings that its times are of wrong results, which hold wherever it is
    used.
    """
    if calibration is None:
        return ()
    wrong = RunCode.CALIBRATION_RESULTS_WRONG.code
    return tuple(finding for finding in calibration.findings if finding.code == wrong)


def costs_at(path: Path, option: str = "--calibration") -> Calibration:
    """A calibration from calibration.json, a folder that holds one, or logs (a file or a folder of
    them).

    Raises DpscopeError for anything else.
    """
    if calibration_path(path).is_file() and (path.is_dir() or path.suffix == ".json"):
        return load_calibration(path)
    files = [path]
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix in LOG_SUFFIXES]
    logs = [file for file in files if file.is_file()]
    if logs:
        return calibration_from_logs(logs)
    raise DpscopeError(
        f"{option} {path}: neither a calibration.json, a folder that holds one, nor logs of nccl-tests "
        f"({', '.join(LOG_SUFFIXES)}); make one with dpscope calibrate"
    )
