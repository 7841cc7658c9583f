"""Where a step goes, as stacked bars of its ledger; and its phases on 1 and on N devices."""

from collections.abc import Sequence

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
    """Traced step time of every cell in the parts of its ledger; a part that no cell has is left out."""
    table = _known(comparison.table, ["compute_us", "traced_step_us", "idle_us"])
    if table.empty:
        return None
    unit = choose_unit("time", list(table["traced_step_us"]))
    unknown = table["exposed_us"].isna() & (table["devices"] > 1)
    labels = [
        f"{cell} (comm. unknown)" if missing else str(cell)
        for cell, missing in zip(table["cell"], unknown, strict=True)
    ]
    figure, (axes,) = new_figure(len(table), width=NARROW)
    values = {name: table[name].astype("Float64").fillna(0.0).astype(float) / unit.divisor for name in _PARTS}
    parts = {_PARTS[name][0]: (list(column), _PARTS[name][1]) for name, column in values.items() if column.any()}
    _stacked(axes, labels, parts, unit.label)
    axes.set_title(f"Where a traced step goes{host_note(run)}", loc="left")
    return figure


def phase_split(run: RunData, comparison: Comparison) -> Figure | None:
    """Transfer to the device, forward, backward, exposed communication, optimizer, in the order of all tables."""
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
    """For titles: that what dp-host communicates are copies on the host."""
    return " (dp-host: host copies)" if any(data.cell.traits.host_copies for data in run.measured) else ""


def _known(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Rows that have all of these values, as floats."""
    kept = table.dropna(subset=list(columns))
    return kept.astype(dict.fromkeys(columns, float))


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
