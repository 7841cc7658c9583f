"""Predictions by collective as a table, and findings where a prediction is off, with the reasons that the run shows."""

from collections.abc import Callable, Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellValues, interval_of, number
from dpscope.analysis.findings.estimate_gaps import NOTABLE, comparison_rows
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, show, show_bytes, show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

PREDICTION_TOLERANCE = 0.25
SMALL_BYTES = 256 << 10  # below this an all-reduce's time is mostly latency
OVERLAP = 0.2
_MOST_ROWS = 6  # of a cell

_ERROR = Unit("%", 0.01, 1)


def collective_table(
    comparison: Comparison, choice: Callable[[CollectivePrediction], str | None] = lambda one: None
) -> TextTable | None:
    """Every multi-device cell's collectives by kind and size, measured and predicted; None without any prediction.

    `choice` is the algorithm and protocol that NCCL chose for one, if it is known.
    """
    by_cell: dict[str, list[CollectivePrediction]] = {}
    for one in comparison.predictions:
        by_cell.setdefault(one.cell, []).append(one)
    shown = [one for rows in by_cell.values() for one in rows[:_MOST_ROWS]]
    if not any(one.predicted_us is not None for one in shown):
        return None
    time = choose_unit("time", [time for one in shown for time in (one.measured_us, one.expected_us)])
    slowest = any(one.measured_slowest_us is not None for one in shown)
    choices = [choice(one) for one in shown]
    with_choice = any(choices)
    headings = (
        "size",
        *["NCCL chose"] * with_choice,
        "per step",
        f"measured [{time.label}]",
        f"predicted [{time.label}]",
        "error [%]",
        *((f"slowest [{time.label}]", f"calib. [{time.label}]") if slowest else ()),
    )
    return TextTable(
        title="Predicted against measured, per collective (median transfer)",
        headings=("cell", "collective", *headings),
        rows=tuple(
            (
                one.cell,
                one.kind,
                show_bytes(one.size_bytes),
                *[chosen or NA] * with_choice,
                f"{one.per_step:.3g}",
                show(one.measured_us, time),
                show(one.expected_us, time),
                show(one.relative_error, _ERROR),
                *((show(one.measured_slowest_us, time), show(one.predicted_slowest_us, time)) if slowest else ()),
            )
            for one, chosen in zip(shown, choices, strict=True)
        ),
        notes=tuple(_table_notes(shown, len(comparison.predictions) - len(shown))),
    )


def _table_notes(shown: list[CollectivePrediction], left_out: int) -> Iterator[str]:
    if any(one.measured_us is None for one in shown):
        yield "measured NA: broadcasts and reduces do not make all ranks wait for each other, so a transfer time is not defined"
    for reason in dict.fromkeys(one.reason for one in shown if one.reason):
        yield f"predicted NA: {reason}"
    for said in dict.fromkeys(one.extrapolated for one in shown if one.extrapolated):
        yield f"predicted beyond the calibration: {said}"
    if any(one.in_step_us is not None for one in shown):
        yield "all-reduces that overlap are predicted with the slowdown that the calibration timed beside others and compute"
    if any(one.measured_slowest_us is not None for one in shown):
        yield (
            "measured and predicted: the rank that took least, as transfers are; slowest: the rank that took longest, waiting "
            "included; calib.: the slowest rank of a calibration, whose ranks begin together"
        )
    if left_out:
        yield f"{left_out} smaller sizes are left out"


def prediction_findings(comparison: Comparison, shared_cores: bool = False) -> Iterator[Finding]:
    """Where predictions are more than PREDICTION_TOLERANCE off: a cell's transfers, its exposed communication, a collective.

    And what the calibration lacks to predict the run's cells. `shared_cores`: communicating and computing share a CPU.
    """
    for values, off, single in _cells_off(comparison):
        yield _off_finding(values, off, single, shared_cores, comparison.of_script or comparison.of_traces)
    yield from _lacking(comparison)
    yield from _other_engines(comparison)


def off_notes(comparison: Comparison, shared_cores: bool = False) -> Iterator[str]:
    """Where the numbers stand: which cells' predictions are off, by how much, and why."""
    for values, off, single in _cells_off(comparison):
        errors = [number(values, f"predicted_{name}_error") or 0.0 for name in off]
        worst = max((*errors, *(one.relative_error or 0.0 for one in single)), key=abs)
        why = likely_reasons(values, off, [one.relative_error or 0.0 for one in single], shared_cores)
        yield f"{values['cell']} is up to {worst:+.0%} off: {'; '.join(why) if why else 'nothing in this run explains it'}"


def _cells_off(comparison: Comparison) -> Iterator[tuple[CellValues, list[str], list[CollectivePrediction]]]:
    for values in comparison_rows(comparison):
        off = [name for name in ("transfer", "exposed") if _off(number(values, f"predicted_{name}_error"))]
        single = [one for one in comparison.predictions if one.cell == values["cell"] and _off(one.relative_error)]
        single = [one for one in single if _counts(one, number(values, "transfer_us"))]
        if off or single:
            yield values, off, single


def _other_engines(comparison: Comparison) -> Iterator[Finding]:
    """Which cells a calibration of another engine predicts."""
    by_calibration = comparison.table.loc[comparison.table["prediction_source"].eq("calibration").fillna(False), "cell"]
    for engine in sorted(set(comparison.other_engines.values())):
        cells = [cell for cell in by_calibration if comparison.other_engines.get(cell) == engine]
        if cells:
            yield RunCode.CALIBRATION_OTHER_ENGINE.finding(
                f"{', '.join(cells)} ran on {engine}, the calibration on {comparison.calibrated_engine}: collectives may be "
                "faster or slower there."
            )


def _off_finding(
    values: CellValues, off: list[str], single: list[CollectivePrediction], shared_cores: bool, of_script: bool
) -> Finding:
    calibrated = values["prediction_source"] == "calibration"
    said = "; ".join([*(_said(values, name) for name in off), *([_said_of_each(single)] if single else [])])
    why = likely_reasons(values, off, [one.relative_error or 0.0 for one in single], shared_cores)
    why += dict.fromkeys(f"sizes beyond the calibration: {one.extrapolated}" for one in single if one.extrapolated)
    compared = (
        "see in the table of collectives which of them are off"
        if of_script
        else "compare with a cell whose communication does not overlap compute (--overlap off)"
    )
    return RunCode.PREDICTION_OFF.finding(
        message=f"{values['cell']}: predicted from the {'calibration' if calibrated else 'link specification'}: "
        f"{said}. Likely reasons: {'; '.join(why) if why else 'nothing in this run explains it'}",
        next_step=compared if calibrated else "calibrate on this machine and predict from that",
        severity="warning" if calibrated else "info",
    )


def _off(error: float | None) -> bool:
    return error is not None and abs(error) > PREDICTION_TOLERANCE


def _counts(one: CollectivePrediction, transfer_us: float | None) -> bool:
    """Whether a collective is a notable part of a step's transfers: small ones are all latency and noise."""
    return one.measured_us is not None and one.per_step * one.measured_us > NOTABLE * (transfer_us or 0.0)


def _said(values: CellValues, name: str) -> str:
    error, predicted = number(values, f"predicted_{name}_error"), number(values, f"predicted_{name}_us")
    assert error is not None
    what = "exposed communication" if name == "exposed" else "transfers"
    of_all = (
        name == "transfer" and traits_of(str(values["strategy"])).peer_copies
    )  # of whose communication no part is matched
    measured = number(values, "communication_us" if of_all else f"{name}_us")
    return f"{what} {show_time(predicted)} a step, measured {show_time(measured)} ({error:+.0%})"


def _said_of_each(single: list[CollectivePrediction]) -> str:
    each = (f"{show_bytes(one.size_bytes)} {one.kind} {one.relative_error:+.0%}" for one in single[:_MOST_ROWS])
    return f"one by one {', '.join(each)}"


def _lacking(comparison: Comparison) -> Iterator[Finding]:
    """What a calibration would have to hold besides, for exposed communication to be predicted."""
    lacking = [one for one in comparison.predictions if one.predicted_us is None]
    calibrated = comparison.table["prediction_source"].eq("calibration").fillna(False).any()
    if not lacking or not calibrated:
        return
    kinds = sorted({one.kind for one in comparison.predictions})
    place = "calibration.json, and give it with --calibration" if comparison.of_traces else "<this run's folder>"
    cells = ", ".join(dict.fromkeys(one.cell for one in lacking))
    yield RunCode.CALIBRATION_INCOMPLETE.finding(
        message=f"{'; '.join(dict.fromkeys(one.reason for one in lacking))}, which {cells} "
        f"{'use' if ',' in cells else 'uses'}: exposed communication is not predicted there",
        next_step=f"calibrate all that the run uses: dpscope calibrate --collectives {','.join(kinds)} "
        f"--devices {','.join(map(str, sorted({one.ranks for one in comparison.predictions})))} --out {place}",
    )


def likely_reasons(
    values: CellValues, off: list[str], single: Sequence[float] = (), shared_cores: bool = False
) -> list[str]:
    """What in this run's own numbers can explain the distance; nothing is guessed.

    `off` names what of a step is off, `single` has the relative errors of single collectives that are. Transfers hold no
    waiting, so that explains exposed communication alone; a calibration's lines hold latency, a specification does not.
    """
    errors = [*(number(values, f"predicted_{name}_error") or 0.0 for name in off), *single]
    if max(errors) > 0 and min(errors) >= 0:
        return _too_high(values)
    found = []
    total, hidden, wait = (number(values, name) for name in ("communication_us", "hidden_us", "exposed_wait_us"))
    if total and hidden is not None and hidden > OVERLAP * total:
        slower, bounds = number(values, "slowdown_us"), interval_of(values, "slowdown_us")
        too = (
            f", and compute takes {show_time(slower)} longer than alone in traced steps"
            if slower is not None and bounds is not None and bounds.low > 0
            else ""
        )
        what = "cores shared with computing" if shared_cores else "contention"
        found.append(f"{what}: {hidden / total:.0%} of communication ran under compute{too}")
    if "exposed" in off and total and wait is not None and wait > NOTABLE * total:
        only = " (of exposed communication alone)" if len(off) > 1 or single else ""
        found.append(f"waiting{only}: {show_time(wait)} of it a step for late ranks, which the model leaves out")
    queued = number(values, "queue_us")
    if total and queued is not None and queued > NOTABLE * total:
        found.append(
            f"queueing: {show_time(queued)} a step until a worker thread was free, which gloo's ranges may include"
        )
    if values["prediction_source"] == "specification":
        moved, count = number(values, "bytes_per_step"), number(values, "collectives_per_step")
        if moved is not None and count and moved / count < SMALL_BYTES:
            found.append(
                f"small messages: {show_bytes(moved / count)} on average, where latency counts more than bandwidth"
            )
        found.append("no calibration: a specification is an upper bound on speed and leaves latency out")
    return found


def _too_high(values: CellValues) -> list[str]:
    if values["prediction_source"] == "specification":
        return ["the link is faster than the given specification, or the switch reduces (NVLink SHARP)"]
    return [
        "the calibration was made under other conditions (load, clocks, settings), or these sizes lie between those it timed"
    ]
