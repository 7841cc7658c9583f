"""Predictions against what was measured: findings with likely reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.calibration_files import wrong_results
from dpscope.analysis.costs.calibration_fit import noise_message, noisy_fits
from dpscope.analysis.findings.facts import Scale
from dpscope.analysis.text.units import show_bytes, show_share
from dpscope.profiling.records.finding import Finding, Severity, grouped
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

NOTABLE = 0.05  # of communication or of the step
PREDICTION_TOLERANCE = 0.25
OVERLAP = 0.2
MOST_ROWS = 6  # per cell
_WHAT = {"transfer": "transfers", "exposed": "exposed communication"}
_UNEXPLAINED = "nothing in this run explains it"
_FASTER_LINK = (
    "the link is faster than the given specification, or the switch reduces (NVLink SHARP)"
)
_SLOWER_CALIBRATION = (
    "the calibration was slower than the run (load, clocks, settings), or did not time these "
    "sizes: calibrate again"
)
_NO_LATENCY = (
    "no calibration: a specification is an upper bound on speed and does not include latency"
)


def prediction_findings(comparison: Comparison, shared_cores: bool = False) -> Iterator[Finding]:
    """Cells whose transfers, exposed communication or single collectives differ from the prediction
    by PREDICTION_TOLERANCE.

    Also reports wrong results and noise in the calibration, what it lacks to predict the cells, and
    cells that ran on another NCCL engine. `shared_cores`: communication and compute share a CPU.
    """
    yield from wrong_results(comparison.collective_costs.calibration)
    noise = noisy_calibration(comparison)
    if noise is not None:
        yield noise
    for off in cells_off(comparison):
        if off.row.cell not in comparison.no_scaling:
            yield _off_finding(off, _cause(comparison, off, shared_cores))
    rows = comparison.rows.values()
    calibrated = [row.cell for row in rows if _is_calibrated(row)]
    if calibrated:
        yield from _lacking(comparison.predictions)
    yield from _on_other_engines(comparison, calibrated)


def _is_calibrated(row: CellRow) -> bool:
    return row.text("prediction_source") == "calibration"


def _on_other_engines(comparison: Comparison, calibrated: Sequence[str]) -> Iterator[Finding]:
    """The predicted cells that ran on another NCCL engine than their calibration."""
    engines = comparison.other_engines
    by_engine = grouped((engines[cell], cell) for cell in calibrated if cell in engines)
    for engine, cells in sorted(by_engine.items()):
        yield PlanCode.SETTINGS_DIFFER.finding(
            f"ran on {engine}, the calibration on {comparison.calibrated_engine}: collectives "
            "may be faster or slower there",
            "calibrate with the engine that the cells use: TORCH_DIST_USE_NCCL2=0 "
            "(ProcessGroupNCCL) or =1 (ProcessGroupNCCL2)",
            about=", ".join(cells),
            severity="info",
        )


def _lacking(predictions: Sequence[CollectivePrediction]) -> Iterator[Finding]:
    """What the calibration lacks to predict them all."""
    lacking = [prediction for prediction in predictions if prediction.predicted_us is None]
    if not lacking:
        return
    used = {prediction.kind for prediction in predictions}
    ranks = {prediction.ranks for prediction in predictions}
    kinds = ",".join(sorted(used))
    counts = ",".join(map(str, sorted(ranks)))
    command = f"dpscope calibrate --collectives {kinds} --devices {counts} --out"
    reasons = dict.fromkeys(collective.reason for collective in lacking)
    cells = dict.fromkeys(collective.cell for collective in lacking)
    yield RunCode.CALIBRATION_INCOMPLETE.finding(
        f"exposed communication is not predicted: {'; '.join(reasons)}",
        f"calibrate all collectives that the run uses: {command} <this run's folder>",
        script_action=f"calibrate all collectives: {command} calibration.json, and pass it with "
        "--calibration",
        about=", ".join(cells),
    )


def off_notes(comparison: Comparison, shared_cores: bool = False) -> Iterator[str]:
    """Notes for the table of predictions: which cells are off, by how much, and why; which are not
    compared.
    """
    for off in cells_off(comparison):
        cause = _cause(comparison, off, shared_cores)
        yield f"{off.row.cell}: {off.error}; {cause}"
    for row in comparison.rows.values():
        yield from _not_compared(row)


def _not_compared(row: CellRow) -> Iterator[str]:
    """Why a prediction of exposed communication is not compared with what was measured."""
    why = row.reasons.get("predicted_exposed_error")
    if why and row.predicted_exposed_us is not None:
        yield f"error of exposed NA ({row.cell}): {why}"


def noisy_calibration(comparison: Comparison) -> Finding | None:
    """That the run's collectives are predicted from fits that do not predict the calibration's own
    sizes, each left out in turn.
    """
    calibration = comparison.collective_costs.calibration
    if calibration is None:
        return None
    used = {(collective.kind, collective.ranks) for collective in comparison.predictions}
    noisy = [fit for fit in noisy_fits(calibration) if (fit.collective, fit.devices) in used]
    return RunCode.CALIBRATION_NOISY.finding(noise_message(noisy)) if noisy else None


@dataclass(frozen=True)
class CellOff:
    """A cell whose predictions are off: the quantities of a step, transfers first, which the model
    is of, and single collectives.
    """

    row: CellRow
    quantities: tuple[str, ...]
    collectives: tuple[CollectivePrediction, ...]

    @property
    def is_too_long(self) -> bool:
        """Whether all that is off took less time than predicted."""
        errors = [collective.relative_error or 0.0 for collective in self.collectives]
        for name in self.quantities[:1]:
            errors.append(self.row.number(f"predicted_{name}_error") or 0.0)
        return min(errors) > 0

    @property
    def error(self) -> str:
        """Predicted and measured time of the first quantity, else of the collective that is most
        off.
        """
        if not self.quantities:
            return _collective_error(self.collectives)
        return _error_of(self.row, self.quantities[0])


def _collective_error(collectives: Sequence[CollectivePrediction]) -> str:
    worst = max(collectives, key=lambda collective: abs(collective.relative_error or 0.0))
    size = show_bytes(worst.size_bytes)
    return f"{size} {worst.kind} {worst.relative_error:+.0%}"


def _error_of(row: CellRow, quantity: str) -> str:
    column = f"{quantity}_us"
    # no collective of a strategy with peer copies is matched: its transfers are all it has
    if quantity == "transfer" and traits_of(row.strategy).peer_copies:
        column = "communication_us"
    measured_us = row.number(column) or 0.0
    predicted_us = row.number(f"predicted_{quantity}_us") or 0.0
    error = row.number(f"predicted_{quantity}_error")
    scale = _scale(row)
    measured = scale.time(measured_us)
    predicted = scale.time(predicted_us)
    return f"{_WHAT[quantity]} {predicted} a step, measured {measured} ({error:+.0%})"


def cells_off(comparison: Comparison) -> Iterator[CellOff]:
    """The cells whose predictions are off.

    A prediction within the interval of what was measured is not off. Single collectives count if
    they are a notable part of a step's transfers, small ones being mostly latency, and if more is
    off than the noise of all transfers.
    """
    for row in comparison.rows.values():
        wrong = [name for name in _WHAT if _is_off(row.number(f"predicted_{name}_error"))]
        quantities = tuple(name for name in wrong if not _within_noise(row, name))
        collectives = tuple(_collectives_off(comparison, row))
        if quantities or collectives:
            yield CellOff(row, quantities, collectives)


def _is_off(error: float | None) -> bool:
    """Whether a relative error is known and large."""
    return error is not None and abs(error) > PREDICTION_TOLERANCE


def _collectives_off(comparison: Comparison, row: CellRow) -> Iterator[CollectivePrediction]:
    """The collectives of a cell that are off, in order."""
    transfer_us = row.transfer_us or 0.0
    bounds = row.interval("transfer_us")
    noise_us = 0.0 if bounds is None else bounds.half_width(transfer_us)
    for collective in comparison.predictions:
        error = collective.relative_error
        if collective.cell != row.cell or error is None or not _is_off(error):
            continue
        measured_us = collective.per_step * (collective.measured_us or 0.0)
        if measured_us > NOTABLE * transfer_us and abs(error) * measured_us > noise_us:
            yield collective


def _within_noise(row: CellRow, name: str) -> bool:
    """Whether the prediction of a quantity lies within the interval of what was measured."""
    bounds = row.interval(f"{name}_us")
    predicted_us = row.number(f"predicted_{name}_us")
    if bounds is None or predicted_us is None:
        return False
    return bounds.low <= predicted_us <= bounds.high


def _off_finding(off: CellOff, cause: str) -> Finding:
    row = off.row
    calibrated = _is_calibrated(row)
    severity: Severity = "info"
    if calibrated and not _is_waiting(off):
        severity = "warning"
    action = script_action = ""
    if not calibrated:
        action = "calibrate on this machine and predict from that"
    elif traits_of(row.strategy).reducer and _overlaps(row):
        action = "compare with a cell whose communication does not overlap compute (--overlap off)"
        script_action = RunCode.PREDICTION_OFF.value.action
    return RunCode.PREDICTION_OFF.finding(
        f"predicted from the {row.text('prediction_source')}: {off.error}; {cause}",
        action,
        script_action=script_action,
        about=row.cell,
        severity=severity,
    )


def _scale(row: CellRow) -> Scale:
    """One unit for all times of a cell's finding."""
    return Scale([row.communication_us, row.transfer_us, row.exposed_us])


def _is_waiting(off: CellOff) -> bool:
    """Whether waiting, which no prediction includes, is all that is off."""
    if off.quantities != ("exposed",) or off.collectives:
        return False
    row = off.row
    moved_us = (row.exposed_us or 0.0) - (row.exposed_wait_us or 0.0)
    predicted_us = row.number("predicted_exposed_us") or 0.0
    return abs(predicted_us - moved_us) <= PREDICTION_TOLERANCE * moved_us


def _overlaps(row: CellRow) -> bool:
    """Whether a notable part of its communication is hidden."""
    total_us = row.communication_us or 0.0
    return (row.hidden_us or 0.0) > OVERLAP * total_us


def _overlap(row: CellRow) -> str:
    """How much of the communication ran during compute, and what compute lost to it."""
    share = show_share((row.hidden_us or 0.0) / (row.communication_us or 1.0))
    text = f"{share} of communication ran during compute"
    slower_us = row.slowdown_us
    bounds = row.interval("slowdown_us")
    if slower_us is None or bounds is None or bounds.low <= 0:
        return text
    longer = _scale(row).time(slower_us)
    return f"{text}, and in traced steps compute takes {longer} longer than alone"


def _cause(comparison: Comparison, off: CellOff, shared_cores: bool) -> str:
    """The first reason for an inaccurate prediction that the run's numbers show.

    Waiting explains only exposed communication, since transfers include none; latency only errors
    of a specification, since a calibration includes it.
    """
    row = off.row
    calibrated = _is_calibrated(row)
    if off.is_too_long:
        return _SLOWER_CALIBRATION if calibrated else _FASTER_LINK
    if _overlaps(row):
        what = "cores shared with computing" if shared_cores else "contention"
        return f"{what}: {_overlap(row)}"
    wait_us = row.exposed_wait_us or 0.0
    total_us = row.communication_us or 0.0
    if off.quantities[:1] == ("exposed",) and wait_us > NOTABLE * total_us:
        wait = _scale(row).time(wait_us)
        return f"waiting: {wait} of the exposed time of a step, which the model does not include"
    if not calibrated:
        return _NO_LATENCY
    if noisy_calibration(comparison) is not None:
        return "the calibration is noisy"
    for collective in off.collectives:
        if collective.extrapolated:
            return f"sizes beyond the calibration: {collective.extrapolated}"
    return _UNEXPLAINED
