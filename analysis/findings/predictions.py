"""Predictions against what was measured: findings with likely reasons."""

from collections.abc import Iterable, Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.calibration_files import wrong_results
from dpscope.analysis.costs.calibration_fit import noise_message, noisy_fits
from dpscope.analysis.findings.facts import Scale
from dpscope.analysis.text.units import show_bytes, show_share
from dpscope.profiling.records.finding import Finding, Severity
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

NOTABLE = 0.05  # of communication or of the step
PREDICTION_TOLERANCE = 0.25
SMALL_BYTES = 256 << 10  # below it, an all-reduce's time is mostly latency
OVERLAP = 0.2
MOST_ROWS = 6  # per cell
_WHAT = {"transfer": "transfers", "exposed": "exposed communication"}
_UNEXPLAINED = "nothing in this run explains it"


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
    for row, off, single in cells_off(comparison):
        if row.cell not in comparison.no_scaling:
            why = _reasons(comparison, row, off, single, shared_cores)
            yield _off_finding(row, off, single, why)
    calibrated = [
        row.cell
        for row in comparison.rows.values()
        if row.text("prediction_source") == "calibration"
    ]
    if calibrated:
        yield from _lacking(comparison.predictions)
    for engine in sorted(set(comparison.other_engines.values())):
        ran = [cell for cell in calibrated if comparison.other_engines.get(cell) == engine]
        if ran:
            yield PlanCode.SETTINGS_DIFFER.finding(
                f"ran on {engine}, the calibration on {comparison.calibrated_engine}: collectives "
                "may be faster or slower there",
                "calibrate with the engine that the cells use: TORCH_DIST_USE_NCCL2=0 "
                "(ProcessGroupNCCL) or =1 (ProcessGroupNCCL2)",
                about=", ".join(ran),
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
    """Notes for the table of predictions: which cells are off, by how much, and why."""
    for row, off, single in cells_off(comparison):
        error = next(_errors_of(row, off, single))
        why = _reasons(comparison, row, off, single, shared_cores)
        yield f"{row.cell}: {error}; {'; '.join(why) or _UNEXPLAINED}"


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


def _reasons(
    comparison: Comparison,
    row: CellRow,
    off: list[str],
    single: Sequence[CollectivePrediction],
    shared_cores: bool,
) -> list[str]:
    """Why a cell's prediction is off, the transfers first, which the model is of."""
    of_single = [collective.relative_error or 0.0 for collective in single]
    why = likely_reasons(row, off[:1], of_single, shared_cores)
    calibrated = row.text("prediction_source") == "calibration"
    if calibrated and noisy_calibration(comparison) is not None:
        why.append("the calibration is noisy")
    return why


def cells_off(
    comparison: Comparison,
) -> Iterator[tuple[CellRow, list[str], list[CollectivePrediction]]]:
    """The cells whose predictions are off: their row, which quantities of a step, and which
    collectives.

    A prediction within the interval of what was measured is not off. Single collectives count if
    they are a notable part of a step's transfers, small ones being mostly latency, and if more is
    off than the noise of all transfers.
    """
    for row in comparison.rows.values():
        off = [
            name
            for name in _WHAT
            if _is_off(row.number(f"predicted_{name}_error")) and not _within_noise(row, name)
        ]
        single = [*_single_off(comparison, row)]
        if off or single:
            yield row, off, single


def _is_off(error: float | None) -> bool:
    """Whether a relative error is known and large."""
    return error is not None and abs(error) > PREDICTION_TOLERANCE


def _single_off(comparison: Comparison, row: CellRow) -> Iterator[CollectivePrediction]:
    """The collectives of a cell that are off, in order."""
    least_us = NOTABLE * (row.transfer_us or 0.0)
    noise_us = _transfer_noise_us(row)
    for collective in comparison.predictions:
        if collective.cell != row.cell:
            continue
        error = collective.relative_error
        if error is None or not _is_off(error):
            continue
        measured_us = collective.per_step * (collective.measured_us or 0.0)
        error_us = abs(error) * measured_us
        if measured_us > least_us and error_us > noise_us:
            yield collective


def _within_noise(row: CellRow, name: str) -> bool:
    """Whether the prediction of a quantity lies within the interval of what was measured."""
    bounds, predicted_us = row.interval(f"{name}_us"), row.number(f"predicted_{name}_us")
    if bounds is None or predicted_us is None:
        return False
    return bounds.low <= predicted_us <= bounds.high


def _transfer_noise_us(row: CellRow) -> float:
    """Half the interval of a step's transfers; 0 where it is not known."""
    bounds, transfer_us = row.interval("transfer_us"), row.transfer_us
    return 0.0 if bounds is None or transfer_us is None else bounds.half_width(transfer_us)


def _errors(row: CellRow, names: Iterable[str]) -> list[float]:
    return [row.number(f"predicted_{name}_error") or 0.0 for name in names]


def _off_finding(
    row: CellRow, off: list[str], single: list[CollectivePrediction], why: list[str]
) -> Finding:
    calibrated = row.text("prediction_source") == "calibration"
    traits = traits_of(row.strategy)
    why += dict.fromkeys(
        f"sizes beyond the calibration: {collective.extrapolated}"
        for collective in single
        if collective.extrapolated
    )
    severity: Severity = "info"
    if calibrated and not _is_waiting(row, off, single):
        severity = "warning"
    action = script_action = ""
    if not calibrated:
        action = "calibrate on this machine and predict from that"
    elif traits.reducer and _overlaps(row):
        action = "compare with a cell whose communication does not overlap compute (--overlap off)"
        script_action = RunCode.PREDICTION_OFF.value.action
    source = row.text("prediction_source")
    error = next(_errors_of(row, off, single))
    cause = _UNEXPLAINED
    if why:
        cause = why[0]
    return RunCode.PREDICTION_OFF.finding(
        f"predicted from the {source}: {error}; {cause}",
        action,
        script_action=script_action,
        about=row.cell,
        severity=severity,
    )


def _errors_of(
    row: CellRow, off: Sequence[str], single: Sequence[CollectivePrediction]
) -> Iterator[str]:
    """Predicted and measured times of a step, then of the collective that is most off."""
    for name in off:
        # No collective of a strategy with peer copies is matched, so its transfers are all of its
        # communication.
        column = f"{name}_us"
        if name == "transfer" and traits_of(row.strategy).peer_copies:
            column = "communication_us"
        measured_us = row.number(column)
        predicted_us = row.number(f"predicted_{name}_us")
        error = row.number(f"predicted_{name}_error")
        if measured_us is not None and predicted_us is not None and error is not None:
            scale = _scale(row)
            measured = scale.time(measured_us)
            times = f"{scale.time(predicted_us)} a step, measured {measured}"
            what = _WHAT[name]
            yield f"{what} {times} ({error:+.0%})"
    if single:
        worst = max(single, key=lambda collective: abs(collective.relative_error or 0.0))
        size = show_bytes(worst.size_bytes)
        yield f"{size} {worst.kind} {worst.relative_error:+.0%}"


def _scale(row: CellRow) -> Scale:
    """One unit for all times of a cell's finding."""
    return Scale([row.communication_us, row.transfer_us, row.exposed_us])


def _is_waiting(row: CellRow, off: list[str], single: Sequence[CollectivePrediction]) -> bool:
    """Whether waiting, which no prediction includes, is all that is off."""
    exposed_us, wait_us = row.exposed_us, row.exposed_wait_us
    predicted_us = row.number("predicted_exposed_us")
    if off != ["exposed"] or single:
        return False
    if exposed_us is None or wait_us is None or predicted_us is None:
        return False
    moved_us = exposed_us - wait_us
    return abs(predicted_us - moved_us) <= PREDICTION_TOLERANCE * moved_us


def _overlaps(row: CellRow) -> bool:
    """Whether a notable part of its communication is hidden."""
    total = row.communication_us or 0.0
    hidden = row.hidden_us or 0.0
    return hidden > OVERLAP * total


def _overlap(row: CellRow, total_us: float, scale: Scale) -> str:
    """How much of the communication ran during compute, and what compute lost to it."""
    hidden_us = row.hidden_us or 0.0
    share = show_share(hidden_us / total_us)
    text = f"{share} of communication ran during compute"
    slower_us = row.slowdown_us
    bounds = row.interval("slowdown_us")
    if slower_us is None or bounds is None:
        return text
    if bounds.low <= 0:
        return text
    longer = scale.time(slower_us)
    return f"{text}, and in traced steps compute takes {longer} longer than alone"


def likely_reasons(
    row: CellRow, off: list[str], single: Sequence[float] = (), shared_cores: bool = False
) -> list[str]:
    """The reasons for an inaccurate prediction that the run's numbers show.

    `off` lists the quantities of a step that are off, `single` the relative errors of single
    collectives that are. Waiting explains only exposed communication, since transfers include none;
    latency only errors of a specification, since a calibration includes it.
    """
    errors = [*_errors(row, off), *single]
    scale = _scale(row)
    specified = row.text("prediction_source") == "specification"
    if max(errors) > 0 and min(errors) >= 0:
        if specified:
            return [
                "the link is faster than the given specification, or the switch reduces (NVLink "
                "SHARP)"
            ]
        return [
            "the calibration was slower than the run (load, clocks, settings), or did not time these "
            "sizes: calibrate again"
        ]
    found = []
    total = row.communication_us
    wait = row.exposed_wait_us
    queued = row.queue_us
    if total and _overlaps(row):
        what = "cores shared with computing" if shared_cores else "contention"
        found.append(f"{what}: {_overlap(row, total, scale)}")
    if "exposed" in off and total and wait is not None and wait > NOTABLE * total:
        found.append(
            f"waiting: {scale.time(wait)} of the exposed time of a step, which the model does not "
            "include"
        )
    if total and queued is not None and queued > NOTABLE * total:
        found.append(
            f"queueing: {scale.time(queued)} a step for a free worker thread, which gloo's ranges "
            "may include"
        )
    if specified:
        moved = row.bytes_per_step
        count = row.collectives_per_step
        if moved is not None and count and moved / count < SMALL_BYTES:
            size = show_bytes(moved / count)
            found.append(
                f"small messages: {size} on average, where latency matters more than bandwidth"
            )
        found.append(
            "no calibration: a specification is an upper bound on speed and does not include latency"
        )
    return found
