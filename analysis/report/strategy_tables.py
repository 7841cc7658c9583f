"""Tables of strategies against each other and of several devices against one."""

from collections.abc import Iterator
from types import SimpleNamespace

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, predicted_speedup
from dpscope.analysis.text.text_table import (
    CELL,
    Field,
    TextTable,
    Unknown,
    estimate_fields,
    table_of,
)
from dpscope.analysis.text.units import Unit, show, show_share

_RATIO, _PLAIN_RATIO, _FRACTION = Unit("x", 1.0, 2), Unit("", 1.0, 2), Unit("", 1.0, 3)
_LAWS = {"amdahl": "Amdahl's law", "gustafson": "Gustafson's law", "usl": "USL"}
_COPIES = (
    "Copies from and to the host outside of compute and communication, DP minus DDP; "
    "dp-host: all its copying"
)
_GAP = (
    Field(
        "cells",
        lambda gap: gap.ddp.partition("-")[2],
        meaning="Devices and batch per device, equal on both sides, and DDP's variant",
    ),
    *estimate_fields(
        "ratio",
        _PLAIN_RATIO,
        "DP's median untraced step over DDP's: above 1, DDP is faster",
        ends=_FRACTION,
    ),
    Field("gap", "gap_us", "time", "DP's median untraced step minus DDP's"),
    Field("exposed comm.", "exposed_us", "time", "Exposed communication, DP minus DDP"),
    Field("host copies", "host_copies_us", "time", _COPIES),
    Field("compute", "compute_us", "time", "Compute, DP minus DDP"),
    Field("idle", "idle_us", "time", "Neither compute nor communication nor copies, DP minus DDP"),
    Field(
        "unexplained",
        "tracer_us",
        "time",
        "The part of the untraced gap that the traced steps do not explain",
    ),
)


def gap_table(comparison: Comparison) -> TextTable:
    """DP compared with DDP at equal devices and batch, a row for each measured pair."""
    label = comparison.gaps[0].dp_label if comparison.gaps else "DP"
    return table_of(
        f"{label} minus DDP, same devices and batch per device: the gap per step and its parts",
        _GAP,
        comparison.gaps,
        [f"ratio: {label}'s median untraced step over DDP's, with its 95% interval"],
    )


_COST = (
    CELL,
    Field("baseline", "against", meaning="The simpler strategy that it is compared with"),
    *estimate_fields("ratio", _FRACTION, "Its median untraced step over the baseline's"),
    Field("saved per device", "saved_bytes", "bytes", "Memory of the baseline minus its own"),
    Field(
        "of",
        "memory",
        meaning="Whether that is of the allocator's peak or of the state between steps",
    ),
)


def cost_table(comparison: Comparison) -> TextTable:
    """Strategies compared with a simpler one at equal devices and batch."""
    notes = (
        "ratio: the cell's median untraced step divided by the other's, with its 95% interval",
        "of peak: the allocator's peak during the timed steps; of state: parameters, buffers and optimizer state between steps",
    )
    title = "Strategies compared with a simpler one: same devices, same batch per device"
    return table_of(title, _COST, comparison.costs, notes)


_POINTS = (
    Field(
        "series",
        "series",
        meaning="Strategy, weak (same batch b per device) or strong (same global batch G)",
    ),
    Field("devices", "point.devices", meaning="Devices the step runs on"),
    *estimate_fields(
        "point.speedup", _RATIO, "Weak: N t_1(b) / t_N(b). Strong: t_1(G) / t_N(G/N)", _PLAIN_RATIO
    ),
    Field(
        "eff.", "point.efficiency.value", Unit("%", 0.01, 1), "Speedup over the number of devices"
    ),
    Field(
        "Karp-Flatt",
        "point.serial_fraction",
        _FRACTION,
        "The serial fraction that would explain this speedup",
    ),
)
_KARP_FLATT = (
    "low, high: 95% interval; Karp-Flatt: the serial fraction that would explain this speedup. "
    "If it grows with the number of devices, the loss is overhead such as communication, not serial code."
)
_FEW = "fewer than 5 timed steps or too few repeats, in this or the single-device cell"
_SLOWER = "slower than one device, which no serial fraction explains"


def scaling_table(comparison: Comparison) -> TextTable:
    """A row for each cell compared with one device, with the laws fitted to each series."""
    rows = [
        SimpleNamespace(series=series.label, point=point)
        for series in comparison.scaling
        for point in series.points
    ]
    unknown = []
    for row in rows:
        if row.point.speedup.low is None:
            unknown.append(Unknown(_FEW, "low, high", row.point.cell))
        if row.point.serial_fraction is None:
            unknown.append(Unknown(_SLOWER, "Karp-Flatt", row.point.cell))
    laws = (note for series in comparison.scaling for note in _law_notes(series))
    return table_of(
        "Scaling: speedup over one device", _POINTS, rows, [_KARP_FLATT, *laws], unknown
    )


def _law_notes(series: ScalingSeries) -> Iterator[str]:
    """The law of a series of at least two device counts, and what it predicts for twice as many."""
    fit = series.fit
    if fit is None or fit.law == "karp_flatt":
        return
    if fit.worst_relative_error is None:
        yield f"{series.label}: {_LAWS[fit.law]}: {fit.note}"
        return
    farthest = FARTHEST_FACTOR * fit.largest_devices
    prediction = predicted_speedup(fit, farthest)
    parameters = ", ".join(
        f"{name.replace('_', ' ')} {_shown(value, _FRACTION)}"
        for name, value in fit.parameters.items()
    )
    speedup = _shown(prediction.speedup, _RATIO)
    yield (
        f"{series.label}: {_LAWS[fit.law]}, {parameters}; speedup on {farthest}: {speedup}; "
        f"at most {show_share(fit.worst_relative_error)} from a measured speedup"
    )
    for note in dict.fromkeys((fit.note, prediction.note)):
        if note:
            yield f"{series.label}: {note}"


def _shown(estimate: Estimate, unit: Unit) -> str:
    """Such as ``0.122 (0.101 to 0.143)``."""
    value, low, high = (show(end, unit) for end in (estimate.value, estimate.low, estimate.high))
    return value if estimate.low is None else f"{value} ({low} to {high})"
