"""Predictions by collective as a table, and findings about inaccurate predictions with likely reasons."""

from collections.abc import Callable, Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.nccl_choices import ChoiceRow
from dpscope.analysis.findings.estimate_gaps import NOTABLE
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, show, show_bytes, show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

PREDICTION_TOLERANCE = 0.25
SMALL_BYTES = 256 << 10  # below it, an all-reduce's time is mostly latency
OVERLAP = 0.2
_MOST_ROWS = 6  # per cell

_ERROR = Unit("%", 0.01, 1)


def collective_table(
    comparison: Comparison, choice: Callable[[CollectivePrediction], ChoiceRow | None] = lambda one: None
) -> TextTable | None:
    """Measured and predicted times of each multi-device cell's collectives by kind and size; None without predictions.

    `choice` returns NCCL's choice for a collective, if known, which is shown with its formula and the ring formula.
    """
    by_cell: dict[str, list[CollectivePrediction]] = {}
    for one in comparison.predictions:
        by_cell.setdefault(one.cell, []).append(one)
    shown = [one for rows in by_cell.values() for one in rows[:_MOST_ROWS]]
    if not any(one.predicted_us is not None for one in shown):
        return None
    time = choose_unit("time", [time for one in shown for time in (one.measured_us, one.expected_us)])
    slowest = any(one.measured_slowest_us is not None for one in shown)
    calibrated = any(one.predicted_slowest_us is not None for one in shown)
    choices = [choice(one) for one in shown]
    with_choice = any(one is not None for one in choices)
    chosen_headings = ("NCCL chose", f"ring [{time.label}]", f"its formula [{time.label}]")
    headings = (
        "size",
        *(chosen_headings if with_choice else ()),
        "per step",
        f"measured [{time.label}]",
        f"predicted [{time.label}]",
        "error [%]",
        *((f"slowest [{time.label}]",) if slowest else ()),
        *((f"calib. [{time.label}]",) if slowest and calibrated else ()),
    )
    return TextTable(
        title="Predicted and measured, per collective (median transfer)",
        headings=("cell", "collective", *headings),
        rows=tuple(
            (
                one.cell,
                one.kind,
                show_bytes(one.size_bytes),
                *(_choice_cells(chosen, time) if with_choice else ()),
                f"{one.per_step:.3g}",
                show(one.measured_us, time),
                show(one.expected_us, time),
                show(one.relative_error, _ERROR),
                *((show(one.measured_slowest_us, time),) if slowest else ()),
                *((show(one.predicted_slowest_us, time),) if slowest and calibrated else ()),
            )
            for one, chosen in zip(shown, choices, strict=True)
        ),
        notes=tuple(_table_notes(shown, len(comparison.predictions) - len(shown))),
    )


def _choice_cells(chosen: ChoiceRow | None, unit: Unit) -> tuple[str, str, str]:
    if chosen is None:
        return NA, NA, NA
    return chosen.choice, show(chosen.ring_us, unit), show(chosen.formula_us, unit)


def _table_notes(shown: list[CollectivePrediction], left_out: int) -> Iterator[str]:
    if any(one.measured_us is None for one in shown):
        yield "measured NA: broadcasts and reduces do not make all ranks wait for each other, so they have no transfer time"
    for reason in dict.fromkeys(one.reason for one in shown if one.reason):
        yield f"predicted NA: {reason}"
    for range_text in dict.fromkeys(one.extrapolated for one in shown if one.extrapolated):
        yield f"predicted beyond the calibration: {range_text}"
    if any(one.in_step_us is not None for one in shown):
        yield "predictions for overlapping all-reduces include the slowdown that the calibration measured next to other work"
    if any(one.measured_slowest_us is not None for one in shown):
        yield (
            "measured and predicted: the fastest rank, as transfers are defined; slowest: the slowest rank, waiting included"
            + (
                "; calib.: the slowest rank of a calibration, in which all ranks start together"
                if any(one.predicted_slowest_us is not None for one in shown)
                else ""
            )
        )
    if left_out:
        yield f"{left_out} smaller sizes are not shown"


def prediction_findings(comparison: Comparison, shared_cores: bool = False) -> Iterator[Finding]:
    """Cells whose transfers, exposed communication or single collectives differ from the prediction by PREDICTION_TOLERANCE.

    Also reports what the calibration lacks to predict the cells. `shared_cores`: communication and compute share a CPU.
    """
    for row, off, single in _cells_off(comparison):
        yield _off_finding(row, off, single, shared_cores, comparison.of_script or comparison.of_traces)
    yield from _lacking(comparison)
    yield from _other_engines(comparison)


def off_notes(comparison: Comparison, shared_cores: bool = False) -> Iterator[str]:
    """Notes for the table of predictions: which cells are off, by how much, and why."""
    for row, off, single in _cells_off(comparison):
        errors = [row.number(f"predicted_{name}_error") or 0.0 for name in off]
        worst = max((*errors, *(one.relative_error or 0.0 for one in single)), key=abs)
        why = likely_reasons(row, off, [one.relative_error or 0.0 for one in single], shared_cores)
        yield f"{row.cell} is up to {worst:+.0%} off: {'; '.join(why) if why else 'nothing in this run explains it'}"


def _cells_off(comparison: Comparison) -> Iterator[tuple[CellRow, list[str], list[CollectivePrediction]]]:
    for row in comparison.rows.values():
        off = [name for name in ("transfer", "exposed") if _off(row.number(f"predicted_{name}_error"))]
        single = [one for one in comparison.predictions if one.cell == row.cell and _off(one.relative_error)]
        single = [one for one in single if _counts(one, row.transfer_us)]
        if off or single:
            yield row, off, single


def _other_engines(comparison: Comparison) -> Iterator[Finding]:
    """Cells that ran on another NCCL engine than the calibration."""
    by_calibration = [row.cell for row in comparison.rows.values() if row.prediction_source == "calibration"]
    for engine in sorted(set(comparison.other_engines.values())):
        cells = [cell for cell in by_calibration if comparison.other_engines.get(cell) == engine]
        if cells:
            yield RunCode.CALIBRATION_OTHER_ENGINE.finding(
                f"{', '.join(cells)} ran on {engine}, the calibration on {comparison.calibrated_engine}: collectives may be "
                "faster or slower there."
            )


def _off_finding(
    row: CellRow, off: list[str], single: list[CollectivePrediction], shared_cores: bool, of_script: bool
) -> Finding:
    calibrated = row.prediction_source == "calibration"
    errors = "; ".join([*(_step_error(row, name) for name in off), *([_collective_errors(single)] if single else [])])
    why = likely_reasons(row, off, [one.relative_error or 0.0 for one in single], shared_cores)
    why += dict.fromkeys(f"sizes beyond the calibration: {one.extrapolated}" for one in single if one.extrapolated)
    overlaps = traits_of(row.strategy).reducer and (row.hidden_us or 0.0) > OVERLAP * (row.communication_us or 0.0)
    compared = (
        "compare with a cell whose communication does not overlap compute (--overlap off)"
        if overlaps and not of_script
        else "the table of collectives shows which of them are off"
    )
    return RunCode.PREDICTION_OFF.finding(
        message=f"{row.cell}: predicted from the {'calibration' if calibrated else 'link specification'}: "
        f"{errors}. Likely reasons: {'; '.join(why) if why else 'nothing in this run explains it'}",
        next_step=compared if calibrated else "calibrate on this machine and predict from that",
        severity="warning" if calibrated else "info",
    )


def _off(error: float | None) -> bool:
    return error is not None and abs(error) > PREDICTION_TOLERANCE


def _counts(one: CollectivePrediction, transfer_us: float | None) -> bool:
    """Whether a collective is a notable part of a step's transfers; small ones are mostly latency and noise."""
    return one.measured_us is not None and one.per_step * one.measured_us > NOTABLE * (transfer_us or 0.0)


def _step_error(row: CellRow, name: str) -> str:
    error, predicted = row.number(f"predicted_{name}_error"), row.number(f"predicted_{name}_us")
    assert error is not None
    what = "exposed communication" if name == "exposed" else "transfers"
    # No collective of a strategy with peer copies is matched, so its transfers are all of its communication.
    of_all = name == "transfer" and traits_of(row.strategy).peer_copies
    measured = row.number("communication_us" if of_all else f"{name}_us")
    return f"{what} {show_time(predicted)} a step, measured {show_time(measured)} ({error:+.0%})"


def _collective_errors(single: list[CollectivePrediction]) -> str:
    each = (f"{show_bytes(one.size_bytes)} {one.kind} {one.relative_error:+.0%}" for one in single[:_MOST_ROWS])
    return f"single collectives: {', '.join(each)}"


def _lacking(comparison: Comparison) -> Iterator[Finding]:
    """What the calibration would also need in order to predict exposed communication."""
    lacking = [one for one in comparison.predictions if one.predicted_us is None]
    calibrated = any(row.prediction_source == "calibration" for row in comparison.rows.values())
    if not lacking or not calibrated:
        return
    kinds = sorted({one.kind for one in comparison.predictions})
    place = "calibration.json, and pass it with --calibration" if comparison.of_traces else "<this run's folder>"
    cells = ", ".join(dict.fromkeys(one.cell for one in lacking))
    yield RunCode.CALIBRATION_INCOMPLETE.finding(
        message=f"{'; '.join(dict.fromkeys(one.reason for one in lacking))}, which {cells} "
        f"{'use' if ',' in cells else 'uses'}: exposed communication is not predicted there",
        next_step=f"calibrate all collectives that the run uses: dpscope calibrate --collectives {','.join(kinds)} "
        f"--devices {','.join(map(str, sorted({one.ranks for one in comparison.predictions})))} --out {place}",
    )


def likely_reasons(row: CellRow, off: list[str], single: Sequence[float] = (), shared_cores: bool = False) -> list[str]:
    """The reasons for an inaccurate prediction that the run's numbers show.

    `off` lists the quantities of a step that are off, `single` the relative errors of single collectives that are. Waiting
    explains only exposed communication, since transfers include none; latency only errors of a specification, since a
    calibration includes it.
    """
    errors = [*(row.number(f"predicted_{name}_error") or 0.0 for name in off), *single]
    if max(errors) > 0 and min(errors) >= 0:
        return _too_high(row)
    found = []
    total, hidden, wait = row.communication_us, row.hidden_us, row.exposed_wait_us
    if total and hidden is not None and hidden > OVERLAP * total:
        slower, bounds = row.slowdown_us, row.interval("slowdown_us")
        too = (
            f", and in traced steps compute takes {show_time(slower)} longer than alone"
            if slower is not None and bounds is not None and bounds.low > 0
            else ""
        )
        what = "cores shared with computing" if shared_cores else "contention"
        found.append(f"{what}: {hidden / total:.0%} of communication ran during compute{too}")
    if "exposed" in off and total and wait is not None and wait > NOTABLE * total:
        only = " (of exposed communication alone)" if len(off) > 1 or single else ""
        found.append(f"waiting{only}: {show_time(wait)} a step for late ranks, which the model does not include")
    queued = row.queue_us
    if total and queued is not None and queued > NOTABLE * total:
        found.append(f"queueing: {show_time(queued)} a step for a free worker thread, which gloo's ranges may include")
    if row.prediction_source == "specification":
        moved, count = row.bytes_per_step, row.collectives_per_step
        if moved is not None and count and moved / count < SMALL_BYTES:
            found.append(
                f"small messages: {show_bytes(moved / count)} on average, where latency matters more than bandwidth"
            )
        found.append("no calibration: a specification is an upper bound on speed and does not include latency")
    return found


def _too_high(row: CellRow) -> list[str]:
    if row.prediction_source == "specification":
        return ["the link is faster than the given specification, or the switch reduces (NVLink SHARP)"]
    return ["the calibration was made under other conditions (load, clocks, settings), or did not time these sizes"]
