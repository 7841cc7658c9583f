"""Estimates and predictions against what was measured: tables of the differences, and findings with
likely reasons.

By definition of the step, a subtraction's error relative to exposed communication is exactly local
batch + compute + idle + tracer. Overlap, waiting, the loader and imbalance explain those terms, or
the difference from all communication.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.calibration_files import wrong_results
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

NOTABLE = 0.05  # of communication or of the step
IMBALANCE = 0.1
# term -> its column: what N devices add to a step besides exposed communication
_TERMS = {
    "compute": "slowdown_us",
    "idle": "added_idle_us",
    "tracer": "added_tracer_us",
}


class Reason(NamedTuple):
    """One reason: `amount_us` is the measured number, `text` describes it."""

    code: str
    amount_us: float
    text: str


def reasons(row: CellRow) -> list[Reason]:
    """The reasons that this cell's measurements show, the largest first; terms of the identity if
    they are significant.
    """
    return sorted(_reasons(row), key=lambda reason: -abs(reason.amount_us))


def _reasons(row: CellRow) -> Iterator[Reason]:
    total = row.communication_us
    hidden = row.hidden_us
    wait = row.wait_us
    if total and hidden is not None and hidden > NOTABLE * total:
        text = f"{show_time(hidden)} of communication ({hidden / total:.0%}) ran during compute, which a subtraction cannot see"
        yield Reason("overlap", hidden, text)
    if total and wait is not None and wait > NOTABLE * total:
        yield Reason(
            "wait", wait, f"{show_time(wait)} a step is waiting for a later rank, not transfer"
        )
    for term, words in (
        ("compute", "compute takes {} per step than on one device ({})"),
        ("idle", "the device idles {} per step than on one device ({})"),
        ("tracer", "the traced steps do not explain {} of the untraced difference ({})"),
    ):
        column = _TERMS[term]
        value = row.number(column)
        bounds = row.interval(column)
        if value is not None and bounds is not None and not bounds.low <= 0 <= bounds.high:
            amount = _apart(
                value, "" if term == "tracer" else " longer", "" if term == "tracer" else " less"
            )
            within = f"95% interval {show_time(bounds.low)} to {show_time(bounds.high)}"
            yield Reason(term, value, words.format(amount, within))
    for method, baseline in (("ideal_split", "t_1(G)/N"), ("same_total", "t_1(G)")):
        local = row.number(f"{method}_local_batch_us")
        if local is not None:
            text = f"{method} uses {baseline} instead of t_1(b), which is {_apart(local)}"
            yield Reason(f"{method}_local_batch", local, text)
    waited = row.added_data_wait_us
    step = row.step_us
    if waited is not None and step and abs(waited) >= 0.01 * step:
        text = f"waiting for the loader takes {_apart(waited)} per step than on one device (mean)"
        yield Reason("loader", waited, text)
    spread = row.compute_spread
    excess = row.first_device_excess_us
    compute = row.compute_us
    if excess is not None and compute and excess > NOTABLE * compute:
        yield Reason(
            "imbalance",
            excess,
            f"device 0 computes {show_time(excess)} a step longer than the others",
        )
    elif spread is not None and compute and spread >= IMBALANCE:
        yield Reason(
            "imbalance",
            spread * compute,
            f"compute differs between devices by {spread:.0%} of its mean",
        )


def _apart(microseconds: float, more: str = " longer", less: str = " shorter") -> str:
    return f"{show_time(abs(microseconds))}{more if microseconds > 0 else less}"


PREDICTION_TOLERANCE = 0.25
SMALL_BYTES = 256 << 10  # below it, an all-reduce's time is mostly latency
OVERLAP = 0.2
MOST_ROWS = 6  # per cell
_WHAT = {"transfer": "transfers", "exposed": "exposed communication"}
_UNEXPLAINED = "nothing in this run explains it"


def prediction_findings(comparison: Comparison, shared_cores: bool = False) -> Iterator[Finding]:
    """Cells whose transfers, exposed communication or single collectives differ from the prediction
    by PREDICTION_TOLERANCE.

    Also reports wrong results in the calibration, what it lacks to predict the cells, and cells
    that ran on another NCCL engine. `shared_cores`: communication and compute share a CPU.
    """
    yield from wrong_results(comparison.collective_costs.calibration)
    for row, off, single in cells_off(comparison):
        if row.cell not in comparison.no_scaling:
            yield _off_finding(row, off, single, shared_cores, comparison.knows_options)
    calibrated = [
        row.cell
        for row in comparison.rows.values()
        if row.text("prediction_source") == "calibration"
    ]
    lacking = [one for one in comparison.predictions if one.predicted_us is None]
    if lacking and calibrated:
        used = {one.kind for one in comparison.predictions}
        ranks = {one.ranks for one in comparison.predictions}
        kinds = ",".join(sorted(used))
        counts = ",".join(map(str, sorted(ranks)))
        place = (
            "<this run's folder>"
            if comparison.timed
            else "calibration.json, and pass it with --calibration"
        )
        cells = dict.fromkeys(one.cell for one in lacking)
        why = dict.fromkeys(one.reason for one in lacking)
        yield RunCode.CALIBRATION_INCOMPLETE.finding(
            f"{'; '.join(why)}, which {', '.join(cells)} {'use' if len(cells) > 1 else 'uses'}: exposed communication is not "
            "predicted there",
            "calibrate all collectives that the run uses: dpscope calibrate "
            f"--collectives {kinds} --devices {counts} --out {place}",
        )
    for engine in sorted(set(comparison.other_engines.values())):
        ran = [cell for cell in calibrated if comparison.other_engines.get(cell) == engine]
        if ran:
            yield RunCode.CALIBRATION_OTHER_ENGINE.finding(
                f"{', '.join(ran)} ran on {engine}, the calibration on {comparison.calibrated_engine}: collectives may be "
                "faster or slower there."
            )


def off_notes(comparison: Comparison, shared_cores: bool = False) -> Iterator[str]:
    """Notes for the table of predictions: which cells are off, by how much, and why."""
    for row, off, single in cells_off(comparison):
        of_single = [one.relative_error or 0.0 for one in single]
        worst = max((*_errors(row, off), *of_single), key=abs)
        why = likely_reasons(row, off, of_single, shared_cores)
        yield f"{row.cell} is up to {worst:+.0%} off: {'; '.join(why) or _UNEXPLAINED}"


def cells_off(
    comparison: Comparison,
) -> Iterator[tuple[CellRow, list[str], list[CollectivePrediction]]]:
    """The cells whose predictions are off: their row, which quantities of a step, and which
    collectives.

    Single collectives count if they are a notable part of a step's transfers: small ones are
    mostly latency and noise.
    """

    def is_off(error: float | None) -> bool:
        return error is not None and abs(error) > PREDICTION_TOLERANCE

    for row in comparison.rows.values():
        off = [name for name in _WHAT if is_off(row.number(f"predicted_{name}_error"))]
        least_us = NOTABLE * (row.transfer_us or 0.0)
        own = [
            one
            for one in comparison.predictions
            if one.cell == row.cell and is_off(one.relative_error)
        ]
        single = [one for one in own if one.per_step * (one.measured_us or 0.0) > least_us]
        if off or single:
            yield row, off, single


def _errors(row: CellRow, names: Iterable[str]) -> list[float]:
    return [row.number(f"predicted_{name}_error") or 0.0 for name in names]


def _off_finding(
    row: CellRow,
    off: list[str],
    single: list[CollectivePrediction],
    shared_cores: bool,
    knows_options: bool,
) -> Finding:
    calibrated = row.text("prediction_source") == "calibration"
    traits = traits_of(row.strategy)
    errors = []
    for name, error in zip(off, _errors(row, off), strict=True):
        # No collective of a strategy with peer copies is matched, so its transfers are all of its
        # communication.
        of_all = name == "transfer" and traits.peer_copies
        measured = show_time(row.number("communication_us" if of_all else f"{name}_us"))
        predicted = show_time(row.number(f"predicted_{name}_us"))
        errors.append(f"{_WHAT[name]} {predicted} a step, measured {measured} ({error:+.0%})")
    if single:
        each = (
            f"{show_bytes(one.size_bytes)} {one.kind} {one.relative_error:+.0%}"
            for one in single[:MOST_ROWS]
        )
        listed = ", ".join(each)
        errors.append(f"single collectives: {listed}")
    of_single = [one.relative_error or 0.0 for one in single]
    why = likely_reasons(row, off, of_single, shared_cores)
    why += dict.fromkeys(
        f"sizes beyond the calibration: {one.extrapolated}" for one in single if one.extrapolated
    )
    next_step = "the table of collectives shows which of them are off"
    if not calibrated:
        next_step = "calibrate on this machine and predict from that"
    elif (
        traits.reducer
        and (row.hidden_us or 0.0) > OVERLAP * (row.communication_us or 0.0)
        and knows_options
    ):
        next_step = (
            "compare with a cell whose communication does not overlap compute (--overlap off)"
        )
    return RunCode.PREDICTION_OFF.finding(
        f"{row.cell}: predicted from the {'calibration' if calibrated else 'link specification'}: {'; '.join(errors)}. "
        f"Likely reasons: {'; '.join(why) or _UNEXPLAINED}",
        next_step,
        severity="warning" if calibrated else "info",
    )


def likely_reasons(
    row: CellRow, off: list[str], single: Sequence[float] = (), shared_cores: bool = False
) -> list[str]:
    """The reasons for an inaccurate prediction that the run's numbers show.

    `off` lists the quantities of a step that are off, `single` the relative errors of single
    collectives that are. Waiting explains only exposed communication, since transfers include none;
    latency only errors of a specification, since a calibration includes it.
    """
    errors, specified = (
        [*_errors(row, off), *single],
        row.text("prediction_source") == "specification",
    )
    if max(errors) > 0 and min(errors) >= 0:
        if specified:
            return [
                "the link is faster than the given specification, or the switch reduces (NVLink SHARP)"
            ]
        return [
            "the calibration was made under other conditions (load, clocks, settings), or did not time these sizes"
        ]
    found = []
    total, hidden, wait, queued = (
        row.communication_us,
        row.hidden_us,
        row.exposed_wait_us,
        row.queue_us,
    )
    if total and hidden is not None and hidden > OVERLAP * total:
        slower, bounds = row.slowdown_us, row.interval("slowdown_us")
        too = f", and in traced steps compute takes {show_time(slower)} longer than alone"
        what = "cores shared with computing" if shared_cores else "contention"
        significant = slower is not None and bounds is not None and bounds.low > 0
        found.append(
            f"{what}: {hidden / total:.0%} of communication ran during compute{too if significant else ''}"
        )
    if "exposed" in off and total and wait is not None and wait > NOTABLE * total:
        only = " (of exposed communication alone)" if len(off) > 1 or single else ""
        found.append(
            f"waiting{only}: {show_time(wait)} a step for late ranks, which the model does not include"
        )
    if total and queued is not None and queued > NOTABLE * total:
        found.append(
            f"queueing: {show_time(queued)} a step for a free worker thread, which gloo's ranges may include"
        )
    if specified:
        moved, count = row.bytes_per_step, row.collectives_per_step
        if moved is not None and count and moved / count < SMALL_BYTES:
            size = show_bytes(moved / count)
            found.append(
                f"small messages: {size} on average, where latency matters more than bandwidth"
            )
        found.append(
            "no calibration: a specification is an upper bound on speed and does not include latency"
        )
    return found
