"""The output of a calibration: nccl-tests' tables, fits, figure, and the file."""

from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import median, quantiles

from dpscope.analysis.costs.calibration_files import calibration_path
from dpscope.analysis.costs.calibration_fit import (
    FEWEST_SIZES,
    fit_calibration,
    noise_message,
    noisy_fits,
)
from dpscope.analysis.costs.contention import contention_ratios
from dpscope.analysis.costs.formulas import bus_factor, moved_as
from dpscope.analysis.report.nccl_tables import NcclChapter, calibration_chapter, ring_share
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, show_bytes, show_time
from dpscope.profiling.records.calibration import (
    Calibration,
    CalibrationPoint,
    Choice,
    CollectiveFit,
    Contention,
    FitPiece,
)
from dpscope.profiling.records.finding import counted, grouped
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes, write_json
from dpscope.profiling.store.ownership import check_overwritable, is_calibration

_FEWEST_TIMES = 2  # that spread


def save_calibration(calibration: Calibration, out: Path) -> tuple[Calibration, Path]:
    """Fit a calibration and write calibration.json and its figure (.png), each atomically; returns
    the fits and the path.

    `out` is a run folder, which need not exist, or a .json file. The .json file is written last.
    """
    from dpscope.analysis.figures.calibration import calibration_figure
    from dpscope.analysis.figures.draw import saved

    fitted = fit_calibration(calibration)
    path = calibration_path(out)
    check_overwritable(path, is_calibration)
    check_overwritable(path.with_suffix(".png"))
    try:
        write_bytes(path.with_suffix(".png"), saved(calibration_figure(fitted), "png"))
        write_json(path, fitted)
    except OSError as error:
        raise DpscopeError(
            f"--out {out}: cannot be written: {error.strerror}; choose another path"
        ) from error
    return fitted, path


def calibration_answers(calibration: Calibration) -> list[str]:
    """What is printed above the tables: whose predictions are not reliable, and of each collective
    the rate at the largest size and the time of the smallest.
    """
    lines = []
    noisy = noisy_fits(calibration)
    if noisy:
        again = RunCode.CALIBRATION_NOISY.value.action
        lines.append(f"NOISY FIT: {noise_message(noisy)}: {again}.")
    for (collective, devices), points in _by_devices(calibration).items():
        # small messages show latency, large ones the link
        smallest = min(points, key=attrgetter("size_bytes"))
        largest = max(points, key=attrgetter("size_bytes"))
        factor = _factor(largest, calibration.backend)
        if factor is None:
            continue  # nothing says how much of the bytes each link carries
        time_us = _median_us(largest)
        algorithm_gb_per_s = largest.size_bytes / time_us / 1e3
        rate = _rate(algorithm_gb_per_s * factor)
        size = show_bytes(largest.size_bytes)
        latency = show_time(_median_us(smallest))
        least = show_bytes(smallest.size_bytes)
        where = f"{collective} on {devices} devices"
        times = f"{latency} for {least}"
        lines.append(f"{where}: bus bandwidth {rate} GB/s ({size}), {times}.")
    return lines


def _by_devices(calibration: Calibration) -> dict[tuple[str, str], list[CalibrationPoint]]:
    """The points of each collective on as many devices."""
    return grouped(((point.collective, _devices(point)), point) for point in calibration.points)


def calibration_tables(calibration: Calibration) -> list[TextTable]:
    """A table with nccl-tests' columns per collective and device count, the fits, and their
    errors.
    """
    chapter = calibration_chapter(calibration)
    backend = calibration.backend
    slowest = [fit for fit in calibration.fits if fit.statistic == "slowest"]
    resampled = " and ".join(sorted({fit.interval_source for fit in slowest}))
    fitted = (
        "alpha: the latency in a fit's first piece; in other pieces the line's value at size 0",
        f"intervals: bootstrap over {resampled}, with fixed breakpoints",
    )
    errors = (
        "median, largest: relative errors of the fit at its own sizes",
        "of prediction: 90% of measurements are within it when each size is predicted from the others"
        + (
            f"; {NA}: fewer than {FEWEST_SIZES} sizes"
            if any(fit.sizes < FEWEST_SIZES for fit in slowest)
            else ""
        ),
    )
    pieces = [(fit, piece) for fit in slowest for piece in fit.pieces]
    timed = [(measured, contention_ratios(measured)) for measured in calibration.contention]
    contention = [(one, what, of(ratios)) for one, ratios in timed for what, of in _SLOWED.items()]
    slowed = (
        "predictions of buckets that overlap use them; computing is matrix products on every rank"
    )
    tables = [
        *(_samples_table(points, backend, chapter) for points in _by_devices(calibration).values()),
        *chapter.tables,
        table_of(
            "Fit t = alpha + S/B, in as many pieces as the sizes support", _PIECES, pieces, fitted
        ),
        table_of("Errors of the fits", _ERRORS, calibration.fits, errors),
        table_of("Contention: how many times as long", _CONTENTION, contention, [slowed]),
        table_of("Left out", _LEFT_OUT, calibration.left_out),
    ]
    return [table for table in tables if table.rows]


def _devices(timed: CalibrationPoint | CollectiveFit | Contention) -> str:
    """Such as ``16``, or ``2x8`` over several nodes."""
    if timed.nodes in (None, 1):
        return str(timed.devices)
    per_node = timed.devices // timed.nodes
    return str(Layout(timed.nodes, per_node))


def _factor(timed: CalibrationPoint | CollectiveFit, backend: str | None) -> float | None:
    return bus_factor(moved_as(timed.collective, backend), timed.devices)


def _gb_per_s(value: float | None) -> str:
    """Unbounded if the time does not depend on the size."""
    return "unbounded" if value is None else f"{value:.3g}"


def _from_size(piece: FitPiece) -> str:
    """The size from which on a piece of a fit holds."""
    if not piece.from_bytes:
        return "0"
    return show_bytes(piece.from_bytes)


def _to_size(piece: FitPiece) -> str:
    """And the size up to which it does."""
    if piece.to_bytes is None:
        return "and up"
    return show_bytes(piece.to_bytes)


def _bandwidth_interval(piece: FitPiece) -> str:
    low = _gb_per_s(piece.bandwidth_low_gb_per_s)
    high = _gb_per_s(piece.bandwidth_high_gb_per_s)
    return f"{low} to {high}"


_PIECES = (
    Field("collective", lambda row: row[0].collective),
    Field("devices", lambda row: _devices(row[0])),
    Field("from", lambda row: _from_size(row[1])),
    Field("to", lambda row: _to_size(row[1])),
    Field("alpha [µs]", lambda row: f"{row[1].alpha_us:.1f}"),
    Field(
        "alpha's 95% interval",
        lambda row: f"{row[1].alpha_low_us:.1f} to {row[1].alpha_high_us:.1f}",
    ),
    Field("B [GB/s]", lambda row: _gb_per_s(row[1].bandwidth_gb_per_s)),
    Field("B's 95% interval", lambda row: _bandwidth_interval(row[1])),
)
_ERRORS = (
    Field("collective", "collective"),
    Field("devices", _devices),
    Field("of rank", "statistic"),
    Field("sizes", "sizes"),
    Field("median", "median_relative_error", "share"),
    Field("largest", "largest_relative_error", "share"),
    Field("of prediction", "prediction_relative_error", "share"),
)
_SLOWED = {  # of how much collectives and computing slow each other
    "two in flight over one": attrgetter("two_in_flight"),
    "collective next to compute over alone": attrgetter("beside_compute"),
    "compute next to collective over alone": attrgetter("compute"),
}
_CONTENTION = (
    Field("collective", lambda row: row[0].collective),
    Field("devices", lambda row: _devices(row[0])),
    Field("size", lambda row: show_bytes(row[0].size_bytes)),
    Field("what", itemgetter(1)),
    Field("ratio", lambda row: f"{row[2].value:.2f}"),
    Field("95% interval", lambda row: f"{row[2].low:.2f} to {row[2].high:.2f}"),
    Field("iterations", lambda row: row[2].count),
)
_LEFT_OUT = (
    Field("collective", "collective"),
    Field("devices", "devices"),
    Field("size [B]", lambda one: "all" if one.size_bytes is None else one.size_bytes),
    Field("why", "reason"),
)


def _median_us(point: CalibrationPoint) -> float:
    return float(median(point.times_us))


def _spread(point: CalibrationPoint) -> float | None:
    """The interquartile range of the iterations over their median."""
    if len(point.times_us) < _FEWEST_TIMES:
        return None
    first, middle, third = quantiles(point.times_us, n=4, method="inclusive")
    return (third - first) / middle


def _samples_table(
    points: list[CalibrationPoint], backend: str | None, chapter: NcclChapter
) -> TextTable:
    """nccl-tests' columns and, if recorded, NCCL's choice at each size."""
    first, factor = points[0], _factor(points[0], backend)

    def choice(point: CalibrationPoint) -> Choice | None:
        return chapter.choice(point.devices, point.nodes or 1, point.collective, point.size_bytes)

    def rate(point: CalibrationPoint, factor: float | None = 1.0) -> str:
        return NA if factor is None else _rate(point.size_bytes / _median_us(point) / 1e3 * factor)

    fields = [
        Field("size [B]", "size_bytes"),
        Field("count [elements]", "count"),
        Field("type", "dtype"),
        Field("time [µs]", lambda point: _time(_median_us(point))),
        Field("algbw [GB/s]", rate),
        Field("busbw [GB/s]", lambda point: rate(point, factor)),
    ]
    notes = []
    if first.shortest_us:
        fields.append(Field("shortest [µs]", lambda point: _time(median(point.shortest_us))))
        notes.append("shortest: of the fastest rank, as transfers in traces are defined")
    if len(first.times_us) > 1:
        iterations = counted(len(first.times_us), "iteration")
        notes.append(
            f"time: median over {iterations} of the slowest rank, as in nccl-tests; spread: their interquartile range "
            "over it"
        )
        fields.append(Field("spread", _spread, "share"))
    if len({point.size_bytes for point in points}) == 1:
        notes.append("no fit, and no prediction from it: a line needs two sizes")
    known = []
    for point in points:
        chosen = choice(point)
        if chosen is not None:
            known.append((point.size_bytes, chosen))
    if known:
        fields.append(Field("NCCL chose", lambda point: getattr(choice(point), "words", None)))
        ring = sum(size for size, chosen in known if chosen.algorithm == "ring")
        notes.append(f"{ring_share(ring, sum(size for size, _ in known))} of one call at each size")
    return table_of(f"{first.collective} on {_devices(first)} devices", fields, points, notes)


def _rate(gb_per_s: float) -> str:
    """Two decimals, as in nccl-tests, or two significant digits for a small rate."""
    return f"{gb_per_s:.2f}" if gb_per_s >= 0.1 else f"{gb_per_s:.2g}"


def _time(time_us: float | None) -> str:
    """Four digits, as in nccl-tests."""
    if time_us is None:
        return NA
    if time_us < 100:
        return f"{time_us:.2f}"
    if time_us < 1e4:
        return f"{time_us:.1f}"
    return f"{time_us:.0f}"
