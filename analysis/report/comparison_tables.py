"""Tables of the comparison's columns, one unit per column, given in its heading; and its CSV."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.view import REGISTERED, Group
from dpscope.analysis.findings.ledger_text import slowed_by_tracing
from dpscope.analysis.text.text_table import Field, TextTable, Unknown, table_of
from dpscope.analysis.text.units import NA, whole_numbers
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.strategies import traits_of

# rows of a terminal's first table: if the verdict is about no cell, and if it is
MOST_ROWS, MOST_ANSWERED = 6, 9


def columns_table(
    comparison: Comparison,
    title: str,
    names: Sequence[str],
    rows: Sequence[CellRow],
    notes: Iterable[str] = (),
    headings: Mapping[str, str] | None = None,
    context: Sequence[str] = (),
    with_empty: bool = False,
) -> TextTable | None:
    """These columns of the cells in `rows`, and why their values are missing.

    Columns in which none of them has a value are left out, unless `with_empty`; None where none is
    left besides its `context`. `headings` are those that differ from the columns' own. Traces alone lack
    most columns: of those that they cannot fill, nothing is said.
    """
    names = _with_known_rate(names, comparison)
    known = names
    if not with_empty:
        known = [name for name in names if any(row.value(name) is not None for row in rows)]
    if not set(known) - set(context):
        return None
    fields = [
        Field(
            heading=(headings or {}).get(name, REGISTERED[name].heading),
            get=methodcaller("value", name),
            unit=REGISTERED[name].quantity,
            meaning=REGISTERED[name].meaning,
            column=name,
        )
        for name in ("cell", *known)
    ]
    asked = names if comparison.timed else known
    unknown = (
        Unknown(row.reasons[name], REGISTERED[name].heading, row.cell, name in known)
        for row in rows
        for name in asked
        if name in row.reasons
    )
    return table_of(title, fields, rows, notes, unknown)


def _with_known_rate(names: Iterable[str], comparison: Comparison) -> list[str]:
    """Throughput in tokens instead of samples if known, or in steps if neither is known."""
    rates = ("tokens_per_s", "samples_per_s", "steps_per_s")
    shown = next((name for name in rates if comparison.has(name)), "samples_per_s")
    return [shown if name == "samples_per_s" else name for name in names]


def view_of(
    title: str,
    names: str,
    notes: Callable[[Comparison], Iterable[str]] = lambda comparison: (),
    several: bool = False,
    context: Sequence[str] = (),
) -> Callable[[Comparison], TextTable | None]:
    """A table of these columns, separated by blanks; `several` omits single-device cells, `context`
    are columns that alone are no table.
    """

    def table(comparison: Comparison) -> TextTable | None:
        rows = [row for row in comparison.rows.values() if row.devices > 1 or not several]
        return columns_table(
            comparison, title, names.split(), rows, notes(comparison), context=context
        )

    return table


def group_table(comparison: Comparison, group: Group) -> TextTable | None:
    """All columns of a group; of a user's also those without any value, with the reasons."""
    names = [column.name for column in group.columns]
    rows = [*comparison.rows.values()]
    return columns_table(comparison, group.title, names, rows, with_empty=group.redefinable)


_STEP = (
    "step_us", "samples_per_s", "weak_efficiency", "traced_step_us", "compute_us",
    "exposed_wait_us", "exposed_transfer_us", "exposed_other_us", "idle_us",
)  # fmt: skip
_SHORTCUTS = {  # column -> its heading here
    "exposed_us": "exposed",
    "same_local_batch_us": "added",
    "same_local_batch_low_us": "low",
    "same_local_batch_high_us": "high",
    "same_local_batch_error_exposed_us": "error of added",
    "transfer_us": "transfers",
    "ring_us": "ring",
    "ring_error_us": "error of ring",
}
FIRST_COLUMNS = (*_STEP, *_SHORTCUTS)
"""Of the two tables that are shown first."""


def step_table(comparison: Comparison) -> TextTable | None:
    """The parts of each measured cell's step."""
    return columns_table(
        comparison,
        "Where a step goes [{unit}]: traced step = compute + wait + transfer + other + idle",
        _STEP,
        summarised(comparison),
        [
            "means over ranks and traced steps; wait, transfer and other are exposed",
            *slowed_notes(comparison),
        ],
        {"weak_efficiency": "eff.[%]", "traced_step_us": "traced"},
    )


def shortcut_table(comparison: Comparison) -> TextTable | None:
    """The shortcuts on several devices; None of traces without a link."""
    if not comparison.timed and not comparison.has("ring_us"):
        return None
    return columns_table(
        comparison,
        "Measured (traced) against the shortcuts [{unit}]: shortcut = measured + error",
        tuple(_SHORTCUTS),
        [row for row in summarised(comparison) if row.devices > 1],
        ["added: t_N(b)-t_1(b); low, high: its 95% interval"] if comparison.timed else [],
        headings=_SHORTCUTS,
    )


def slowed_notes(comparison: Comparison) -> Iterator[str]:
    """Whose traced parts are not those of an untraced step."""
    slowed = {
        row.cell: ratio
        for row in comparison.rows.values()
        if (ratio := slowed_by_tracing(row)) is not None
    }
    if slowed:
        cells = ", ".join(f"{cell} {ratio:.1f}x" for cell, ratio in slowed.items())
        yield f"parts hold for the traced step alone, not for an untraced one; tracing slowed: {cells}"


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


def ring_notes(comparison: Comparison) -> Iterator[str]:
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
        yield f"ring formula{what} on {', '.join(counts)} devices: {rate.description}"


def peak_notes(comparison: Comparison) -> Iterator[str]:
    """Which step the rates are of, and why a rate is not compared with a peak."""
    if not comparison.timed:
        yield "of the traced step: its untraced time is not known"
    counted = (row for row in comparison.rows.values() if row.flops_per_step is not None)
    without = (row for row in counted if row.mfu is None and row.cpu_peak_share is None)
    for reason, names in grouped((row.reasons["used_points"], row.cell) for row in without).items():
        yield f"not compared with a peak ({', '.join(names)}): {reason}"


def traffic_notes(comparison: Comparison) -> Iterator[str]:
    if rooted := dict.fromkeys(
        prediction.cell for prediction in comparison.predictions if prediction.kind in ROOTED
    ):
        yield (
            "transfer and wait do not add up to comm. in cells with broadcasts or reduces, which have neither: "
            f"{', '.join(rooted)}"
        )


TIME = view_of(
    "Time per step and throughput",
    "step_us step_low_us step_high_us step_count samples_per_s weak_efficiency strong_speedup",
)
MEMORY = view_of("Memory per device", "state_bytes peak_allocated_bytes peak_reserved_bytes")
BREAKDOWN = view_of(
    "Communication in a traced step: hidden + exposed; the cost of tracing and of contention",
    "communication_us hidden_us exposed_us wait_us transfer_us tracer_us slowdown_us",
    slowed_notes,
)
PHASES = view_of(
    "Time of each phase in a traced step, without communication",
    "host_to_device_us forward_us backward_us optimizer_us",
    slowed_notes,
)
TRAFFIC = view_of(
    "What moves",
    "bytes_per_step collectives_per_step transfer_us algbw_gb_per_s busbw_gb_per_s communication_share",
    traffic_notes,
    several=True,
)
ESTIMATES = view_of(
    "Subtraction estimates, and their difference from exposed communication",
    "exposed_us same_local_batch_us same_local_batch_error_exposed_us ideal_split_us "
    "ideal_split_error_exposed_us same_total_us ring_us ring_error_us",
    ring_notes,
    several=True,
    context=["exposed_us"],
)
BANDWIDTH = view_of(
    "Effective bandwidth by three definitions, and how much of a link and a calibration it uses",
    "wire_bytes_per_step subtraction_gb_per_s communication_gb_per_s transfer_gb_per_s link_gb_per_s "
    "transfer_of_link calibrated_gb_per_s transfer_of_calibration",
    several=True,
)
DEVICE_USE = view_of(
    "How much of a device is used",
    "flops_per_step achieved_tflops mfu cpu_peak_tflops cpu_peak_share",
    peak_notes,
)
DEVICE_POINTS = view_of(
    "Where 100 points of a device's peak go in a traced step",
    "used_points lost_wait_points lost_transfer_points lost_other_points lost_idle_points "
    "lost_contention_points lost_below_peak_points",
)
CHECKS = view_of("Checks", "tracer_cost counter_span_ratio counter_buckets_equal")


def comparison_csv(comparison: Comparison) -> str:
    """All columns in their stored units (given in the headings), and a column with the reasons for
    missing values.
    """
    missing = [
        "; ".join(f"{name}: {why}" for name, why in row.reasons.items())
        for row in comparison.rows.values()
    ]
    values = {column.name: whole_numbers(comparison.values(column.name)) for column in columns()}
    values["missing"] = list(missing)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(values)
    rows.writerows(
        [NA if value is None else value for value in row]
        for row in zip(*values.values(), strict=True)
    )
    return text.getvalue()
