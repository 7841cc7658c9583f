"""Tables of estimates and predictions next to what was measured."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.predictions import MOST_ROWS, cells_off, off_notes
from dpscope.analysis.report.comparison_tables import columns_table
from dpscope.analysis.runs.cell_findings import SUSPECT
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import CELL, Field, TextTable, Unknown, table_of
from dpscope.analysis.text.units import choose_unit, show, show_bytes
from dpscope.profiling.records.calibration import Choice
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.strategies import traits_of

_IDENTITY = {  # heading -> column without _us, and what it is
    "t_N(b)-t_1(b)": (
        "same_local_batch",
        "Median step on N devices minus the median step on one device, at the same batch per device",
    ),
    "exposed": ("exposed", "Exposed communication, which one device does not have"),
    "compute": ("slowdown", "Compute on N devices minus compute on one"),
    "idle": ("added_idle", "Idle on N devices minus idle on one"),
    "unexplained": (
        "added_tracer",
        "The part of the untraced difference that the traced steps do not explain",
    ),
}
_HALF_WIDTH = (
    "±: half the 95% interval, on the wider side; compute and idle: change compared with one device; "
    "unexplained: the part of the untraced difference that the traced steps do not explain"
)


def identity_table(comparison: Comparison) -> TextTable:
    """The four terms of t_N(b) - t_1(b) with half the width of their 95% intervals."""
    rows = [row for row in comparison.rows.values() if row.added_tracer_us is not None]
    columns = [f"{name}_us" for name, _ in _IDENTITY.values()]
    unit = choose_unit("time", [row.number(name) for row in rows for name in columns])

    def with_half_width(column: str, row: CellRow) -> str:
        value, bounds = row.number(column), row.interval(column)
        half = None if value is None or bounds is None else bounds.half_width(value)
        return f"{show(value, unit)} ±{show(half, unit)}"

    fields = [
        Field(
            f"{heading} [{unit.label}]",
            methodcaller("number", column),
            unit,
            meaning,
            column,
            partial(with_half_width, column),
        )
        for column, (heading, (_, meaning)) in zip(columns, _IDENTITY.items(), strict=True)
    ]
    unknown = [
        Unknown("fewer than 5 steps, or too few repeats", "±", row.cell)
        for row in rows
        if row.interval("same_local_batch_us") is None or row.interval("exposed_us") is None
    ]
    title = "Where the added time t_N(b) - t_1(b) goes: exposed + compute + idle + unexplained"
    return table_of(title, (CELL, *fields), rows, [_HALF_WIDTH], unknown)


_SOURCES = {
    "calibration": "calibration, which measured the collectives without compute",
    "specification": "link's specification by the ring formula without latency, a lower bound",
}
_COMPARED = "transfer: of the collectives that have one (rooted broadcasts and reduces have none); for DP all communication"
_LATER = "the calibration was made after the start of the run, so these are not forecasts"
_PREDICTED = (
    "transfer_us", "predicted_transfer_us", "predicted_transfer_error",
    "exposed_us", "predicted_exposed_us", "predicted_exposed_error",
)  # fmt: skip


def prediction_table(run: RunData, comparison: Comparison) -> TextTable | None:
    """Predicted and measured per step; None where nothing was predicted."""
    if not (comparison.has("predicted_transfer_us") or comparison.has("predicted_exposed_us")):
        return None
    several = [row for row in comparison.rows.values() if row.devices > 1]
    notes = [_COMPARED, *_bases(several), *off_notes(comparison, run.device_type == "cpu")]
    notes += _engine_notes(run)
    notes += [_LATER] if comparison.calibrated_later else []
    title = "Predicted and measured, per step"
    return columns_table(comparison, title, _PREDICTED, several, notes)


def _bases(rows: Sequence[CellRow]) -> Iterator[str]:
    """What predictions are based on, with the cells of each basis."""
    predicted = [row for row in rows if row.text("prediction_source") is not None]
    sources = grouped((row.text("prediction_source") or "", row.cell) for row in predicted)
    for source, cells in sorted(sources.items()):
        yield f"predicted from the {_SOURCES[source]}: {', '.join(cells)}"
    contended = grouped((row.text("prediction_contention") or "", row.cell) for row in predicted)
    idle = set(contended.pop("", ()))
    for ratio, cells in sorted(contended.items()):
        yield f"with contention as calibrated, {ratio}: {', '.join(cells)}"
    alone = [row.cell for row in predicted if row.cell in idle and traits_of(row.strategy).reducer]
    if alone:
        yield f"without contention, as on an idle machine: {', '.join(alone)}"


def _engine_notes(run: RunData) -> Iterator[str]:
    """The NCCL engine of torch that the prediction of exposed communication assumes, if NCCL was
    used.
    """
    engines = {
        rank.nccl_engine
        for data in run.measured
        for _, rank in data.ranks
        if rank.nccl_engine is not None
    }
    if SUSPECT in engines:
        yield (
            "exposed is predicted for torch's engine ProcessGroupNCCL, whose all-reduces overlap the backward pass; whether "
            f"those of {SUSPECT}, which cells used, do so is not confirmed on hardware"
        )
    elif engines:
        yield f"exposed is predicted for torch's engine {', '.join(sorted(engines))}, which the cells used"


_CHOSEN = "Algorithm and protocol in NCCL's log, at this size or at both neighbouring ones"
_SLOWEST = "Mean over the collectives of the longest duration over the ranks, waiting included"
_CALIBRATED = (
    "The slowest rank in the calibration, in which all ranks start together and none waits"
)
_COLLECTIVE = (
    CELL,
    Field("collective", "kind", meaning="Kind of the collective"),
    Field(
        "size",
        "size_bytes",
        meaning="The larger of a rank's input and output buffer",
        text=lambda one: show_bytes(one.size_bytes),
    ),
    Field(
        "per step",
        "per_step",
        meaning="Number per rank and step",
        text=lambda one: f"{one.per_step:.3g}",
    ),
    Field("measured", "measured_us", "time", "Mean transfer: the shortest duration over the ranks"),
    Field("predicted", "expected_us", "time", "The model's result for this size"),
    Field("error", "relative_error", "share", "Predicted over measured, minus 1"),
    Field("slowest", "measured_slowest_us", "time", _SLOWEST),
    Field("calib.", "predicted_slowest_us", "time", _CALIBRATED),
)
Chosen = Callable[[CollectivePrediction], Choice | None]


def collective_table(comparison: Comparison, choice: Chosen = lambda one: None) -> TextTable | None:
    """Measured and predicted times of each multi-device cell's collectives by kind and size; None
    without predictions.

    `choice` returns NCCL's choice for a collective, if known.
    """
    shown = _shown(comparison)
    if not any(collective.predicted_us is not None for collective in shown):
        return None
    slowest = any(collective.measured_slowest_us is not None for collective in shown)
    calibrated = slowest and any(
        collective.predicted_slowest_us is not None for collective in shown
    )
    chosen = Field("NCCL chose", lambda one: getattr(choice(one), "words", None), meaning=_CHOSEN)
    fields = (
        *_COLLECTIVE[:3],
        *([chosen] if any(choice(collective) is not None for collective in shown) else ()),
        *_COLLECTIVE[3 : 9 if calibrated else 8 if slowest else 7],
    )
    notes = [*_collective_notes(shown, slowest, calibrated)]
    if left_out := len(comparison.predictions) - len(shown):
        notes.append(f"{left_out} more not shown")
    times = [
        time for collective in shown for time in (collective.measured_us, collective.expected_us)
    ]
    title = "Predicted and measured, per collective (mean transfer)"
    return table_of(title, fields, shown, notes, times=times)


def _shown(comparison: Comparison) -> list[CollectivePrediction]:
    """The first of each cell, and those that are far off, which findings name."""
    named = set()
    for cell in cells_off(comparison):
        off = cell.collectives
        named |= set(off[:MOST_ROWS])
        named |= set(sorted(off, key=lambda collective: abs(collective.relative_error or 0.0))[-1:])
    by_cell = grouped((prediction.cell, prediction) for prediction in comparison.predictions)
    return [
        one for rows in by_cell.values() for one in rows if one in rows[:MOST_ROWS] or one in named
    ]


def _collective_notes(
    shown: Sequence[CollectivePrediction], slowest: bool, calibrated: bool
) -> Iterator[str]:
    for unmeasured in dict.fromkeys(
        collective.unmeasured for collective in shown if collective.unmeasured
    ):
        yield f"measured NA of {unmeasured}"
    for reason in dict.fromkeys(collective.reason for collective in shown if collective.reason):
        yield f"predicted NA: {reason}"
    for sizes in dict.fromkeys(
        collective.extrapolated for collective in shown if collective.extrapolated
    ):
        yield f"predicted beyond the calibration: {sizes}"
    if any(collective.in_step_us is not None for collective in shown):
        yield "predictions for overlapping all-reduces include the slowdown that the calibration measured next to other work"
    if not slowest:
        return
    together = (
        "; calib.: the slowest rank of a calibration, in which all ranks start together"
        if calibrated
        else ""
    )
    fastest = "measured and predicted: the fastest rank, as transfers are defined"
    timed = [collective for collective in shown if collective.predicted_slowest_us]
    if calibrated and all(
        collective.predicted_us == collective.predicted_slowest_us for collective in timed
    ):
        alone = "the slowest rank, as the calibration holds no other's times"
        fastest = f"measured: the fastest rank, as transfers are defined; predicted: {alone}"
    yield f"{fastest}; slowest: the slowest rank, waiting included{together}"
