"""A step's time as figures: its ledger, its phases, communication next to the shortcuts' estimates, DP next to DDP, and waits."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.columns import BY_NAME, INTERVAL
from dpscope.analysis.cells.comparison import Comparison, StrategyGap, WaterfallPart, gap_parts
from dpscope.analysis.cells.row import CellRow, minus
from dpscope.analysis.figures.style import COLOURS, NARROW, WIDTH, new_figure
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate, median_estimate
from dpscope.analysis.text.units import Unit, choose_unit, show, show_time

_Stack = dict[str, tuple[list[float], str]]  # by label: a value for each bar, and the colour
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
    parts = _of_rows(_PARTS, rows, unit.divisor)
    return _stacked(f"Where a traced step goes{host_note(run)}", labels, parts, f"time per step [{unit.label}]", NARROW)


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
    peak = "the measured CPU matmul peak" if run.device_type == "cpu" else "the device's specified peak"
    parts, label = _of_rows(_USE, rows), "points of the peak in a traced step [%]"
    return _stacked(f"How much of {peak} is used", [row.cell for row in rows], parts, label)


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
    parts = {
        name: ([values[index] / unit.divisor for values in rows.values()], colour)
        for index, (name, colour) in enumerate(_PHASES.values())
    }
    title = "Phases of a traced step, 1 against N devices"
    return _stacked(title, list(rows), parts, f"time per step [{unit.label}]")


def host_note(run: RunData) -> str:
    """For titles: dp-host communicates by copies on the host."""
    return " (dp-host: host copies)" if any(data.cell.traits.host_copies for data in run.measured) else ""


def _of_rows(columns: Mapping[str, tuple[str, str]], rows: Sequence[CellRow], divisor: float = 1.0) -> _Stack:
    """The columns that have a value in any row."""
    values = {name: [(row.number(name) or 0.0) / divisor for row in rows] for name in columns}
    return {columns[name][0]: (column, columns[name][1]) for name, column in values.items() if any(column)}


def _stacked(title: str, labels: list[str], parts: _Stack, x_label: str, width: float = WIDTH) -> Figure:
    figure, (axes,) = new_figure(len(labels), width)
    left = [0.0] * len(labels)
    for name, (values, colour) in parts.items():
        axes.barh(labels, values, left=left, label=name, color=colour, height=0.7)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(x_label)
    axes.set_title(title, loc="left")
    figure.legend(loc="outside lower center", ncols=min(len(parts), 3))
    return figure


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


MOST_WAIT_PANELS = 4
MOST_WAIT_RANKS = 32  # more are shown by `wait_strip`
MOST_STRIP_ROWS = 256  # with more ranks, neighbours share a row, which shows the longest of their times
_MOST_NUMBERS = 8  # ranks up to which the values are written into the matrix
_SMALL = 4  # ranks up to which two matrices fit side by side


def waits(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each cell, the longest waits first: row waits for column, mean per step. None without waits.

    Cells of more than MOST_WAIT_RANKS ranks have a `wait_strip` instead.
    """
    matrices = {}
    for data in (one for one in run.measured if one.cell.processes <= MOST_WAIT_RANKS):
        pairs = data.mean_waits
        if len(pairs):
            matrix = np.zeros((data.cell.processes, data.cell.processes))
            places = (pairs["waiting_rank"].to_numpy(dtype=int), pairs["late_rank"].to_numpy(dtype=int))
            matrix[places] = pairs["wait_per_step_us"].to_numpy(dtype=float)
            matrices[data.cell.name] = matrix
    if not matrices:
        return None
    shown = sorted(matrices.items(), key=lambda item: -float(item[1].max()))[:MOST_WAIT_PANELS]
    unit = choose_unit("time", [float(matrix.max()) for _, matrix in shown])
    columns = 1 if max(len(matrix) for _, matrix in shown) > _SMALL else 2
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, (5.0 if columns == 1 else 2.6) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    highest = max(float(matrix.max()) for _, matrix in shown) / unit.divisor
    for axes, (cell, matrix) in zip(panels, shown, strict=False):
        _panel(axes, cell, matrix, unit, highest)
    for axes in panels[len(shown) :]:
        axes.remove()
    figure.suptitle(
        f"Waiting per step [{unit.label}]: the row's rank waits for the column's", x=0.01, ha="left", fontsize=11
    )
    return figure


def _panel(axes: Axes, cell: str, matrix: np.ndarray, unit: Unit, highest: float) -> None:
    values = matrix / unit.divisor
    places = np.arange(len(matrix))
    shown = np.ma.masked_less_equal(values, 0.0)
    axes.pcolormesh(places, places, shown, shading="nearest", cmap="Blues", vmin=0.0, vmax=highest)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    ranks: Sequence[int] = range(len(matrix))
    axes.grid(visible=False)
    axes.set_title(cell, loc="left", fontsize=9)
    axes.set_xlabel("late rank")
    axes.set_ylabel("waiting rank")
    if len(ranks) > _MOST_NUMBERS:
        return
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.set_yticks(ranks, [str(rank) for rank in ranks])
    for row in ranks:
        for column in ranks:
            if values[row, column] > 0:
                colour = "#ffffff" if values[row, column] > 0.6 * highest else "#111111"
                axes.text(
                    column, row, show(matrix[row, column], unit), ha="center", va="center", color=colour, fontsize=8
                )


def wait_strip(run: RunData, comparison: Comparison) -> Figure | None:
    """Two panels for each cell on more than MOST_WAIT_RANKS ranks whose waits are known; None without such a cell."""
    many = [data for data in run.measured if data.cell.processes > MOST_WAIT_RANKS and len(data.collectives)]
    cells = [data for data in many if data.collectives["wait_us"].notna().any()][:MOST_WAIT_PANELS]
    if not cells:
        return None
    figure = Figure(figsize=(7.5, 3.2 * len(cells)), layout="constrained")
    for data, panels in zip(cells, figure.subplots(len(cells), 2, squeeze=False), strict=True):
        for axes, (title, strip) in zip(panels, wait_strips(data).items(), strict=True):
            _strip_panel(figure, axes, f"{data.cell.name}: {title}", strip)
    return figure


def wait_strips(data: CellData) -> dict[str, pd.DataFrame]:
    """Time by rank (row, its first where several share one) and (repeat, step), microseconds, 0 where there was none.

    "waits": how long the rank waits. "is waited for": how long the others wait for it on average, in collectives to which it
    comes last.
    """
    steps = data.steps[data.steps["rank"].notna() & data.steps["step"].notna() & data.steps["wait_us"].notna()]
    table = data.collectives
    known = table[table["match"].notna() & table["wait_us"].notna() & table["step"].notna()].reset_index(drop=True)
    of_collective = known.groupby(["repeat", "match"])
    last = known.loc[of_collective["duration_us"].idxmin(), ["rank", "repeat", "step"]]
    others = (of_collective["wait_us"].sum() / (of_collective.size() - 1)).to_numpy(dtype=float)
    late = last.assign(wait_us=others).groupby(["rank", "repeat", "step"], as_index=False)["wait_us"].sum()
    together = -(-data.cell.processes // MOST_STRIP_ROWS)
    rows = np.arange(0, data.cell.processes, together)
    columns = pd.MultiIndex.from_frame(steps[["repeat", "step"]].drop_duplicates().sort_values(["repeat", "step"]))
    strips = {}
    for title, times in (("waits", steps), ("is waited for", late)):
        row = times["rank"].to_numpy(dtype=np.int64) // together * together
        plain = times[["repeat", "step"]].assign(row=row, wait_us=times["wait_us"].astype("float64"))
        strip = plain.pivot_table(index="row", columns=["repeat", "step"], values="wait_us", aggfunc="max")
        strips[title] = strip.reindex(index=rows, columns=columns).fillna(0.0)
    return strips


def _strip_panel(figure: Figure, axes: Axes, title: str, strip: pd.DataFrame) -> None:
    unit = choose_unit("time", [float(strip.to_numpy().max())])
    together = int(strip.index[1] - strip.index[0])
    image = axes.imshow(
        strip.to_numpy() / unit.divisor,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=0.0,
        extent=(-0.5, len(strip.columns) - 0.5, float(strip.index[-1]) + together - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set_title(title, loc="left", fontsize=9)
    steps = strip.columns.get_level_values("step").tolist()
    ticks = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 10)).astype(int))
    axes.set_xticks(ticks, [str(steps[tick]) for tick in ticks])
    axes.set_xlabel("traced step")
    axes.set_ylabel("rank" if together == 1 else f"rank ({together} a row)")
    figure.colorbar(image, ax=axes, label=f"time [{unit.label}]")
