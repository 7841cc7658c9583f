"""The output of a calibration: nccl-tests' tables, fits, figure, and the file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from dpscope.analysis.costs.calibration_files import calibration_path
from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.formulas import bus_factor, moved_as
from dpscope.analysis.costs.nccl_choices import ChoiceRow
from dpscope.analysis.costs.sources import contention_ratios
from dpscope.analysis.report.nccl_tables import calibration_chapter, ring_share
from dpscope.analysis.text.text_table import Field, TextTable, table_of, table_of_records
from dpscope.analysis.text.units import NA, show_bytes
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, CollectiveFit, Contention
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes, write_json
from dpscope.profiling.store.ownership import check_overwritable, is_calibration


def save_calibration(calibration: Calibration, out: Path) -> tuple[Calibration, Path]:
    """Fit a calibration and write calibration.json and its figure (.png), each atomically; returns the fits and the path.

    `out` is a run folder, which need not exist, or a .json file. The .json file is written last.
    """
    from dpscope.analysis.figures.calibration import calibration_figure
    from dpscope.analysis.figures.draw import to_png

    fitted = fit_calibration(calibration)
    path = calibration_path(out)
    check_overwritable(path, is_calibration)
    check_overwritable(path.with_suffix(".png"))
    try:
        write_bytes(path.with_suffix(".png"), to_png(calibration_figure(fitted)))
        write_json(path, fitted)
    except OSError as error:
        raise DpscopeError(f"--out {out}: cannot be written: {error.strerror}; choose another path") from error
    return fitted, path


def calibration_tables(calibration: Calibration) -> list[TextTable]:
    """A table with nccl-tests' columns per collective and device count, the fits, and their errors."""
    groups: dict[tuple[str, str], list[CalibrationPoint]] = {}
    for point in calibration.points:
        groups.setdefault((point.collective, _devices(point)), []).append(point)
    chapter, backend = calibration_chapter(calibration), calibration.backend
    slowest = [fit for fit in calibration.fits if fit.statistic == "slowest"]
    tables = [
        *(
            _samples_table(points, backend, chapter.chosen(points[0].devices, points[0].nodes or 1))
            for points in groups.values()
        ),
        *chapter.tables().values(),
        _fits_table(slowest, backend),
        table_of(
            "Errors of the fits",
            _ERRORS,
            slowest,
            [
                "median, largest: relative errors of the fit at its own sizes",
                "of prediction: 90% of measurements are within it when each size is predicted from the others",
            ],
        ),
        table_of_records(
            "Contention: how many times as long",
            [row for one in calibration.contention for row in _contention_rows(one)],
            ["predictions of buckets that overlap use them; computing is matrix products on every rank"],
        ),
        table_of_records(
            "Left out",
            [
                {
                    "collective": one.collective,
                    "devices": one.devices,
                    "size [B]": "all" if one.size_bytes is None else one.size_bytes,
                    "why": one.reason,
                }
                for one in calibration.left_out
            ],
        ),
    ]
    return [table for table in tables if table.rows]


def _devices(timed: CalibrationPoint | CollectiveFit | Contention) -> str:
    """Such as ``16``, or ``2x8`` over several nodes."""
    return str(timed.devices) if timed.nodes in (None, 1) else str(Layout(timed.nodes, timed.devices // timed.nodes))


_ERRORS = (
    Field("collective", "collective"),
    Field("devices", _devices),
    Field("sizes", "sizes"),
    Field("median", "median_relative_error", "share"),
    Field("largest", "largest_relative_error", "share"),
    Field("of prediction", "prediction_relative_error", "share"),
)


def _contention_rows(one: Contention) -> Iterator[dict[str, object]]:
    """How much collectives and computing slow each other, with 95% intervals."""
    ratios = contention_ratios(one)
    for what, slowdown in (
        ("two in flight over one", ratios.two_in_flight),
        ("collective next to compute over alone", ratios.beside_compute),
        ("compute next to collective over alone", ratios.compute),
    ):
        yield {
            "collective": one.collective,
            "devices": _devices(one),
            "size": show_bytes(one.size_bytes),
            "what": what,
            "ratio": f"{slowdown.value:.2f}",
            "95% interval": f"{slowdown.low:.2f} to {slowdown.high:.2f}",
            "iterations": slowdown.count,
        }


def _samples_table(
    points: list[CalibrationPoint], backend: str | None, chosen: Mapping[tuple[str, int], ChoiceRow]
) -> TextTable:
    """nccl-tests' columns and, if recorded, NCCL's choice at each size with its formula and the ring formula."""
    first = points[0]
    choices = [chosen.get((point.collective, point.size_bytes)) for point in points]
    known = [one for one in choices if one is not None]
    factor = bus_factor(moved_as(first.collective, backend), first.devices)
    rows: list[dict[str, object]] = []
    for point, choice in zip(points, choices, strict=True):
        time_us = float(median(point.times_us))
        algbw = point.size_bytes / time_us / 1e3
        row: dict[str, object] = {
            "size [B]": point.size_bytes,
            "count [elements]": point.count,
            "type": point.dtype,
            "time [µs]": _time(time_us),
            "algbw [GB/s]": _rate(algbw),
            "busbw [GB/s]": NA if factor is None else _rate(algbw * factor),
            "shortest [µs]": _time(median(point.shortest_us) if point.shortest_us else None),
        }
        if known:
            ring_us, formula_us = (None, None) if choice is None else (choice.ring_us, choice.formula_us)
            row |= {
                "NCCL chose": choice and choice.choice,
                "ring [µs]": _time(ring_us),
                "formula [µs]": _time(formula_us),
            }
        rows.append(row)
    notes = []
    if len(first.times_us) > 1:
        notes.append(
            f"time: median over {counted(len(first.times_us), 'iteration')} of the slowest rank, as in nccl-tests; "
            "shortest: of the fastest rank, as transfers in traces are defined"
        )
    if known:
        ring = sum(one.size_bytes for one in known if one.algorithm == "ring")
        notes.append(
            f"ring: the ring formula; formula: that of the algorithm that ran; "
            f"{ring_share(ring, sum(one.size_bytes for one in known))} of one call at each size"
        )
    return table_of_records(f"{first.collective} on {_devices(first)} devices", rows, notes)


def _rate(gb_per_s: float) -> str:
    """Two decimals, as in nccl-tests, or two significant digits for a small rate."""
    return f"{gb_per_s:.2f}" if gb_per_s >= 0.1 else f"{gb_per_s:.2g}"


def _time(time_us: float | None) -> str:
    """Four digits, as in nccl-tests."""
    if time_us is None:
        return NA
    return f"{time_us:.2f}" if time_us < 100 else f"{time_us:.1f}" if time_us < 1e4 else f"{time_us:.0f}"


def _fits_table(fits: Sequence[CollectiveFit], backend: str | None) -> TextTable:
    def gb_per_s(value: float | None) -> str:  # unbounded if the time does not depend on the size
        return "unbounded" if value is None else f"{value:.3g}"

    rows: list[dict[str, object]] = []
    for fit in fits:
        factor = bus_factor(moved_as(fit.collective, backend), fit.devices)
        rows += [
            {
                "collective": fit.collective,
                "devices": _devices(fit),
                "from": show_bytes(one.from_bytes) if one.from_bytes else "0",
                "to": "and up" if one.to_bytes is None else show_bytes(one.to_bytes),
                "alpha [µs]": f"{one.alpha_us:.1f}",
                "alpha's 95% interval": f"{one.alpha_low_us:.1f} to {one.alpha_high_us:.1f}",
                "B [GB/s]": gb_per_s(rate := one.bandwidth_gb_per_s),
                "B's 95% interval": f"{gb_per_s(one.bandwidth_low_gb_per_s)} to {gb_per_s(one.bandwidth_high_gb_per_s)}",
                "busbw [GB/s]": gb_per_s(None if rate is None or factor is None else rate * factor),
            }
            for one in fit.pieces
        ]
    resampled = " and ".join(sorted({fit.interval_source for fit in fits}))
    notes = (
        "alpha: the latency in a fit's first piece; in other pieces the line's value at size 0",
        f"intervals: bootstrap over {resampled}, with fixed breakpoints",
    )
    return table_of_records("Fit t = alpha + S/B, in as many pieces as the sizes support", rows, notes)
