"""The comparison's tables for terminal, CSV, Markdown and LaTeX, with one unit per column, given in
its heading.
"""

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller

from dpscope.analysis.cells.columns import BY_NAME, NAMES
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.text.text_table import Field, TextTable, estimate_fields, table_of
from dpscope.analysis.text.units import NA, Unit, whole_numbers
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.strategies import traits_of

# rows of a terminal's first table: if the verdict is about no cell, and if it is
MOST_ROWS, MOST_ANSWERED = 6, 9


@dataclass(frozen=True)
class View:
    """Some columns of the comparison, separated by blanks; `several_only` omits single-device
    cells.

    `empty` are columns without any value; `headings` are those that differ from the columns' own.
    """

    name: str
    title: str
    columns: str
    several_only: bool = False
    empty: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns one by one."""
        return self.columns.split()


_VIEWS = (
    View(
        "time",
        "Time per step and throughput",
        "cell step_us step_low_us step_high_us step_count samples_per_s weak_efficiency strong_speedup",
    ),
    View(
        "memory",
        "Memory per device and step time",
        "cell step_us state_bytes peak_allocated_bytes peak_reserved_bytes",
    ),
    View(
        "breakdown",
        "Communication in a traced step: hidden + exposed; the cost of tracing and of contention",
        "cell communication_us hidden_us exposed_us wait_us transfer_us tracer_us slowdown_us",
    ),
    View(
        "phases",
        "Time of each phase in a traced step, without communication",
        "cell host_to_device_us forward_us backward_us optimizer_us",
    ),
    View(
        "traffic",
        "What moves",
        "cell bytes_per_step collectives_per_step transfer_us algbw_gb_per_s busbw_gb_per_s communication_share",
        several_only=True,
    ),
    View(
        "estimates",
        "Subtraction estimates, and their difference from exposed communication",
        "cell exposed_us same_local_batch_us same_local_batch_error_exposed_us ideal_split_us "
        "ideal_split_error_exposed_us same_total_us ring_us ring_error_us",
        several_only=True,
    ),
    View(
        "epoch",
        "The same per epoch",
        "cell steps_per_epoch communication_epoch_us exposed_epoch_us same_local_batch_epoch_us ideal_split_epoch_us "
        "same_total_epoch_us",
        several_only=True,
    ),
    View(
        "predictions",
        "Predicted and measured, per step",
        "cell transfer_us predicted_transfer_us predicted_transfer_error exposed_us predicted_exposed_us "
        "predicted_exposed_error",
        several_only=True,
    ),
    View(
        "bandwidth",
        "Effective bandwidth by three definitions",
        "cell wire_bytes_per_step subtraction_gb_per_s communication_gb_per_s transfer_gb_per_s link_gb_per_s "
        "calibrated_gb_per_s",
        several_only=True,
    ),
    View(
        "utilisation",
        "Utilisation: these bandwidths relative to the link's specification and to the calibration",
        "cell subtraction_of_link communication_of_link transfer_of_link subtraction_of_calibration "
        "communication_of_calibration transfer_of_calibration",
        several_only=True,
    ),
    View(
        "device_use",
        "How much of a device is used",
        "cell flops_per_step achieved_tflops mfu cpu_peak_tflops cpu_peak_share",
    ),
    View(
        "device_points",
        "Where 100 points of a device's peak go in a traced step",
        "cell used_points lost_wait_points lost_transfer_points lost_other_points lost_idle_points lost_contention_points "
        "lost_below_peak_points",
    ),
    View(
        "learning",
        "Accuracy and speedup",
        "cell weak_speedup strong_speedup test_accuracy_percent test_accuracy_percent_min test_accuracy_percent_max "
        "test_accuracy_seeds trained_global_batch_size",
    ),
    View("checks", "Checks", "cell tracer_cost counter_span_ratio counter_buckets_equal"),
)
STEP = View(
    "step",
    "Where a step goes [{unit}]: traced step = compute + wait + transfer + other + idle",
    "cell step_us samples_per_s weak_efficiency traced_step_us compute_us exposed_wait_us exposed_transfer_us "
    "exposed_other_us idle_us",
    headings={"weak_efficiency": "eff.[%]", "traced_step_us": "traced"},
    notes=("means over ranks and traced steps; wait, transfer and other are exposed",),
)
SHORTCUTS = View(
    "shortcuts",
    "Measured (traced) against the shortcuts [{unit}]: shortcut = measured + error",
    "cell exposed_us same_local_batch_us same_local_batch_error_exposed_us transfer_us ring_us ring_error_us",
    several_only=True,
    headings={
        "same_local_batch_us": "T_N(b)-T_1(b)", "same_local_batch_error_exposed_us": "error",
        "transfer_us": "transfers", "ring_us": "ring", "ring_error_us": "error",
    },
)  # fmt: skip
_UNTRACED = frozenset(
    {
        "step_us",
        "samples_per_s",
        "weak_efficiency",
        "same_local_batch_us",
        "same_local_batch_error_exposed_us",
    }
)
# groups, omitted if all values are missing
_OPTIONAL = frozenset({"predictions", "bandwidth", "device", "learning"})
# views that traces alone cannot fill
_OF_RUNS = frozenset({"time", "memory", "epoch", "learning", "checks"})
_MOST_HEADINGS = 6  # in a line that states why values are missing
# groups of which single columns without values are omitted
_BY_COLUMN = frozenset({"bandwidth", "device"})


def first_tables(comparison: Comparison) -> dict[str, TextTable]:
    """The first two tables by name: the parts of each measured cell's step, and the shortcuts on
    several devices.
    """
    rows = summarised(comparison)
    tables = {view.name: _table(view, rows, view.notes) for view in first_views(comparison)}
    return {name: table for name, table in tables.items() if table.rows}


def summarised(comparison: Comparison) -> list[CellRow]:
    """The rows of a comparison that the first tables show."""
    return [
        row for row in comparison.rows.values() if row.step_us is not None or not comparison.timed
    ]


def first_cells(comparison: Comparison, answered: Collection[str]) -> tuple[str, ...]:
    """The cells of a run's first table that a terminal shows: those of the verdict.

    `answered` are the cells of the verdict, shown together with the one device that it compares
    them with, at most MOST_ANSWERED. Without any, other cells are shown: first those without a
    variant, last DDP on one device, which only shows the cost of the wrapper.
    """
    rows = summarised(comparison)
    shown = {
        *answered,
        *_one_device(comparison, rows, [row for row in rows if row.cell in answered]),
    }

    def rank(row: CellRow) -> int:
        baseline, variant = traits_of(row.strategy).baseline, row.cell in comparison.variants
        if row.cell in shown:
            return 0
        return 3 if row.devices == 1 and not baseline else 2 if variant else 1

    ranked = sorted(rows, key=rank)
    chosen = sum(rank(row) == 0 for row in rows)
    return tuple(row.cell for row in ranked[: min(MOST_ANSWERED, chosen) or MOST_ROWS])


def _one_device(
    comparison: Comparison, rows: Sequence[CellRow], cases: Sequence[CellRow]
) -> list[str]:
    """The cells of one device that the verdict compares `cases` with.

    One without a wrapper at their batch per device, else at their global batch, else one under
    their own strategy and options.
    """
    variants = comparison.variants
    plain = [row for row in rows if traits_of(row.strategy).baseline and row.cell not in variants]
    for batches in ({row.batch_size for row in cases}, {row.global_batch_size for row in cases}):
        if alike := [row.cell for row in plain if row.batch_size in batches]:
            return alike
    kinds = {
        (row.strategy, row.batch_size, variants.get(row.cell))
        for row in cases
        if row.cell in comparison.over_itself
    }
    alone = (row for row in rows if row.devices == 1)
    return [
        row.cell for row in alone if (row.strategy, row.batch_size, variants.get(row.cell)) in kinds
    ]


def first_views(comparison: Comparison) -> list[View]:
    """The views of `first_tables`; foreign traces lack columns that only a run measures, and
    without a link the second view.
    """
    if comparison.timed:
        return [_with_known_rate(STEP, comparison), SHORTCUTS]
    views = [_without(view, _UNTRACED) for view in (STEP, SHORTCUTS)]
    return views if comparison.has("ring_us") else views[:1]


def views_by_name(comparison: Comparison) -> dict[str, TextTable]:
    """The comparison as tables narrow enough for a terminal, by name, each with the reasons for
    missing values.
    """
    notes = {"traffic": _traffic_notes, "estimates": _ring_notes, "device_use": _peak_notes}
    rows = list(comparison.rows.values())
    return {
        view.name: _table(view, rows, notes[view.name](comparison) if view.name in notes else ())
        for view in shown_views(comparison)
    }


def _ring_notes(comparison: Comparison) -> Iterator[str]:
    """The bandwidths of the ring formula, one line for all device counts that share one."""
    rows = sorted(comparison.rows.values(), key=lambda row: (row.devices, row.nodes))
    used = dict.fromkeys(
        (
            rate,
            str(row.devices)
            if row.nodes == 1
            else str(Layout(row.nodes, row.devices // row.nodes)),
        )
        for row in rows
        for rate in row.ring_rates
    )
    for rate, counts in grouped(used).items():
        what = "" if rate.kind == "all_reduce" else f" of {rate.kind}"
        yield f"ring model{what} on {', '.join(counts)} devices: {rate.description}"


def _peak_notes(comparison: Comparison) -> Iterator[str]:
    """Which step the rates are of, and why a rate is not compared with a peak."""
    if not comparison.timed:
        yield "of the traced step: its untraced time is not known"
    counted = (row for row in comparison.rows.values() if row.flops_per_step is not None)
    without = (row for row in counted if row.mfu is None and row.cpu_peak_share is None)
    for reason, names in grouped((row.reasons["used_points"], row.cell) for row in without).items():
        yield f"not compared with a peak ({', '.join(names)}): {reason}"


def _traffic_notes(comparison: Comparison) -> Iterator[str]:
    if rooted := dict.fromkeys(one.cell for one in comparison.predictions if one.kind in ROOTED):
        yield (
            "transfer and wait do not add up to comm. in cells with broadcasts or reduces, which have neither: "
            f"{', '.join(rooted)}"
        )


def shown_views(comparison: Comparison) -> list[View]:
    """The views that have values; predictions and utilisation need a link or a calibration.

    Columns without values are omitted of traces, which fill only a few, of memory, where the kind
    of device has none, and in the groups of _BY_COLUMN.
    """
    views = []
    for view in (_with_known_rate(one, comparison) for one in _VIEWS):
        empty = {name for name in view.names if not comparison.has(name)}
        optional = {name for name in view.names if BY_NAME[name].group.name in _OPTIONAL}
        if (view.name in _OF_RUNS and not comparison.timed) or (optional and optional <= empty):
            continue
        if comparison.timed and view.name != "memory":
            empty = {name for name in empty if BY_NAME[name].group.name in _BY_COLUMN}
        kept = _without(view, empty)
        if len(kept.names) > 1 or comparison.timed:  # more than the cell's name
            dropped = tuple(name for name in view.names if name in empty)
            views.append(replace(kept, empty=dropped) if view.name == "memory" else kept)
    return views


def _without(view: View, columns: Collection[str]) -> View:
    return replace(view, columns=" ".join(name for name in view.names if name not in columns))


def _with_known_rate(view: View, comparison: Comparison) -> View:
    """A view of throughput with tokens instead of samples if known, or steps if neither is
    known.
    """
    rates = ("tokens_per_s", "samples_per_s", "steps_per_s")
    shown = next((name for name in rates if comparison.has(name)), "samples_per_s")
    return replace(
        view, columns=" ".join(shown if name == "samples_per_s" else name for name in view.names)
    )


def _table(view: View, rows: Iterable[CellRow], notes: Iterable[str] = ()) -> TextTable:
    """A view as a table; its times share one unit, which its title or its headings give."""
    shown = [row for row in rows if row.devices > 1 or not view.several_only]
    columns = [BY_NAME[name] for name in view.names]
    fields = [
        Field(
            heading=view.headings.get(column.name, column.heading),
            get=methodcaller("value", column.name),
            unit=column.quantity,
            meaning=column.meaning,
        )
        for column in columns
    ]
    missing = _missing_notes(shown, view.names) + _missing_notes(rows, view.empty)
    return table_of(view.title, fields, shown, notes, missing)


def _missing_notes(rows: Iterable[CellRow], columns: Sequence[str]) -> list[str]:
    """Why values are NA: each reason once, with its cells and columns."""
    return _by_reason(
        (reason, column, row.cell)
        for row in rows
        for column in columns
        if (reason := row.reasons.get(column))
    )


def missing_reasons(comparison: Comparison) -> list[str]:
    """Why values are missing in any table: each reason once, with its columns and cells."""
    views = [*first_views(comparison), *shown_views(comparison)]
    several = {name for view in views for name in (*view.names, *view.empty)}
    every = {name for view in views if not view.several_only for name in (*view.names, *view.empty)}
    missing = [
        (reason, column, row.cell)
        for row in comparison.rows.values()
        for column, reason in row.reasons.items()
        if column in (every if row.devices == 1 else several)
    ]
    return _by_reason(missing, most=_MOST_HEADINGS)


def _by_reason(missing: Iterable[tuple[str, str, str]], most: int | None = None) -> list[str]:
    """A line per reason from (reason, column, cell), with at most `most` headings of its
    columns.
    """
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for reason, column, cell in missing:
        headings, cells = found.setdefault(reason, ({}, {}))
        headings[BY_NAME[column].heading] = cells[cell] = None
    lines = []
    for reason, (headings, cells) in found.items():
        more = len(headings) - most if most is not None else 0
        named = ", ".join([*headings][:most]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"{NA} ({named}; {', '.join(cells)}): {reason}")
    return lines


def gap_table(comparison: Comparison) -> TextTable:
    """DP compared with DDP at equal devices and batch, a row for each measured pair."""
    label, ratio = comparison.gaps[0].dp_label if comparison.gaps else "DP", Unit("", 1.0, 2)
    alike = "Devices and batch per device, equal on both sides, and DDP's variant"
    copies = "Copies from and to the host outside of compute and communication, DP minus DDP; dp-host: all its copying"
    above = "DP's median untraced step over DDP's: above 1, DDP is faster"
    fields = (
        Field(
            "cells",
            lambda gap: gap.ddp.removeprefix(f"{comparison.rows[gap.ddp].strategy}-"),
            meaning=alike,
        ),
        *estimate_fields("ratio", ratio, above),
        Field("gap", "gap_us", "time", "DP's median untraced step minus DDP's"),
        Field("exposed comm.", "exposed_us", "time", "Exposed communication, DP minus DDP"),
        Field("host copies", "host_copies_us", "time", copies),
        Field("compute", "compute_us", "time", "Compute, DP minus DDP"),
        Field(
            "idle", "idle_us", "time", "Neither compute nor communication nor copies, DP minus DDP"
        ),
        Field(
            "tracer",
            "tracer_us",
            "time",
            "The part of the untraced gap that the traced steps do not explain",
        ),
    )
    return table_of(
        f"{label} minus DDP, same devices and batch per device: the gap per step and its parts",
        fields,
        comparison.gaps,
        [f"ratio: {label}'s median untraced step over DDP's, with its 95% interval"],
    )


def comparison_csv(comparison: Comparison) -> str:
    """All columns in their stored units (given in the headings), and a column with the reasons for
    missing values.
    """
    missing = [
        "; ".join(f"{name}: {why}" for name, why in row.reasons.items())
        for row in comparison.rows.values()
    ]
    columns = {
        name: whole_numbers([row.value(name) for row in comparison.rows.values()]) for name in NAMES
    }
    columns["missing"] = list(missing)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    rows.writerows(
        [NA if value is None else value for value in row]
        for row in zip(*columns.values(), strict=True)
    )
    return text.getvalue()
