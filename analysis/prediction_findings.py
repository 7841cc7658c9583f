"""Predictions by collective as a table, and findings where a prediction is off, with the reasons that the run shows."""

from collections.abc import Iterator

from dpscope.analysis.comparison import Comparison
from dpscope.analysis.estimate_reasons import NOTABLE, Values, number, records
from dpscope.analysis.predictions import CollectivePrediction
from dpscope.analysis.tables import TextTable
from dpscope.analysis.units import Unit, choose_unit, show, show_bytes, show_time
from dpscope.profiling.run_types import Finding

TOLERANCE = 0.25
SMALL_BYTES = 256 << 10  # below this an all-reduce's time is mostly latency
OVERLAP = 0.2
_MOST_ROWS = 6  # of a cell

_ERROR = Unit("%", 0.01, 1)


def collective_table(comparison: Comparison) -> TextTable | None:
    """Matched collectives by kind and size, measured and predicted; None without any prediction."""
    known = [one for one in comparison.predictions if one.relative_error is not None]
    by_cell: dict[str, list[CollectivePrediction]] = {}
    for one in known:
        by_cell.setdefault(one.cell, []).append(one)
    shown = [one for rows in by_cell.values() for one in rows[:_MOST_ROWS]]
    if not shown:
        return None
    time = choose_unit("time", [one.measured_us for one in shown])
    size = choose_unit("bytes", [one.size_bytes for one in shown])
    headings = (
        f"size [{size.label}]",
        "per step",
        f"measured [{time.label}]",
        f"predicted [{time.label}]",
        "error [%]",
    )
    left = len(known) - len(shown)
    return TextTable(
        title="Predicted against measured, per collective (median transfer)",
        headings=("cell", "collective", *headings),
        rows=tuple(
            (
                one.cell,
                one.kind,
                show(one.size_bytes, size),
                f"{one.per_step:.3g}",
                show(one.measured_us, time),
                show(one.predicted_us, time),
                show(one.relative_error, _ERROR),
            )
            for one in shown
        ),
        notes=(
            "broadcasts and reduces do not make every rank wait for every other, so they have no measured transfer",
            *([f"{left} smaller sizes are left out"] if left else []),
        ),
    )


def prediction_findings(comparison: Comparison) -> Iterator[Finding]:
    """A finding for each cell whose transfer or exposed communication is predicted with more than TOLERANCE error."""
    for values in records(comparison):
        off = [name for name in ("transfer", "exposed") if _off(values, name)]
        if not off:
            continue
        source = values["prediction_source"]
        said = "; ".join(_said(values, name) for name in off)
        why = likely_reasons(values, off)
        yield Finding(
            severity="warning" if source == "calibration" else "info",
            code="prediction_off",
            message=f"{values['cell']}: predicted from the {'calibration' if source == 'calibration' else 'link specification'}: "
            f"{said}. Likely reasons: {'; '.join(why) if why else 'none that this run shows'}",
            next_step="calibrate on this machine and predict from that"
            if source != "calibration"
            else "compare with a cell whose communication does not run under compute (--overlap off)",
        )


def _off(values: Values, name: str) -> bool:
    error = number(values, f"predicted_{name}_error")
    return error is not None and abs(error) > TOLERANCE


def _said(values: Values, name: str) -> str:
    error, predicted = number(values, f"predicted_{name}_error"), number(values, f"predicted_{name}_us")
    assert error is not None
    assert predicted is not None
    what = "exposed communication" if name == "exposed" else "transfers"
    return f"{what} {show_time(predicted)} a step, measured {show_time(predicted / (1 + error))} ({error:+.0%})"


def likely_reasons(values: Values, off: list[str]) -> list[str]:
    """What in this run's own numbers can explain the distance; nothing is guessed."""
    errors = [number(values, f"predicted_{name}_error") or 0.0 for name in off]
    if max(errors) > 0 and min(errors) >= 0:
        return _too_high(values)
    found = []
    total, hidden, wait = (number(values, name) for name in ("communication_us", "overlapped_us", "wait_us"))
    if total and hidden is not None and hidden > OVERLAP * total:
        slower, low = number(values, "added_compute_us"), number(values, "added_compute_low_us")
        too = (
            f", and compute takes {show_time(slower)} longer than alone"
            if slower is not None and (low or 0) > 0
            else ""
        )
        found.append(f"contention: {hidden / total:.0%} of communication ran under compute{too}")
    if "exposed" in off and total and wait is not None and wait > NOTABLE * total:
        found.append(f"waiting: {show_time(wait)} a step for later ranks, which the model does not have")
    queued = number(values, "queue_us")
    if total and queued is not None and queued > NOTABLE * total:
        found.append(
            f"queueing: {show_time(queued)} a step until a worker thread was free, which gloo's ranges may include"
        )
    moved, count = number(values, "bytes_per_step"), number(values, "collectives_per_step")
    if moved is not None and count and moved / count < SMALL_BYTES:
        found.append(
            f"small messages: {show_bytes(moved / count)} on average, where latency counts more than bandwidth"
        )
    if values["prediction_source"] == "specification":
        found.append("no calibration: a specification is a bound that no transfer reaches, and has no latency")
    return found


def _too_high(values: Values) -> list[str]:
    if values["prediction_source"] == "specification":
        return ["the link is faster than the given specification, or the switch reduces (NVLink SHARP)"]
    return ["the calibration was made under other conditions (other load, clocks, settings), or sizes between its own"]
