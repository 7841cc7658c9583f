"""The figures, drawn once and used everywhere: report, PNG files. Same colour for the same thing in all of them."""

import io
from collections.abc import Callable, Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.comparison import Comparison
from dpscope.analysis.figure_style import COLOURS, STYLE, new_figure
from dpscope.analysis.run_analysis import RunData
from dpscope.analysis.scaling_figure import scaling
from dpscope.analysis.units import choose_unit

Draw = Callable[[RunData, Comparison], Figure | None]


def draw_all(run: RunData, comparison: Comparison) -> dict[str, Figure]:
    """Every figure that this run has numbers for, by file name; a figure without numbers is left out."""
    drawers: dict[str, Draw] = {
        "step_split": step_split,
        "phases": phase_split,
        "communication": measured_and_estimated,
        "scaling": scaling,
    }
    with mpl.rc_context(STYLE):
        drawn = {name: draw(run, comparison) for name, draw in drawers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, 150 dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": "dpscope"})
    return buffer.getvalue()


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element for a page, without the XML prologue."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _known(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Rows that have all of these values, as floats."""
    kept = table.dropna(subset=list(columns))
    return kept.astype(dict.fromkeys(columns, float))


def _stacked(axes: Axes, labels: list[str], parts: dict[str, list[float]], colours: dict[str, str], unit: str) -> None:
    left = [0.0] * len(labels)
    for name, values in parts.items():
        axes.barh(labels, values, left=left, label=name, color=colours[name], height=0.7)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit}]")
    axes.figure.legend(loc="outside lower center", ncols=min(len(parts), 5))


def step_split(run: RunData, comparison: Comparison) -> Figure | None:
    """Traced step time of every cell: compute, exposed communication, idle."""
    table = _known(comparison.table, ["compute_us", "traced_step_us", "idle_us"])
    if table.empty:
        return None
    unit = choose_unit("time", list(table["traced_step_us"]))
    exposed = table["exposed_us"].astype("Float64").fillna(0.0).astype(float)
    unknown = table["exposed_us"].isna() & (table["devices"] > 1)
    labels = [
        f"{cell} (comm. unknown)" if missing else str(cell)
        for cell, missing in zip(table["cell"], unknown, strict=True)
    ]
    figure, (axes,) = new_figure(len(table))
    parts = {
        "compute": list(table["compute_us"] / unit.divisor),
        "exposed communication": list(exposed / unit.divisor),
        "idle": list(table["idle_us"] / unit.divisor),
    }
    names = {"compute": COLOURS["compute"], "exposed communication": COLOURS["exposed"], "idle": COLOURS["idle"]}
    _stacked(axes, labels, parts, names, unit.label)
    axes.set_title(f"Where a traced step goes{_host_note(run)}", loc="left")
    return figure


def _host_note(run: RunData) -> str:
    return " (dp-host: host copies)" if any(data.cell.strategy == "dp-host" for data in run.measured) else ""


def phase_split(run: RunData, comparison: Comparison) -> Figure | None:
    """Transfer to the device, forward, backward, exposed communication, optimizer; 1 against N devices by batch."""
    columns = ("host_to_device_us", "forward_us", "backward_us", "exposed_us", "optimizer_us")
    measured = sorted(run.measured, key=lambda data: (data.cell.batch_size, data.cell.devices, data.cell.strategy))
    rows = {}
    for data in measured:
        windows = data.whole_windows()
        if windows.empty or windows["forward_us"].isna().all():
            continue
        means = windows[list(columns)].mean()
        if data.cell.devices > 1 and not data.communication_known:
            continue
        rows[data.cell.name] = [float(value) if pd.notna(value) else 0.0 for value in means]
    if not rows:
        return None
    unit = choose_unit("time", [sum(values) for values in rows.values()])
    figure, (axes,) = new_figure(len(rows))
    names = ("transfer to device", "forward", "backward", "exposed communication", "optimizer")
    colours = dict(
        zip(
            names,
            (COLOURS[key] for key in ("host_to_device", "forward", "backward", "exposed", "optimizer")),
            strict=True,
        )
    )
    parts = {name: [values[index] / unit.divisor for values in rows.values()] for index, name in enumerate(names)}
    _stacked(axes, list(rows), parts, colours, unit.label)
    axes.set_title("Phases of a traced step, 1 against N devices", loc="left")
    return figure


def measured_and_estimated(run: RunData, comparison: Comparison) -> Figure | None:
    """Communication measured (with its range over ranks) beside each estimate that this run allows."""
    table = comparison.table[comparison.table["communication_us"].notna()]
    if table.empty:
        return None
    series = {
        "measured, all": ("communication_us", COLOURS["overlapped"]),
        "measured, exposed": ("exposed_us", COLOURS["exposed"]),
        "measured, transfer": ("transfer_us", COLOURS["transfer"]),
        "estimate t_N(b) - t_1(b)": ("same_local_batch_us", COLOURS["same_local_batch"]),
        "estimate t_N - t_1(G)/N": ("ideal_split_us", COLOURS["ideal_split"]),
        "estimate t_N - t_1(G)": ("same_total_us", COLOURS["same_total"]),
        "ring model": ("ring_us", COLOURS["ring"]),
    }
    shown = {name: spec for name, spec in series.items() if table[spec[0]].notna().any()}
    unit = choose_unit("time", [float(value) for value in table["communication_us"]])
    figure, (axes,) = new_figure(len(table) * len(shown), row_height=0.17)
    height = 0.8 / len(shown)
    positions = range(len(table))
    for index, (name, (column, colour)) in enumerate(shown.items()):
        offsets = [position - 0.4 + height * (index + 0.5) for position in positions]
        values = [float(value) / unit.divisor if pd.notna(value) else float("nan") for value in table[column]]
        axes.barh(
            offsets, values, height=height * 0.92, color=colour, label=name, xerr=_ranges(table, column, unit.divisor)
        )
    axes.set_yticks(list(positions), [str(cell) for cell in table["cell"]])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: range over ranks")
    axes.set_title(f"Communication: measured against estimated{_host_note(run)}", loc="left")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _ranges(table: pd.DataFrame, column: str, divisor: float) -> list[list[float]] | None:
    base = column.removesuffix("_us")
    if f"{base}_low_us" not in table:
        return None
    below = (table[column] - table[f"{base}_low_us"]).astype("Float64").fillna(0.0)
    above = (table[f"{base}_high_us"] - table[column]).astype("Float64").fillna(0.0)
    return [[max(0.0, float(value)) / divisor for value in side] for side in (below, above)]
