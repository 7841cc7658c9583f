"""The ledger of a step as stacked bars, in time and in points of the device's peak; and its phases."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.style import NARROW, new_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import choose_unit

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
