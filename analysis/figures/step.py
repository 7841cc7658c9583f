"""A step's time as figures: its ledger as bars, its phases, communication next to the shortcuts' estimates, DP next to DDP."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.columns import BY_NAME, INTERVAL
from dpscope.analysis.cells.comparison import Comparison, StrategyGap, WaterfallPart, gap_parts
from dpscope.analysis.cells.row import CellRow, minus
from dpscope.analysis.figures.style import COLOURS, NARROW, new_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate, median_estimate
from dpscope.analysis.text.units import Unit, choose_unit, show_time

_PHASES = {  # column of the breakdown -> label and colour
    "host_to_device_us": ("transfer to device", COLOURS["host_to_device"]),
    "forward_us": ("forward", COLOURS["forward"]),
    "backward_us": ("backward", COLOURS["backward"]),
    "exposed_us": ("exposed communication", COLOURS["exposed"]),
    "optimizer_us": ("optimizer", COLOURS["optimizer"]),
}


_PARTS = {  # column of the ledger -> label and colour; they add up to the traced step
    "compute_us": ("compute", COLOURS["compute"]),
    "exposed_wait_us": ("exposed wait", COLOURS["wait"]),
    "exposed_transfer_us": ("exposed transfer", COLOURS["transfer"]),
    "exposed_other_us": ("exposed other", COLOURS["exposed"]),
    "idle_us": ("idle", COLOURS["idle"]),
}


def step_split(run: RunData, comparison: Comparison) -> Figure | None:
    """The traced step of each cell in the parts of its ledger; a part that no cell has is omitted."""
    rows = [row for row in comparison.rows.values() if None not in (row.compute_us, row.traced_step_us, row.idle_us)]
    if not rows:
        return None
    unit = choose_unit("time", [row.traced_step_us for row in rows])
    labels = [f"{row.cell} (comm. unknown)" if row.exposed_us is None and row.devices > 1 else row.cell for row in rows]
    figure, (axes,) = new_figure(len(rows), width=NARROW)
    values = {name: [(row.number(name) or 0.0) / unit.divisor for row in rows] for name in _PARTS}
    parts = {_PARTS[name][0]: (column, _PARTS[name][1]) for name, column in values.items() if any(column)}
    _stacked(axes, labels, parts, unit.label)
    axes.set_title(f"Where a traced step goes{host_note(run)}", loc="left")
    return figure


_USE = {  # column -> label and colour; they add up to 100
    "used_points": ("computing at the peak", COLOURS["compute"]),
    "lost_below_peak_points": ("compute below the peak", COLOURS["forward"]),
    "lost_contention_points": ("contention", COLOURS["hidden"]),
    "lost_wait_points": ("exposed wait", COLOURS["wait"]),
    "lost_transfer_points": ("exposed transfer", COLOURS["transfer"]),
    "lost_other_points": ("exposed other", COLOURS["exposed"]),
    "lost_idle_points": ("idle", COLOURS["idle"]),
}


def device_use(run: RunData, comparison: Comparison) -> Figure | None:
    """The share of the peak that each cell uses, and the loss from 100% in the parts of the ledger; None without a known peak."""
    rows = [row for row in comparison.rows.values() if row.used_points is not None]
    if not rows:
        return None
    figure, (axes,) = new_figure(len(rows))
    values = {name: [row.number(name) or 0.0 for row in rows] for name in _USE}
    parts = {_USE[name][0]: (column, _USE[name][1]) for name, column in values.items() if any(column)}
    _stacked(axes, [row.cell for row in rows], parts, "")
    axes.set_xlabel("points of the peak in a traced step [%]")
    peak = "the measured CPU matmul peak" if run.device_type == "cpu" else "the device's specified peak"
    axes.set_title(f"How much of {peak} is used", loc="left")
    return figure


def phase_split(run: RunData, comparison: Comparison) -> Figure | None:
    """Transfer to the device, forward, backward, exposed communication, optimizer, in the tables' order."""
    rows = {}
    for data in run.measured:
        windows = data.critical_windows
        if windows.empty or windows["forward_us"].isna().all():
            continue
        if data.cell.devices > 1 and not data.communication_known:
            continue
        means = windows[list(_PHASES)].mean()
        rows[data.cell.name] = [float(value) if pd.notna(value) else 0.0 for value in means]
    if not rows:
        return None
    unit = choose_unit("time", [sum(values) for values in rows.values()])
    figure, (axes,) = new_figure(len(rows))
    parts = {
        name: ([values[index] / unit.divisor for values in rows.values()], colour)
        for index, (name, colour) in enumerate(_PHASES.values())
    }
    _stacked(axes, list(rows), parts, unit.label)
    axes.set_title("Phases of a traced step, 1 against N devices", loc="left")
    return figure


def host_note(run: RunData) -> str:
    """For titles: dp-host communicates by copies on the host."""
    return " (dp-host: host copies)" if any(data.cell.traits.host_copies for data in run.measured) else ""


def _stacked(axes: Axes, labels: list[str], parts: dict[str, tuple[list[float], str]], unit: str) -> None:
    left = [0.0] * len(labels)
    for name, (values, colour) in parts.items():
        axes.barh(labels, values, left=left, label=name, color=colour, height=0.7)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit}]")
    axes.figure.legend(loc="outside lower center", ncols=min(len(parts), 3))


_MEASURED = {  # label -> column and colour, stacked in this order
    "hidden behind compute": ("hidden_us", COLOURS["hidden"]),
    "exposed transfer": ("exposed_transfer_us", COLOURS["transfer"]),
    "exposed wait": ("exposed_wait_us", COLOURS["wait"]),
    "exposed other": ("exposed_other_us", COLOURS["exposed"]),
}
_SHORTCUTS = {
    "subtraction $T_N(b) - T_1(b)$": ("same_local_batch_us", COLOURS["same_local_batch"]),
    "ring formula": ("ring_us", COLOURS["ring"]),
}
_BAR = 0.27  # of the space between cells


def measured_and_estimated(run: RunData, comparison: Comparison) -> Figure | None:
    """Three bars for each cell on several devices: measured, stacked; the subtraction with its interval; the ring formula.

    None if no cell has measured communication.
    """
    rows = [row for row in comparison.rows.values() if row.communication_us is not None]
    if not rows:
        return None
    unit = choose_unit("time", [row.communication_us for row in rows])
    shortcuts = {name: spec for name, spec in _SHORTCUTS.items() if any(row.value(spec[0]) is not None for row in rows)}
    figure, (axes,) = new_figure(len(rows) * (1 + len(shortcuts)), width=NARROW, row_height=0.24)
    places = [float(place) for place in range(len(rows))]
    first = [place - _BAR * len(shortcuts) / 2 for place in places]
    _stack(axes, first, rows, unit.divisor)
    for index, (name, (column, colour)) in enumerate(shortcuts.items(), start=1):
        offsets = [place + _BAR * index for place in first]
        axes.barh(
            offsets, _values(rows, column, unit.divisor), height=_BAR * 0.9, color=colour, label=name,
            xerr=_interval(rows, column, unit.divisor), error_kw={"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2},
        )  # fmt: skip
    axes.set_yticks(places, [row.cell for row in rows])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: 95% interval of the subtraction")
    axes.set_title(f"Communication per step{host_note(run)}", loc="left")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _stack(axes: Axes, places: Sequence[float], rows: Sequence[CellRow], divisor: float) -> None:
    """The measured parts of each cell, stacked; a part that no cell has is omitted."""
    left = [0.0] * len(rows)
    for name, (column, colour) in _MEASURED.items():
        values = [value if value == value else 0.0 for value in _values(rows, column, divisor)]
        if any(values):
            axes.barh(places, values, left=left, height=_BAR * 0.9, color=colour, label=f"measured: {name}")
            left = [start + value for start, value in zip(left, values, strict=True)]


def _values(rows: Sequence[CellRow], column: str, divisor: float) -> list[float]:
    values = (row.number(column) for row in rows)
    return [float("nan") if value is None else value / divisor for value in values]


def _interval(rows: Sequence[CellRow], column: str, divisor: float) -> list[list[float]] | None:
    low, high = INTERVAL.of(column)
    if low not in BY_NAME:
        return None
    sides = [
        [(minus(row.number(more), row.number(less)) or 0.0) for row in rows]
        for more, less in ((column, low), (high, column))
    ]
    return [[max(0.0, value) / divisor for value in side] for side in sides]


MOST_GAPS = 3


def waterfall(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each of the first MOST_GAPS gaps with known parts, the largest device counts and batches first."""
    ordered = sorted(comparison.gaps, key=lambda gap: (gap.devices, gap.batch_size), reverse=True)
    known = [(gap, parts) for gap in ordered if (parts := gap_parts(run, comparison, gap))][:MOST_GAPS]
    if not known:
        return None
    rows = [len(parts) + 2 for _, parts in known]
    figure = Figure(figsize=(7.5, 0.9 * len(known) + 0.27 * sum(rows)), layout="constrained")
    panels = figure.subplots(len(known), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (gap, parts) in zip(panels, known, strict=True):
        _gap_panel(axes, run, gap, parts)
    return figure


def _gap_panel(axes: Axes, run: RunData, gap: StrategyGap, parts: Sequence[WaterfallPart]) -> None:
    spread = run.spreads.step
    dp, ddp = (median_estimate(run.cells[name].step_samples(), spread) for name in (gap.dp, gap.ddp))
    unit = choose_unit("time", [dp.value, ddp.value])
    labels = [gap.ddp, *(part.label for part in parts), gap.dp]
    _whole(axes, 0, ddp, unit)
    at = (ddp.value or 0.0) / unit.divisor
    for index, part in enumerate(parts, 1):
        change = part.gap_us / unit.divisor
        hatch = None if gap.explained else "///"
        axes.barh(
            index,
            change,
            left=at,
            color=COLOURS[part.key],
            height=0.7,
            hatch=hatch,
            alpha=1.0 if gap.explained else 0.5,
        )
        end = max(at, at + change)
        axes.annotate(
            f"{'+' if change >= 0 else '−'}{show_time(abs(part.gap_us))}", (end, index), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
        axes.plot([at + change] * 2, [index - 0.35, index + 1.35], color="#777777", linewidth=0.7)
        at += change
    _whole(axes, len(parts) + 1, dp, unit)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: 95% interval of the median untraced step")
    axes.set_title(_title(gap), loc="left")


def _title(gap: StrategyGap) -> str:
    title = f"From DDP's step to {gap.dp_label}'s: {gap.devices} devices, batch {gap.batch_size}"
    return (
        title
        if gap.explained
        else f"{title}\nTracing changed the timing too much for\nthe hatched parts to explain the gap"
    )


def _whole(axes: Axes, row: int, step: Estimate, unit: Unit) -> None:
    value = (step.value or 0.0) / unit.divisor
    spread = None
    if step.low is not None and step.high is not None:
        spread = [[value - step.low / unit.divisor], [step.high / unit.divisor - value]]
    axes.barh(
        row, value, color=COLOURS["whole"], height=0.7, xerr=spread,
        error_kw={"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2},
    )  # fmt: skip
