"""The output of a calibration: nccl-tests' tables, fits, figure, and the file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dpscope.analysis.costs.calibration_files import calibration_path
from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.formulas import bus_factor, moved_as
from dpscope.analysis.costs.nccl_choices import ChoiceRow
from dpscope.analysis.costs.sources import contention_ratios
from dpscope.analysis.report.nccl_tables import calibration_chapter, ring_share
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, Unit, show_bytes
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
        *([_fits_table(slowest, backend), _errors_table(slowest)] if calibration.fits else []),
        table_of(
            "Contention: how many times as long",
            _CONTENTION,
            _contention_rows(calibration.contention),
            ["predictions of buckets that overlap use them; computing is matrix products on every rank"],
        ),
        table_of("Left out", _LEFT_OUT, calibration.left_out),
    ]
    return [table for table in tables if table.rows]


_COLLECTIVE = Field("collective", "collective")
_LEFT_OUT = (
    _COLLECTIVE,
    Field("devices", "devices"),
    Field("size [B]", lambda one: "all" if one.size_bytes is None else one.size_bytes),
    Field("why", "reason"),
)
_CONTENTION = (
    *(Field(name, name) for name in ("collective", "devices", "size", "what")),
    Field("ratio", "value", Unit("", 1.0, 2)),
    Field("95% interval", lambda row: f"{row['low']:.2f} to {row['high']:.2f}"),
    Field("iterations", "count"),
)


def _devices(timed: CalibrationPoint | CollectiveFit | Contention) -> str:
    """Such as ``16``, or ``2x8`` over several nodes."""
    return str(timed.devices) if timed.nodes in (None, 1) else str(Layout(timed.nodes, timed.devices // timed.nodes))


def _contention_rows(timed: Sequence[Contention]) -> Iterator[dict[str, object]]:
    """How much collectives and computing slow each other, with 95% intervals."""
    for one in timed:
        ratios = contention_ratios(one)
        place = {"collective": one.collective, "devices": _devices(one), "size": show_bytes(one.size_bytes)}
        for what, slowdown in (
            ("two in flight over one", ratios.two_in_flight),
            ("collective next to compute over alone", ratios.beside_compute),
            ("compute next to collective over alone", ratios.compute),
        ):
            yield {
                **place,
                "what": what,
                **{name: getattr(slowdown, name) for name in ("value", "low", "high", "count")},
            }


def _samples_table(
    points: list[CalibrationPoint], backend: str | None, chosen: Mapping[tuple[str, int], ChoiceRow]
) -> TextTable:
    """nccl-tests' columns and, if recorded, NCCL's choice at each size with its formula and the ring formula."""
    first = points[0]
    choices = {point.size_bytes: chosen.get((point.collective, point.size_bytes)) for point in points}
    known = [one for one in choices.values() if one is not None]
    factor = bus_factor(moved_as(first.collective, backend), first.devices)

    def algbw(point: CalibrationPoint, times: float | None = 1.0) -> str:
        return NA if times is None else _rate(point.size_bytes / float(median(point.times_us)) / 1e3 * times)

    def choice(name: str, point: CalibrationPoint) -> Any:
        one = choices[point.size_bytes]
        return None if one is None else getattr(one, name)

    fields = (
        Field("size [B]", "size_bytes"),
        Field("count [elements]", "count"),
        Field("type", "dtype"),
        Field("time [µs]", lambda point: _time(median(point.times_us))),
        Field("algbw [GB/s]", algbw),
        Field("busbw [GB/s]", lambda point: algbw(point, factor)),
        Field("shortest [µs]", lambda point: _time(median(point.shortest_us) if point.shortest_us else None)),
        Field("NCCL chose", lambda point: choice("choice", point)),
        Field("ring [µs]", lambda point: _time(choice("ring_us", point))),
        Field("formula [µs]", lambda point: _time(choice("formula_us", point))),
    )
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
    shown = fields if known else fields[:-3]
    return table_of(f"{first.collective} on {_devices(first)} devices", shown, points, notes)


def _rate(gb_per_s: float) -> str:
    """Two decimals, as in nccl-tests, or two significant digits for a small rate."""
    return f"{gb_per_s:.2f}" if gb_per_s >= 0.1 else f"{gb_per_s:.2g}"


def _time(time_us: float | None) -> str:
    """Four digits, as in nccl-tests."""
    if time_us is None:
        return NA
    return f"{time_us:.2f}" if time_us < 100 else f"{time_us:.1f}" if time_us < 1e4 else f"{time_us:.0f}"


def _fits_table(fits: Sequence[CollectiveFit], backend: str | None) -> TextTable:
    rows = []
    for fit in fits:
        factor = bus_factor(moved_as(fit.collective, backend), fit.devices)
        for piece in fit.pieces:
            rate = piece.bandwidth_gb_per_s
            low, high = _gb_per_s(piece.bandwidth_low_gb_per_s), _gb_per_s(piece.bandwidth_high_gb_per_s)
            rows.append(
                (
                    fit.collective,
                    _devices(fit),
                    show_bytes(piece.from_bytes) if piece.from_bytes else "0",
                    "and up" if piece.to_bytes is None else show_bytes(piece.to_bytes),
                    f"{piece.alpha_us:.1f}",
                    f"{piece.alpha_low_us:.1f} to {piece.alpha_high_us:.1f}",
                    _gb_per_s(rate),
                    f"{low} to {high}",
                    _gb_per_s(None if rate is None or factor is None else rate * factor),
                )
            )
    return TextTable(
        title="Fit t = alpha + S/B, in as many pieces as the sizes support",
        headings=(
            "collective", "devices", "from", "to", "alpha [µs]", "95% interval", "B [GB/s]", "95% interval",
            "busbw [GB/s]",
        ),
        rows=tuple(rows),
        notes=(
            "alpha: the latency in a fit's first piece; in other pieces the line's value at size 0",
            f"intervals: bootstrap over {' and '.join(sorted({fit.interval_source for fit in fits}))}, with fixed breakpoints",
        ),
    )  # fmt: skip


_ERRORS = (
    _COLLECTIVE,
    Field("devices", _devices),
    Field("sizes", "sizes"),
    Field("median", "median_relative_error", "share"),
    Field("largest", "largest_relative_error", "share"),
    Field("of prediction", "prediction_relative_error", "share"),
)


def _errors_table(fits: Sequence[CollectiveFit]) -> TextTable:
    return table_of(
        "Errors of the fits",
        _ERRORS,
        fits,
        [
            "median, largest: relative errors of the fit at its own sizes",
            "of prediction: 90% of measurements are within it when each size is predicted from the others",
        ],
    )


def _gb_per_s(value: float | None) -> str:
    """A bandwidth, which is unbounded if the time does not depend on the size."""
    return "unbounded" if value is None else f"{value:.3g}"
