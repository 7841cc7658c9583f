"""Tables as text: for terminals, CSV, Markdown, LaTeX. One unit per column, told in its heading."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from dpscope.analysis.cells.columns import BY_NAME, Column
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import as_number
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, plain, show
from dpscope.analysis.traces.steps.event_kind import ROOTED


@dataclass(frozen=True)
class View:
    """Some columns of the comparison; `several_only` leaves single-device cells out, of `empty` it is only said why."""

    name: str
    title: str
    columns: tuple[str, ...]
    several_only: bool = False
    empty: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)  # that differ from the columns'


_VIEWS = (
    View(
        "time",
        "Time per step and throughput",
        ("cell", "step_us", "step_low_us", "step_high_us", "step_count", "samples_per_s", "weak_efficiency", "strong_speedup"),
    ),
    View(
        "memory",
        "Memory per device and step time",
        ("cell", "step_us", "state_bytes", "peak_allocated_bytes", "peak_reserved_bytes"),
    ),
    View(
        "breakdown",
        "Communication in a traced step: hidden + exposed; what tracing adds, what compute loses to sharing",
        (
            "cell", "communication_us", "hidden_us", "exposed_us", "wait_us", "transfer_us", "tracer_us", "slowdown_us",
        ),
    ),
    View(
        "phases",
        "Time of each phase in a traced step, without communication",
        ("cell", "host_to_device_us", "forward_us", "backward_us", "optimizer_us"),
    ),
    View(
        "traffic",
        "What moves",
        (
            "cell", "bytes_per_step", "collectives_per_step", "transfer_us", "algbw_gb_per_s", "busbw_gb_per_s",
            "communication_share",
        ),
        several_only=True,
    ),
    View(
        "estimates",
        "Subtraction estimates, and how far each is from exposed communication",
        (
            "cell", "exposed_us", "same_local_batch_us", "same_local_batch_error_exposed_us", "ideal_split_us",
            "ideal_split_error_exposed_us", "same_total_us", "ring_us", "ring_error_us",
        ),
        several_only=True,
    ),
    View(
        "epoch",
        "The same per epoch",
        (
            "cell", "steps_per_epoch", "communication_epoch_us", "exposed_epoch_us", "same_local_batch_epoch_us",
            "ideal_split_epoch_us", "same_total_epoch_us",
        ),
        several_only=True,
    ),
    View(
        "predictions",
        "Predicted against measured, per step",
        (
            "cell", "transfer_us", "predicted_transfer_us", "predicted_transfer_error", "exposed_us",
            "predicted_exposed_us", "predicted_exposed_error",
        ),
        several_only=True,
    ),
    View(
        "bandwidth",
        "Effective bandwidth, three ways",
        (
            "cell", "wire_bytes_per_step", "subtraction_gb_per_s", "communication_gb_per_s", "transfer_gb_per_s", "link_gb_per_s",
            "calibrated_gb_per_s",
        ),
        several_only=True,
    ),
    View(
        "utilisation",
        "Utilisation: each of them over the link's specification and over the calibration",
        (
            "cell", "subtraction_of_link", "communication_of_link", "transfer_of_link", "subtraction_of_calibration",
            "communication_of_calibration", "transfer_of_calibration",
        ),
        several_only=True,
    ),
    View(
        "learning",
        "Accuracy beside speedup",
        (
            "cell", "weak_speedup", "strong_speedup", "test_accuracy_percent", "test_accuracy_percent_min",
            "test_accuracy_percent_max", "test_accuracy_seeds", "trained_global_batch_size",
        ),
    ),
    View(
        "checks",
        "Checks",
        ("cell", "tracer_cost", "counter_span_ratio", "counter_buckets_equal"),
    ),
)  # fmt: skip
STEP = View(
    "step",
    "Where a step goes [{unit}]: traced step = compute + wait + transfer + other + idle",
    (
        "cell", "step_us", "samples_per_s", "weak_efficiency", "traced_step_us", "compute_us", "exposed_wait_us",
        "exposed_transfer_us", "exposed_other_us", "idle_us",
    ),
    headings={"weak_efficiency": "eff.[%]", "traced_step_us": "traced"},
)  # fmt: skip
SHORTCUTS = View(
    "shortcuts",
    "Measured (traced) against the shortcuts [{unit}]: shortcut = measured + error",
    (
        "cell", "exposed_us", "same_local_batch_us", "same_local_batch_error_exposed_us", "transfer_us", "ring_us",
        "ring_error_us",
    ),
    several_only=True,
    headings={
        "same_local_batch_us": "T_N(b)-T_1(b)", "same_local_batch_error_exposed_us": "error",
        "transfer_us": "transfers", "ring_us": "ring", "ring_error_us": "error",
    },
)  # fmt: skip
_UNTRACED = frozenset(
    {"step_us", "samples_per_s", "weak_efficiency", "same_local_batch_us", "same_local_batch_error_exposed_us"}
)
_OPTIONAL = frozenset({"predictions", "bandwidth", "learning"})  # left out where all they could show is missing,
_OF_RUNS = frozenset({"time", "memory", "epoch", "learning", "checks"})  # views of what traces alone never tell
_MOST_HEADINGS = 6  # in a line that says why values are missing
_BY_COLUMN = frozenset({"bandwidth"})  # and of these each column that is


def first_tables(comparison: Comparison) -> dict[str, TextTable]:
    """What comes first, by name: where a step of each measured cell goes, and what shortcuts say of cells on several devices."""
    shown = replace(comparison, table=summarised(comparison))
    tables = {
        view.name: _view(shown, view, [BY_NAME[name] for name in view.columns]) for view in first_views(comparison)
    }
    return {name: table for name, table in tables.items() if table.rows}


def summarised(comparison: Comparison) -> pd.DataFrame:
    """The rows of a comparison that the first tables show."""
    return comparison.table if comparison.of_traces else comparison.table[comparison.table["step_us"].notna()]


def first_views(comparison: Comparison) -> list[View]:
    """The views of `first_tables`; of foreign traces without what only a run measures, and the second with a link alone."""
    if not comparison.of_traces:
        return [_with_known_rate(STEP, comparison), SHORTCUTS]
    views = [
        replace(view, columns=tuple(name for name in view.columns if name not in _UNTRACED))
        for view in (STEP, SHORTCUTS)
    ]
    return views if comparison.table["ring_us"].notna().any() else views[:1]


def views_by_name(comparison: Comparison) -> dict[str, TextTable]:
    """The comparison as tables narrow enough for a terminal, by name, each with the reasons of what it lacks."""
    return {view.name: _named_view(comparison, view) for view in shown_views(comparison)}


def _named_view(comparison: Comparison, view: View) -> TextTable:
    table = _view(comparison, view, [BY_NAME[name] for name in view.columns])
    if view.empty:
        cells = [str(cell) for cell in comparison.table["cell"]]
        table = replace(table, missing=(*table.missing, *_missing_notes(comparison, view.empty, cells)))
    notes = {"traffic": _traffic_notes, "estimates": _ring_notes}.get(view.name)
    return replace(table, notes=tuple(notes(comparison))) if notes is not None else table


def _ring_notes(comparison: Comparison) -> Iterator[str]:
    """What the ring formula divides by, told once for all device counts at which it is the same."""
    counts: dict[str, list[int]] = {}
    for devices, rate in comparison.ring_rates.items():
        counts.setdefault(rate.told, []).append(devices)
    for told, alike in counts.items():
        yield f"ring model on {', '.join(map(str, alike))} devices: {told}"


def _traffic_notes(comparison: Comparison) -> Iterator[str]:
    rooted = dict.fromkeys(one.cell for one in comparison.predictions if one.kind in ROOTED)
    if rooted:
        yield (
            "transfer and wait do not add up to comm. where there are broadcasts or reduces, which have neither: "
            f"{', '.join(rooted)}"
        )


def shown_views(comparison: Comparison) -> list[View]:
    """The views as far as they have something to show: predictions and utilisation need a link or a calibration."""
    table = comparison.table
    kept = []
    for view in (_with_known_rate(one, comparison) for one in _VIEWS):
        if comparison.of_traces and view.name in _OF_RUNS:
            continue
        optional = {name for name in view.columns if BY_NAME[name].group in _OPTIONAL}
        lacking = {name for name in optional if table[name].isna().all()}
        if comparison.of_traces:
            kept += [_without_missing(view, table)] if not optional or len(lacking) < len(optional) else []
        elif not optional or len(lacking) < len(optional):
            dropped = {name for name in lacking if BY_NAME[name].group in _BY_COLUMN}
            kept.append(replace(view, columns=tuple(name for name in view.columns if name not in dropped)))
    return [_without_empty(view, table) if view.name == "memory" else view for view in kept]


def _without_empty(view: View, table: pd.DataFrame) -> View:
    """A view without columns for which this kind of device has no value; they are its empty ones."""
    return replace(_without_missing(view, table), empty=tuple(one for one in view.columns if table[one].isna().all()))


def _with_known_rate(view: View, comparison: Comparison) -> View:
    """A view of throughput with tokens in place of samples where samples are made of them, and steps where none is known."""
    table, rates = comparison.table, ("tokens_per_s", "samples_per_s", "steps_per_s")
    shown = next((name for name in rates if name in table and table[name].notna().any()), "samples_per_s")
    return replace(view, columns=tuple(shown if name == "samples_per_s" else name for name in view.columns))


def _without_missing(view: View, table: pd.DataFrame) -> View:
    """Of traces, which leave most columns open, only those that they fill."""
    return replace(view, columns=tuple(name for name in view.columns if not table[name].isna().all()))


def _view(comparison: Comparison, view: View, columns: list[Column]) -> TextTable:
    """Times of one view share a unit, so that they can be compared by eye."""
    table = comparison.table[comparison.table["devices"] > 1] if view.several_only else comparison.table
    units = {column.name: _unit(table, column, columns) for column in columns}
    common = next((unit.label for name, unit in units.items() if BY_NAME[name].quantity == "time"), "")
    titled = "{unit}" in view.title  # the times' unit stands there once, and in no heading
    cells = [str(cell) for cell in table["cell"]]
    rows = tuple(
        tuple(show(plain(table[column.name].iloc[index]), units[column.name]) for column in columns)
        for index in range(len(cells))
    )
    return TextTable(
        title=view.title.format(unit=common),
        headings=tuple(_heading(view, column, units[column.name], titled) for column in columns),
        rows=rows,
        missing=tuple(_missing_notes(comparison, [column.name for column in columns], cells)),
    )


def _heading(view: View, column: Column, unit: Unit, titled: bool) -> str:
    """With its unit, unless the view's title or its own words have it."""
    name = view.headings.get(column.name, column.heading)
    return name if (titled and column.quantity == "time") or "[" in name else heading(name, unit)


def _unit(table: pd.DataFrame, column: Column, columns: list[Column]) -> Unit:
    alike = [other.name for other in columns if other.quantity == column.quantity == "time"] or [column.name]
    values = [as_number(plain(value)) for name in alike for value in table[name]]
    return choose_unit(column.quantity, values)


def heading(name: str, unit: Unit) -> str:
    """A column's heading with its unit."""
    return f"{name} [{unit.label}]" if unit.label else name


def _missing_notes(comparison: Comparison, columns: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Why values are NA: each reason once, with the cells and columns it holds for."""
    return _by_reason(
        (reason, column, cell)
        for cell in cells
        for column in columns
        if (reason := comparison.reasons.get((cell, column)))
    )


def missing_reasons(comparison: Comparison) -> list[str]:
    """Why the tables lack what they lack: each reason once, with its columns and cells."""
    views = [*first_views(comparison), *shown_views(comparison)]
    alone = {str(cell) for cell in comparison.table.loc[comparison.table["devices"] == 1, "cell"]}
    several = {name for view in views for name in (*view.columns, *view.empty)}
    every = {name for view in views if not view.several_only for name in (*view.columns, *view.empty)}
    missing = [
        (reason, column, cell)
        for (cell, column), reason in comparison.reasons.items()
        if column in (every if cell in alone else several)
    ]
    return _by_reason(missing, most=_MOST_HEADINGS)


def _by_reason(missing: Iterable[tuple[str, str, str]], most: int | None = None) -> list[str]:
    """From (reason, column, cell): a line per reason with the headings of its columns, `most` of them."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for reason, column, cell in missing:
        columns, cells = found.setdefault(reason, ({}, {}))
        columns[BY_NAME[column].heading] = None
        cells[cell] = None
    return [
        f"{NA} ({_shortened(list(columns), most)}; {', '.join(cells)}): {reason}"
        for reason, (columns, cells) in found.items()
    ]


def _shortened(headings: Sequence[str], most: int | None) -> str:
    more = len(headings) - most if most is not None else 0
    return f"{', '.join(headings[:most])} and {more} more" if more > 0 else ", ".join(headings)


def gap_table(comparison: Comparison) -> TextTable | None:
    """DP against DDP at equal devices and batch, None where no pair was measured."""
    if not comparison.gaps:
        return None
    fields = ("gap_us", "exposed_us", "host_copies_us", "compute_us", "idle_us", "tracer_us")
    unit = choose_unit("time", [getattr(gap, field) for gap in comparison.gaps for field in fields])
    ratio = Unit("", 1.0, 2)
    label = comparison.gaps[0].dp_label
    names = ("gap", "exposed comm.", "host copies", "compute", "idle", "tracer")
    return TextTable(
        title=f"{label} minus DDP, same devices and batch per device: the gap per step and its parts",
        headings=("cells", "ratio", "low", "high", *(f"{name} [{unit.label}]" for name in names)),
        rows=tuple(
            (
                gap.ddp.removeprefix("ddp-"),
                *(show(value, ratio) for value in (gap.ratio.value, gap.ratio.low, gap.ratio.high)),
                *(show(getattr(gap, field), unit) for field in fields),
            )
            for gap in comparison.gaps
        ),
        notes=(f"ratio: {label}'s median untraced step over DDP's, with its 95% interval",),
    )


def comparison_csv(comparison: Comparison) -> str:
    """Every column in its stored unit (named in the heading), with a column that tells why values are missing."""
    table = comparison.table.copy()
    table["missing"] = [
        "; ".join(f"{column}: {reason}" for (cell, column), reason in comparison.reasons.items() if cell == name)
        for name in table["cell"]
    ]
    return str(table.to_csv(index=False, na_rep=NA))
