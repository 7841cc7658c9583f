"""A step's time as figures: its ledger, its phases, communication next to the shortcuts' estimates,
DP next to DDP, and waits.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison, StrategyGap, WaterfallPart, gap_parts
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.view import INTERVAL, REGISTERED
from dpscope.analysis.figures import style
from dpscope.analysis.figures.style import COLOURS, NARROW, WIDTH, new_figure, whiskers
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate, median_estimate
from dpscope.analysis.text.units import Unit, choose_unit, show, show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS

if TYPE_CHECKING:
    import pandas as pd

_Parts = Mapping[str, tuple[Sequence[float], str]]  # by label: a value for each bar, and the colour
_EXPOSED = {
    "exposed_wait_us": ("exposed wait", COLOURS["wait"]),
    "exposed_transfer_us": ("exposed transfer", COLOURS["transfer"]),
    "exposed_other_us": ("exposed other", COLOURS["exposed"]),
}
_LEDGER = {  # column -> label and colour; they add up to the traced step
    "compute_us": ("compute", COLOURS["compute"]),
    **_EXPOSED,
    "idle_us": ("idle", COLOURS["idle"]),
}
_PHASES = {
    "host_to_device_us": ("transfer to device", COLOURS["host_to_device"]),
    "forward_us": ("forward", COLOURS["forward"]),
    "backward_us": ("backward", COLOURS["backward"]),
    "exposed_us": ("exposed communication", COLOURS["exposed"]),
    "optimizer_us": ("optimizer", COLOURS["optimizer"]),
}
_USE = {  # they add up to 100
    "used_points": ("computing at the peak", COLOURS["compute"]),
    "lost_below_peak_points": ("compute below the peak", COLOURS["forward"]),
    "lost_contention_points": ("contention", COLOURS["hidden"]),
    "lost_wait_points": ("exposed wait", COLOURS["wait"]),
    "lost_transfer_points": ("exposed transfer", COLOURS["transfer"]),
    "lost_other_points": ("exposed other", COLOURS["exposed"]),
    "lost_idle_points": ("idle", COLOURS["idle"]),
}
_MEASURED = {
    "hidden_us": ("hidden behind compute", COLOURS["hidden"]),
    **{
        name: _EXPOSED[name]
        for name in ("exposed_transfer_us", "exposed_wait_us", "exposed_other_us")
    },
}
_SHORTCUTS = {
    "same_local_batch_us": ("subtraction $T_N(b) - T_1(b)$", COLOURS["same_local_batch"]),
    "ring_us": ("ring formula", COLOURS["ring"]),
}
_BAR = 0.27  # of the space between cells
_WHISKER = {"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2}


def step_split(run: RunData, comparison: Comparison) -> Figure | None:
    """The traced step of each cell in the parts of its ledger; a part that no cell has is
    omitted.
    """
    rows = [
        row
        for row in comparison.rows.values()
        if None not in (row.compute_us, row.traced_step_us, row.idle_us)
    ]
    unit = choose_unit("time", [row.traced_step_us for row in rows])
    labels = [
        f"{row.cell} (comm. unknown)" if row.exposed_us is None and row.devices > 1 else row.cell
        for row in rows
    ]
    parts, title = (
        _of_rows(_LEDGER, rows, unit.divisor),
        f"Where a traced step goes{_host_note(run)}",
    )
    return _stacked(title, labels, parts, f"time per step [{unit.label}]", NARROW)


def device_use(run: RunData, comparison: Comparison) -> Figure | None:
    """The share of the peak that each cell uses, and the loss from 100% in the parts of the ledger;
    None without a known peak.
    """
    rows = [row for row in comparison.rows.values() if row.used_points is not None]
    peak = (
        "the measured CPU matmul peak"
        if run.device_type == "cpu"
        else "the device's specified peak"
    )
    parts, label = _of_rows(_USE, rows), "points of the peak in a traced step [%]"
    return _stacked(f"How much of {peak} is used", [row.cell for row in rows], parts, label)


def phase_split(run: RunData) -> Figure | None:
    """Transfer to the device, forward, backward, exposed communication, optimizer, in the tables'
    order.
    """
    means = {}
    for data in run.measured:
        windows = data.critical_windows
        known = data.devices == 1 or data.communication_known
        if known and windows.known("forward_us").any():
            means[data.name] = {name: windows.mean(name) or 0.0 for name in _PHASES}
    unit = choose_unit("time", [sum(row.values()) for row in means.values()])
    parts = {
        label: ([row[name] / unit.divisor for row in means.values()], colour)
        for name, (label, colour) in _PHASES.items()
        if any(row[name] for row in means.values())
    }
    title = "Phases of a traced step, 1 against N devices"
    return _stacked(title, list(means), parts, f"time per step [{unit.label}]")


def _host_note(run: RunData) -> str:
    """For titles: dp-host communicates by copies on the host."""
    return (
        " (dp-host: host copies)" if any(data.traits.host_copies for data in run.measured) else ""
    )


def _of_rows(
    columns: Mapping[str, tuple[str, str]], rows: Sequence[CellRow], divisor: float = 1.0
) -> _Parts:
    """The columns that have a value in any row."""
    values = {name: [(row.number(name) or 0.0) / divisor for row in rows] for name in columns}
    return {
        columns[name][0]: (column, columns[name][1])
        for name, column in values.items()
        if any(column)
    }


def _stacked(
    title: str, labels: list[str], parts: _Parts, x_label: str, width: float = WIDTH
) -> Figure | None:
    if not labels or not any(any(values) for values, _ in parts.values()):
        return None
    figure, (axes,) = new_figure(len(labels), width)
    style.bar_rows(axes, labels, parts)
    axes.set_xlim(left=0)
    style.downwards(axes, x_label)
    style.headline(figure, title)
    figure.legend(loc="outside lower center", ncols=min(len(parts), 3))
    return figure


def measured_and_estimated(run: RunData, comparison: Comparison) -> Figure | None:
    """Three bars for each cell on several devices: measured, stacked; the subtraction with its
    interval; the ring formula.

    None if no cell has measured communication.
    """
    rows = [row for row in comparison.rows.values() if row.communication_us is not None]
    if not rows:
        return None
    unit = choose_unit("time", [row.communication_us for row in rows])
    shortcuts = {
        name: one
        for name, one in _SHORTCUTS.items()
        if any(row.value(name) is not None for row in rows)
    }
    figure, (axes,) = new_figure(len(rows) * (1 + len(shortcuts)), width=NARROW, row_height=0.24)
    places = np.arange(len(rows), dtype=float)
    first = places - _BAR * len(shortcuts) / 2
    parts = _of_rows(_MEASURED, rows, unit.divisor)
    if not parts and not shortcuts:
        return None
    style.bar_rows(
        axes, first.tolist(), {f"measured: {name}": one for name, one in parts.items()}, _BAR * 0.9
    )
    for index, (column, (label, colour)) in enumerate(shortcuts.items(), start=1):
        # a column without an interval is drawn without whiskers
        ends = [name if name in REGISTERED else None for name in INTERVAL.of(column)]
        values, low, high = (
            [row.number(name) if name else None for row in rows] for name in (column, *ends)
        )
        spread = whiskers(values, low, high) / unit.divisor if None not in ends else None
        axes.barh(
            first + _BAR * index, np.array(values, dtype=float) / unit.divisor, height=_BAR * 0.9, color=colour,
            label=label, xerr=spread, error_kw=_WHISKER,
        )  # fmt: skip
    axes.set_yticks(places, [row.cell for row in rows])
    axes.axvline(0, color="black", linewidth=0.8)
    has_whiskers = any(row.interval("same_local_batch_us") is not None for row in rows)
    whisker_note = "; whiskers: 95% interval of the subtraction" if has_whiskers else ""
    style.downwards(axes, f"time per step [{unit.label}]{whisker_note}")
    style.headline(figure, f"Communication per step{_host_note(run)}")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


MOST_GAPS = 3


def waterfall(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each of the first MOST_GAPS gaps with known parts, the largest device counts and
    batches first.
    """
    ordered = sorted(comparison.gaps, key=lambda gap: (gap.devices, gap.batch_size), reverse=True)
    known = [(gap, parts) for gap in ordered if (parts := gap_parts(run, comparison, gap))][
        :MOST_GAPS
    ]
    if not known:
        return None
    rows = [len(parts) + 2 for _, parts in known]
    figure = Figure(figsize=(7.5, 0.9 * len(known) + 0.27 * sum(rows)), layout="constrained")
    panels = figure.subplots(len(known), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (gap, parts) in zip(panels, known, strict=True):
        _gap_panel(axes, run, gap, parts)
    return figure


def _gap_panel(axes: Axes, run: RunData, gap: StrategyGap, parts: Sequence[WaterfallPart]) -> None:
    dp, ddp = (
        median_estimate(run.cells[name].step_samples(), run.spreads.step)
        for name in (gap.dp, gap.ddp)
    )
    unit = choose_unit("time", [dp.value, ddp.value])
    labels = [gap.ddp, *(part.label for part in parts), gap.dp]
    _whole(axes, 0, ddp, unit)
    at = (ddp.value or 0.0) / unit.divisor
    hatch, alpha = (None, 1.0) if gap.explained else ("///", 0.5)
    for index, part in enumerate(parts, 1):
        change = part.gap_us / unit.divisor
        axes.barh(
            index, change, left=at, color=COLOURS[part.key], height=0.7, hatch=hatch, alpha=alpha
        )
        axes.annotate(
            f"{'+' if change >= 0 else '−'}{show_time(abs(part.gap_us))}", (max(at, at + change), index), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
        at += change
        axes.plot([at] * 2, [index - 0.35, index + 1.35], color="#777777", linewidth=0.7)
    _whole(axes, len(parts) + 1, dp, unit)
    axes.set_yticks(range(len(labels)), labels)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    has_whiskers = None not in (dp.low, ddp.low)
    whisker_note = "; whiskers: 95% interval of the median untraced step" if has_whiskers else ""
    style.downwards(axes, f"time per step [{unit.label}]{whisker_note}")
    axes.set_title(_title(gap), loc="left")


def _title(gap: StrategyGap) -> str:
    title = f"From DDP's step to {gap.dp_label}'s: {gap.devices} devices, batch {gap.batch_size}"
    lost = "\nTracing changed the timing too much for\nthe hatched parts to explain the gap"
    return title if gap.explained else title + lost


def _whole(axes: Axes, row: int, step: Estimate, unit: Unit) -> None:
    value = step.value or 0.0
    spread = (
        None
        if None in (step.low, step.high)
        else whiskers([value], [step.low], [step.high]) / unit.divisor
    )
    axes.barh(
        row,
        value / unit.divisor,
        color=COLOURS["whole"],
        height=0.7,
        xerr=spread,
        error_kw=_WHISKER,
    )


MOST_WAIT_PANELS = 4
MOST_WAIT_RANKS = 32  # more are shown by `wait_strip`
_NOT_KNOWN = "#bbbbbb"
# with more ranks, neighbours share a row, which shows the longest of their times
MOST_STRIP_ROWS = 256
_MOST_NUMBERS = 8  # ranks up to which the values are written into the matrix
_SMALL = 4  # ranks up to which two matrices fit side by side


def waits(run: RunData) -> Figure | None:
    """A panel for each cell, the longest waits first: row waits for column, mean exposed wait per
    step. None without.

    Cells of more than MOST_WAIT_RANKS ranks have a `wait_strip` instead.
    """
    matrices = {}
    for data in (one for one in run.measured if one.processes <= MOST_WAIT_RANKS):
        pairs = data.mean_waits
        pairs = pairs.take(pairs["exposed_wait_us"] > 0)
        if len(pairs):
            matrix = np.zeros((data.processes, data.processes))
            matrix[pairs["waiting_rank"], pairs["late_rank"]] = pairs["exposed_wait_us"]
            matrices[data.name] = matrix
    if not matrices:
        return None
    shown = sorted(matrices.items(), key=lambda item: -float(item[1].max()))[:MOST_WAIT_PANELS]
    unit = choose_unit("time", [float(matrix.max()) for _, matrix in shown])
    columns, height = (2, 2.6) if max(len(matrix) for _, matrix in shown) <= _SMALL else (1, 5.0)
    figure, panels = style.panel_grid(len(shown), columns, WIDTH, height)
    highest = max(float(matrix.max()) for _, matrix in shown) / unit.divisor
    for axes, (cell, matrix) in zip(panels, shown, strict=True):
        _matrix_panel(axes, cell, matrix, unit, highest)
    style.headline(
        figure, f"Exposed waiting per step [{unit.label}]: the row's rank for the column's"
    )
    return figure


def _matrix_panel(axes: Axes, cell: str, matrix: np.ndarray, unit: Unit, highest: float) -> None:
    values, ranks = matrix / unit.divisor, np.arange(len(matrix))
    shown = np.ma.masked_less_equal(values, 0.0)
    axes.pcolormesh(ranks, ranks, shown, shading="nearest", cmap="Blues", vmin=0.0, vmax=highest)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title(cell, loc="left", fontsize=9)
    axes.set_xlabel("late rank")
    axes.set_ylabel("waiting rank")
    if len(ranks) > _MOST_NUMBERS:
        return
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.set_yticks(ranks, [str(rank) for rank in ranks])
    for row, column in np.argwhere(values > 0):
        colour = "#ffffff" if values[row, column] > 0.6 * highest else "#111111"
        number = show(float(matrix[row, column]), unit)
        axes.text(column, row, number, ha="center", va="center", color=colour, fontsize=8)


def wait_strip(run: RunData) -> Figure | None:
    """Two panels for each cell on more than MOST_WAIT_RANKS ranks whose waits are known; None
    without such a cell.
    """
    many = [data for data in run.measured if data.processes > MOST_WAIT_RANKS]
    cells = [data for data in many if (data.whole_windows["exposed_wait_us"] > 0).any()][
        :MOST_WAIT_PANELS
    ]
    if not cells:
        return None
    figure = Figure(figsize=(7.5, 3.2 * len(cells)), layout="constrained")
    for data, panels in zip(cells, figure.subplots(len(cells), 2, squeeze=False), strict=True):
        for axes, (title, strip) in zip(panels, wait_strips(data).items(), strict=True):
            _strip_panel(figure, axes, f"{data.name}: {title}", strip)
    return figure


def wait_strips(data: Job) -> "dict[str, pd.DataFrame]":
    """Exposed waits by rank (row, its first where several share one) and (repeat, whole step),
    microseconds; NaN: not known.

    "waits": how long the rank waits. "is waited for": how long the others wait for it on average, 0
    where they do not.
    """
    import pandas as pd

    windows, parts = data.whole_windows, data.tables.exposed_parts
    steps = windows.take(
        windows.known("rank") & windows.known("step") & windows.known("exposed_wait_us")
    )
    waits = parts.take(parts.words("part").isin("wait")).within(steps, STEP_KEYS)
    caused = waits.group("late_rank", "repeat", "step")
    late = waits.take(caused.first)
    others_us = caused.sums(waits["time_us"]) / (data.processes - 1)
    late = late.assign(rank=late["late_rank"], exposed_wait_us=others_us)
    together = -(-data.processes // MOST_STRIP_ROWS)
    rows = np.arange(0, data.processes, together)
    columns = pd.MultiIndex.from_frame(
        steps.take(steps.group("repeat", "step", in_order=True).first).frame[["repeat", "step"]]
    )
    strips = {}
    for title, times in (("waits", steps), ("is waited for", late)):
        plain = (
            times.select(("repeat", "step", "exposed_wait_us"))
            .assign(row=times["rank"] // together * together)
            .frame
        )
        strip = plain.pivot_table(
            index="row", columns=["repeat", "step"], values="exposed_wait_us", aggfunc="max"
        )
        strips[title] = strip.reindex(index=rows, columns=columns).astype(float)
    strips["is waited for"] = strips["is waited for"].fillna(0.0).where(strips["waits"].notna())
    return strips


def _strip_panel(figure: Figure, axes: Axes, title: str, strip: "pd.DataFrame") -> None:
    unit = choose_unit("time", [float(np.nanmax(strip.to_numpy()))])
    together = int(strip.index[1] - strip.index[0])
    extent = (-0.5, len(strip.columns) - 0.5, float(strip.index[-1]) + together - 0.5, -0.5)
    image = axes.imshow(
        strip.to_numpy() / unit.divisor,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=0.0,
        extent=extent,
    )
    axes.grid(visible=False)
    axes.set_facecolor(_NOT_KNOWN)
    unknown = " (grey: not known)" if strip.isna().to_numpy().any() else ""
    axes.set_title(title + unknown, loc="left", fontsize=9)
    steps = strip.columns.get_level_values("step").tolist()
    ticks = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 10)).astype(int))
    axes.set_xticks(ticks, [str(steps[tick]) for tick in ticks])
    axes.set_xlabel("traced step")
    axes.set_ylabel("rank" if together == 1 else f"rank ({together} a row)")
    figure.colorbar(image, ax=axes, label=f"time [{unit.label}]")
