"""The output of a calibration: nccl-tests' tables, fits, figure, and the file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpscope.analysis.costs.calibration_files import calibration_path
from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.formulas import bus_factor, moved_as
from dpscope.analysis.costs.nccl_choices import ChoiceRow
from dpscope.analysis.costs.sources import contention_ratios
from dpscope.analysis.report.nccl_tables import calibration_chapter, ring_share
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, show_bytes
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, CollectiveFit, Contention, FitPiece
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
    chapter = calibration_chapter(calibration)
    tables = [
        _samples_table(points, calibration.backend, chapter.chosen(points[0].devices, points[0].nodes or 1))
        for points in groups.values()
    ]
    tables += chapter.tables().values()
    if calibration.fits:
        slowest = tuple(fit for fit in calibration.fits if fit.statistic == "slowest")
        tables += [_fits_table(slowest, calibration.backend), _errors_table(slowest)]
    if calibration.contention:
        tables.append(_contention_table(calibration.contention))
    left_out = tuple(
        (item.collective, str(item.devices), "all" if item.size_bytes is None else str(item.size_bytes), item.reason)
        for item in calibration.left_out
    )
    if left_out:
        tables.append(TextTable("Left out", ("collective", "devices", "size [B]", "why"), left_out))
    return tables


def _devices(timed: CalibrationPoint | CollectiveFit | Contention) -> str:
    """Such as ``16``, or ``2x8`` over several nodes."""
    return str(timed.devices) if timed.nodes in (None, 1) else str(Layout(timed.nodes, timed.devices // timed.nodes))


def _contention_table(timed: Sequence[Contention]) -> TextTable:
    """How much collectives and computing slow each other, with 95% intervals."""
    rows = []
    for one in timed:
        ratios = contention_ratios(one)
        for what, slowdown in (
            ("two in flight over one", ratios.two_in_flight),
            ("collective next to compute over alone", ratios.beside_compute),
            ("compute next to collective over alone", ratios.compute),
        ):
            within = f"{slowdown.low:.2f} to {slowdown.high:.2f}"
            size, ratio = show_bytes(one.size_bytes), f"{slowdown.value:.2f}"
            rows.append((one.collective, _devices(one), size, what, ratio, within, str(slowdown.count)))
    return TextTable(
        "Contention: how many times as long",
        ("collective", "devices", "size", "what", "ratio", "95% interval", "iterations"),
        tuple(rows),
        ("predictions of buckets that overlap use them; computing is matrix products on every rank",),
    )


def _samples_table(
    points: list[CalibrationPoint], backend: str | None, chosen: Mapping[tuple[str, int], ChoiceRow]
) -> TextTable:
    """nccl-tests' columns and, if recorded, NCCL's choice at each size with its formula and the ring formula."""
    headings = ["size [B]", "count [elements]", "type", "time [µs]", "algbw [GB/s]", "busbw [GB/s]", "shortest [µs]"]
    rows = [_row(point, backend) for point in points]
    notes = (
        f"time: median over {counted(len(points[0].times_us), 'iteration')} of the slowest rank, as in nccl-tests; "
        "shortest: of the fastest rank, as transfers in traces are defined",
    ) * (len(points[0].times_us) > 1)
    choices = [chosen.get((point.collective, point.size_bytes)) for point in points]
    if known := [one for one in choices if one is not None]:
        headings += ["NCCL chose", "ring [µs]", "formula [µs]"]
        rows = [(*row, *_choice_cells(one)) for row, one in zip(rows, choices, strict=True)]
        ring = sum(one.size_bytes for one in known if one.algorithm == "ring")
        notes += (
            f"ring: the ring formula; formula: that of the algorithm that ran; "
            f"{ring_share(ring, sum(one.size_bytes for one in known))} of one call at each size",
        )
    return TextTable(f"{points[0].collective} on {_devices(points[0])} devices", tuple(headings), tuple(rows), notes)


def _choice_cells(one: ChoiceRow | None) -> tuple[str, str, str]:
    if one is None:
        return (NA, NA, NA)
    times = (NA if us is None else _time(us) for us in (one.ring_us, one.formula_us))
    return (one.choice, *times)  # type: ignore[return-value]


def _row(point: CalibrationPoint, backend: str | None) -> tuple[str, ...]:
    time_us = float(np.median(point.times_us))
    algbw_gb_per_s = point.size_bytes / time_us / 1e3
    factor = bus_factor(moved_as(point.collective, backend), point.devices)
    busbw = NA if factor is None else _rate(algbw_gb_per_s * factor)
    shortest = _time(float(np.median(point.shortest_us))) if point.shortest_us else NA
    rates = _rate(algbw_gb_per_s), busbw
    return (str(point.size_bytes), str(point.count), point.dtype, _time(time_us), *rates, shortest)


def _rate(gb_per_s: float) -> str:
    """Two decimals, as in nccl-tests, or two significant digits for a small rate."""
    return f"{gb_per_s:.2f}" if gb_per_s >= 0.1 else f"{gb_per_s:.2g}"


def _time(time_us: float) -> str:
    """Four digits, as in nccl-tests."""
    return f"{time_us:.2f}" if time_us < 100 else f"{time_us:.1f}" if time_us < 1e4 else f"{time_us:.0f}"


def _fits_table(fits: tuple[CollectiveFit, ...], backend: str | None) -> TextTable:
    return TextTable(
        title="Fit t = alpha + S/B, in as many pieces as the sizes support",
        headings=(
            "collective", "devices", "from", "to", "alpha [µs]", "95% interval", "B [GB/s]", "95% interval",
            "busbw [GB/s]",
        ),
        rows=tuple(_piece_row(fit, piece, backend) for fit in fits for piece in fit.pieces),
        notes=(
            "alpha: the latency in a fit's first piece; in other pieces the line's value at size 0",
            f"intervals: bootstrap over {' and '.join(sorted({fit.interval_source for fit in fits}))}, with fixed breakpoints",
        ),
    )  # fmt: skip


def _piece_row(fit: CollectiveFit, piece: FitPiece, backend: str | None) -> tuple[str, ...]:
    factor = bus_factor(moved_as(fit.collective, backend), fit.devices)
    bandwidth = piece.bandwidth_gb_per_s
    return (
        fit.collective,
        _devices(fit),
        show_bytes(piece.from_bytes) if piece.from_bytes else "0",
        "and up" if piece.to_bytes is None else show_bytes(piece.to_bytes),
        f"{piece.alpha_us:.1f}",
        f"{piece.alpha_low_us:.1f} to {piece.alpha_high_us:.1f}",
        _gb_per_s(bandwidth),
        f"{_gb_per_s(piece.bandwidth_low_gb_per_s)} to {_gb_per_s(piece.bandwidth_high_gb_per_s)}",
        _gb_per_s(None if bandwidth is None or factor is None else bandwidth * factor),
    )


def _errors_table(fits: tuple[CollectiveFit, ...]) -> TextTable:
    return TextTable(
        title="Errors of the fits",
        headings=("collective", "devices", "sizes", "median [%]", "largest [%]", "of prediction [%]"),
        rows=tuple(
            (
                fit.collective,
                _devices(fit),
                str(fit.sizes),
                *(
                    NA if error is None else f"{100 * error:.1f}"
                    for error in (fit.median_relative_error, fit.largest_relative_error, fit.prediction_relative_error)
                ),
            )
            for fit in fits
        ),
        notes=(
            "median, largest: relative errors of the fit at its own sizes",
            "of prediction: 90% of measurements are within it when each size is predicted from the others",
        ),
    )


def _gb_per_s(value: float | None) -> str:
    """A bandwidth, which is unbounded if the time does not depend on the size."""
    return "unbounded" if value is None else f"{value:.3g}"
