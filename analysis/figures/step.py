"""A step's time as figures: its ledger, communication next to the shortcuts' estimates,
DP next to DDP, and waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison, StrategyGap, WaterfallPart, gap_parts
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.view import REGISTERED, interval_ends
from dpscope.analysis.figures import style
from dpscope.analysis.figures.style import COLOURS, NARROW, WIDTH, new_figure, whiskers
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate, median_estimate
from dpscope.analysis.text.units import Unit, choose_unit, show, show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import EXPOSED_PARTS, STEP_PARTS
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.event_table import FloatColumn

if TYPE_CHECKING:
    import pandas as pd

_Parts = Mapping[str, Sequence[float]]
"""By label of style.PARTS: a value for each bar."""
_LEDGER = {f"{part}_us": label for part, label in STEP_PARTS.items()}  # they add up to the step
_MEASURED = {"hidden_us": "hidden", **{f"{part}_us": STEP_PARTS[part] for part in EXPOSED_PARTS}}
_SHORTCUTS = {"same_local_batch_us": "$t_N(b) - t_1(b)$", "ring_us": "ring formula"}
_BAR = 0.27  # of the space between cells
_THICKNESS = 0.9 * _BAR
_WHISKER: dict[str, Any] = {"ecolor": "black", "elinewidth": 1.0, "capsize": 2}


def step_split(comparison: Comparison) -> Figure | None:
    """The traced step of each measured cell in the parts of its ledger, with what is unknown of it;
    a part that no cell has is omitted.
    """
    rows = [row for row in comparison.rows.values() if row.step_us or row.traced_step_us]
    unit = choose_unit("time", [row.traced_step_us for row in rows])
    parts = _of_rows(_LEDGER, rows, unit.divisor)
    unknown = [_unknown_us(row) / unit.divisor for row in rows]
    labels = [_with_unknown(row) for row in rows]
    parts = {**parts, "unknown": unknown}
    x_label = f"time per step [{unit.label}]"
    return stacked(labels, parts, x_label)


def _unknown_us(row: CellRow) -> float:
    """Of the traced step what is in none of its parts, where one of a cell's is not known."""
    if row.idle_us is not None or row.traced_step_us is None:
        return 0.0
    parts_us = [row.number(name) or 0.0 for name in _LEDGER]
    return row.traced_step_us - sum(parts_us)


def _with_unknown(row: CellRow) -> str:
    """The cell's name, with what is not known of its traced step."""
    if row.traced_step_us is None:
        return f"{row.cell} (not traced)"
    if row.exposed_us is None and row.devices > 1:
        return f"{row.cell} (comm. unknown)"
    return row.cell


def _of_rows(columns: Mapping[str, str], rows: Sequence[CellRow], divisor: float) -> _Parts:
    return {
        label: [(row.number(name) or 0.0) / divisor for row in rows]
        for name, label in columns.items()
    }


def stacked(labels: Sequence[str], parts: _Parts, x_label: str) -> Figure | None:
    """A bar for each label, in those parts that any bar has; None unless it compares several."""
    if len(labels) < 2 or not any(any(values) for values in parts.values()):
        return None
    figure, (axes,) = new_figure(len(labels), NARROW)
    style.bar_rows(axes, labels, parts)
    axes.set_xlim(left=0)
    style.downwards(axes, x_label)
    return figure


def measured_and_estimated(comparison: Comparison) -> Figure | None:
    """Three bars for each cell on several devices: measured, stacked; the subtraction with its
    interval; the ring formula.

    None if no cell has measured communication, or if there is nothing to compare it with.
    """
    rows = []
    is_measured = False
    for row in comparison.rows.values():
        if row.devices > 1 and _has_any(row):
            rows.append(row)
            is_measured |= row.communication_us is not None
    if not is_measured:
        return None
    shortcuts = {name: label for name, label in _SHORTCUTS.items() if comparison.has(name)}
    bars = len(rows) * (1 + len(shortcuts))
    if bars < 2:
        return None
    unit = choose_unit("time", [row.communication_us for row in rows])
    figure, (axes,) = new_figure(bars, width=NARROW, row_height=0.2)
    cells = np.arange(len(rows), dtype=float)
    places = cells - _BAR * len(shortcuts) / 2
    parts = dict(_of_rows(_MEASURED, rows, unit.divisor))
    hidden = _lengths(rows, "hidden_us", unit)
    exposed = _lengths(rows, "exposed_us", unit)
    longest = _longest(hidden + exposed)
    shortest_seen = style.SHORTEST_SHARE * longest
    if _longest(hidden) <= shortest_seen:
        parts.pop("hidden", None)
    style.bar_rows(axes, places, parts, _THICKNESS)
    _whiskers(axes, places, rows, "exposed_us", hidden + exposed, unit)
    for column, label in shortcuts.items():
        places = places + _BAR
        lengths = _lengths(rows, column, unit)
        style.bar_rows(axes, places, {label: lengths}, _THICKNESS)
        _whiskers(axes, places, rows, column, lengths, unit)
    names = [_with_unknown(row) for row in rows]
    axes.set_yticks(cells, names)
    axes.axvline(0, color="black", linewidth=0.8)
    left, _ = axes.get_xlim()
    axes.set_xlim(left=min(0.0, left))
    style.downwards(axes, f"time per step [{unit.label}]")
    return figure


def _longest(lengths: FloatColumn) -> float:
    """Of those that are known."""
    return float(np.nan_to_num(lengths).max(initial=0.0))


def _has_any(row: CellRow) -> bool:
    """Whether a bar of the cell is known: its communication, or a shortcut's."""
    columns = ("communication_us", *_SHORTCUTS)
    return any(row.number(name) is not None for name in columns)


def _lengths(rows: Sequence[CellRow], column: str, unit: Unit) -> FloatColumn:
    """Values of the cells; NaN where one is missing."""
    values = np.array([row.number(column) for row in rows], dtype=float)
    return values / unit.divisor


def _whiskers(
    axes: Axes,
    places: FloatColumn,
    rows: Sequence[CellRow],
    column: str,
    ends: FloatColumn,
    unit: Unit,
) -> None:
    """The interval of a column, where it has one, at the `ends` of bars."""
    if interval_ends(column)[0] not in REGISTERED:
        return
    first, last = interval_ends(column)
    values = _lengths(rows, column, unit)
    low = _lengths(rows, first, unit)
    high = _lengths(rows, last, unit)
    spread = whiskers(values, low, high)
    axes.errorbar(ends, places, xerr=spread, fmt="none", **_WHISKER)


MOST_GAPS = 3


def waterfall(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each of the first MOST_GAPS gaps with known parts, the largest device counts and
    batches first.
    """
    ordered = sorted(comparison.gaps, key=attrgetter("devices", "batch_size"), reverse=True)
    every = [(gap, gap_parts(run, comparison, gap)) for gap in ordered]
    known = [(gap, parts) for gap, parts in every if parts]
    del known[MOST_GAPS:]
    if not known:
        return None
    # each part, and both steps
    rows = [len(parts) + 2 for _, parts in known]
    figure = Figure(figsize=(WIDTH, 0.9 * len(known) + 0.27 * sum(rows)))
    panels = figure.subplots(len(known), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (gap, parts) in zip(panels, known, strict=True):
        _gap_panel(axes, run, gap, parts)
    return figure


def _gap_panel(axes: Axes, run: RunData, gap: StrategyGap, parts: Sequence[WaterfallPart]) -> None:
    """From DDP's step, which is at 0, to DataParallel's: whole steps would leave the parts, which
    are much shorter, no room.
    """
    ddp = median_estimate(run.cells[gap.ddp].step_samples(), run.spreads.step)
    dp = median_estimate(run.cells[gap.dp].step_samples(), run.spreads.step)
    steps = choose_unit("time", [ddp.value, dp.value])
    unit = replace(steps, digits=steps.digits + 1)  # of the parts
    last = len(parts) + 1
    axes.plot(0.0, 0, "D", color="black")
    _other_step(axes, last, dp, ddp, gap.ratio, unit)
    at_us = 0.0
    for row, part in enumerate(parts, 1):
        _part(axes, row, part, at_us, unit, gap.explained)
        at_us += part.gap_us
    ends = [f"{gap.ddp}: {show_time(ddp.value)}", f"{gap.dp}: {show_time(dp.value)}"]
    labels = [part.label for part in parts]
    axes.set_yticks(range(last + 1), [ends[0], *labels, ends[1]])
    axes.use_sticky_edges = False  # else the axis begins where a bar does
    axes.margins(x=0.12)
    axes.axvline(0, color="black", linewidth=0.8)
    style.downwards(axes, f"difference from DDP's step [{unit.label}]")
    axes.set_title(_title(gap))


def _other_step(
    axes: Axes, row: int, dp: Estimate, ddp: Estimate, ratio: Estimate, unit: Unit
) -> None:
    """DataParallel's median step as its difference from DDP's, with the interval of their ratio."""
    ddp_us = ddp.value or 0.0
    middle = ((dp.value or 0.0) - ddp_us) / unit.divisor
    ends = np.array([ratio.low, ratio.high], dtype=float)
    low, high = ddp_us * (ends - 1) / unit.divisor
    spread = whiskers([middle], [low], [high])
    axes.errorbar(middle, row, xerr=spread, fmt="D", color="black", **_WHISKER)


def _part(
    axes: Axes, row: int, part: WaterfallPart, start_us: float, unit: Unit, explained: bool
) -> None:
    """One part from where the one above ends, pale if the parts do not explain the gap."""
    start = start_us / unit.divisor
    change = part.gap_us / unit.divisor
    end = start + change
    axes.barh(
        row,
        change,
        left=start,
        color=COLOURS[part.key],
        height=0.7,
        alpha=1.0 if explained else 0.4,
    )
    sign = "+" if change >= 0 else "−"
    axes.annotate(
        f"{sign}{show(abs(part.gap_us), unit)}",
        (max(start, end), row),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
    )
    # down to the next row
    axes.plot([end] * 2, [row - 0.35, row + 1.35], color="#777777", linewidth=0.7)


def _title(gap: StrategyGap) -> str:
    between = f"From DDP's step to {gap.dp_label}'s"
    title = f"{between}: {gap.devices} devices, batch {gap.batch_size}"
    lost = "\nTracing changed the timing too much for\nthe pale parts to explain the gap"
    return title if gap.explained else title + lost


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

    Two ranks have two waits, which tables show; cells of more than MOST_WAIT_RANKS ranks have a
    `wait_strip` instead.
    """
    matrices = {}
    for data in run.measured:
        ranks = data.processes
        if not 2 < ranks <= MOST_WAIT_RANKS:
            continue
        pairs = data.mean_waits
        waits_us = pairs["exposed_wait_us"]
        matrix = np.zeros((ranks, ranks))
        matrix[pairs["waiting_rank"], pairs["late_rank"]] = np.maximum(waits_us, 0.0)
        if matrix.any():
            matrices[data.name] = matrix
    if not matrices:
        return None
    longest_us = {name: float(matrix.max()) for name, matrix in matrices.items()}
    cells = sorted(matrices, key=lambda name: -longest_us[name])[:MOST_WAIT_PANELS]
    highest_us = longest_us[cells[0]]
    unit = choose_unit("time", [highest_us])
    most_ranks = max(len(matrices[name]) for name in cells)
    columns, height = 1, 5.0
    if most_ranks <= _SMALL:
        columns, height = 2, 2.6
    figure, panels = style.panel_grid(len(cells), columns, WIDTH, height)
    for axes, name in zip(panels, cells, strict=True):
        _matrix_panel(axes, name, matrices[name], unit, highest_us / unit.divisor)
    return figure


def _matrix_panel(axes: Axes, cell: str, matrix: np.ndarray, unit: Unit, highest: float) -> None:
    values = matrix / unit.divisor
    ranks = np.arange(len(matrix))
    shown = np.ma.masked_less_equal(values, 0.0)
    axes.pcolormesh(ranks, ranks, shown, shading="nearest", cmap="Blues", vmin=0.0, vmax=highest)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title(f"{cell} [{unit.label}]")
    axes.set_xlabel("late rank")
    axes.set_ylabel("waiting rank")
    if len(ranks) > _MOST_NUMBERS:
        return
    axes.set_xticks(ranks)
    axes.set_yticks(ranks)
    for row, column in np.argwhere(values > 0):
        colour = "#ffffff" if values[row, column] > 0.6 * highest else "#111111"
        number = show(float(matrix[row, column]), unit)
        axes.text(column, row, number, ha="center", va="center", color=colour)


def wait_strip(run: RunData) -> Figure | None:
    """Two panels for each cell on more than MOST_WAIT_RANKS ranks whose waits are known; None
    without such a cell.
    """
    strips: dict[str, pd.DataFrame] = {}
    for data in run.measured:
        if data.processes <= MOST_WAIT_RANKS or len(strips) == 2 * MOST_WAIT_PANELS:
            continue
        waits_us = data.whole_windows["exposed_wait_us"]
        if (waits_us > 0).any():
            for title, strip in wait_strips(data).items():
                strips[f"{data.name}: {title}"] = strip
    if not strips:
        return None
    figure, panels = style.panel_grid(len(strips), 2, WIDTH, 3.2)
    for axes, (title, strip) in zip(panels, strips.items(), strict=True):
        _strip_panel(figure, axes, title, strip)
    return figure


def wait_strips(data: Job) -> "dict[str, pd.DataFrame]":
    """Exposed waits by rank (row, its first where several share one) and (repeat, whole step),
    microseconds; NaN: not known.

    "waits": how long the rank waits. "is waited for": how long the others wait for it on average, 0
    where they do not.
    """
    import pandas as pd

    windows = data.whole_windows
    parts = data.tables.exposed_parts
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
    first_ranks = steps.take(steps.group("repeat", "step", in_order=True).first)
    columns = pd.MultiIndex.from_frame(first_ranks.frame[["repeat", "step"]])
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
    # half a cell beyond the first and the last
    right = len(strip.columns) - 0.5
    bottom = float(strip.index[-1]) + together - 0.5
    extent = (-0.5, right, bottom, -0.5)
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
    axes.set_title(title + unknown)
    steps = strip.columns.get_level_values("step").tolist()
    ticks = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 10)).astype(int))
    axes.set_xticks(ticks, [str(steps[tick]) for tick in ticks])
    axes.set_xlabel("traced step")
    axes.set_ylabel("rank" if together == 1 else f"rank ({together} a row)")
    figure.colorbar(image, ax=axes, label=f"time [{unit.label}]")
