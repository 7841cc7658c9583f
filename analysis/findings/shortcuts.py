"""The two shortcuts against what was measured: t_N(b) - t_1(b) and the ring formula, with the sign, size
and reason of their errors.
"""

from dpscope.analysis.cells.estimated import FORMULAS
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.data_sheet import RingRate
from dpscope.analysis.findings.facts import TIMED, TRACED, Fact, Scale
from dpscope.analysis.findings.ledger_text import slowed_by_tracing
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.text.units import NA
from dpscope.analysis.traces.ranks.job import Job

_ADDED = FORMULAS["same_local_batch"]
_TRANSFERS = "all transfers (hidden too) took"
CLOSE = 0.1  # of the measured value: an estimate within it agrees
# of the measured value: a wider interval shows no agreement
_WIDE = 0.5
# of the error: what a cause may leave of it
_MOST = 0.5


def shortcuts_fact(row: CellRow, data: Job) -> Fact:
    """A line for each estimate."""
    bases = [
        f"{_ADDED}: {TIMED}, its interval from how the repeats differ",
        f"what they are compared with: {_means(row)}",
    ]
    for rate in row.ring_rates:
        bases.append(f"ring formula: {rate.description}")
    lines = (_subtraction(row, data), _ring(row, data))
    return Fact("shortcuts", "SHORTCUTS", lines, "; ".join(bases))


def _means(row: CellRow) -> str:
    intervals = row.interval("exposed_us"), row.interval("transfer_us")
    if intervals == (None, None):
        return f"{TRACED}, no interval"
    return f"{TRACED}, intervals from how the repeats differ"


def _subtraction(row: CellRow, data: Job) -> str:
    estimate_us = row.same_local_batch_us
    if estimate_us is None:
        why = row.reasons.get("same_local_batch_us", "no single-device cell was measured")
        return f"{_ADDED} unknown: {why}"
    scale = Scale([row.traced_step_us])
    bounds = row.interval("same_local_batch_us")
    estimate = _with_interval(scale.time(estimate_us), bounds, scale)
    result = f"{_ADDED} (added time) = {estimate}"
    if slowed_by_tracing(row) is not None:
        return f"{result}: cannot be checked, as tracing slows the step too much"
    exposed_us = row.ledger.exposed_us if row.ledger is not None else None
    if exposed_us is None:
        return f"{result}: the traces do not show what is exposed"
    if bounds is None:
        measured = f"{scale.number(exposed_us)} measured"
        return f"{result}, {measured}: cannot be checked without an interval (too few repeats or steps)"
    judged = _judged(estimate_us, exposed_us, bounds)
    if judged is not None:
        return f"{result}: {judged}"
    compared = _ratio(estimate_us, exposed_us, scale)
    why = _why(row, data.on_device, estimate_us - exposed_us, scale)
    return f"{result}: {compared}: {why}"


def _with_interval(value: str, bounds: Interval | None, scale: Scale) -> str:
    """A value, and its interval in brackets where that is known."""
    return value if bounds is None else f"{value} ({scale.ends(bounds)})"


def _judged(estimate_us: float, measured_us: float, bounds: Interval | None) -> str | None:
    """That the estimate agrees, or that noise hides whether it does; None where it is off. `bounds`
    are the interval of the estimate, where that was measured.
    """
    close = abs(estimate_us - measured_us) <= CLOSE * measured_us
    if bounds is None:
        return "agrees" if close else None
    includes = bounds.low <= measured_us <= bounds.high
    # an interval that wide shows no agreement either
    wide = bounds.half_width(estimate_us) > _WIDE * measured_us
    if includes and (wide or not close):
        return "too noisy"
    return "agrees" if close else None


def _ratio(estimate_us: float, exposed_us: float, scale: Scale) -> str:
    measured = f"the {scale.number(exposed_us)} measured"
    if estimate_us < 0:
        return f"negative, against {measured}"
    if exposed_us and estimate_us > exposed_us:
        return f"{estimate_us / exposed_us:.2g}x {measured}"
    return f"less than {measured}"


def _why(row: CellRow, on_device: bool, error_us: float, scale: Scale) -> str:
    """Of t_N(b) - t_1(b) = exposed + compute + idle + unexplained the largest term after
    the first, where its interval excludes 0 and the others, which may cancel it, are less than half
    of the error; else all.
    """
    terms = {}
    for name, column in _TERMS.items():
        time_us = row.number(column)
        if time_us is None:
            return "the cause is unknown"
        terms[name] = time_us
    sizes = {name: abs(time_us) for name, time_us in terms.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    others_us = sum(sizes.values()) - sizes[largest]
    bounds = row.interval(_TERMS[largest])
    is_significant = bounds is not None and bounds.excludes_zero
    is_alone = others_us <= _MOST * abs(error_us)
    if not is_alone or not is_significant:
        changes = [f"{name} {scale.change(time_us)}" for name, time_us in terms.items()]
        listed = ", ".join(changes)
        return f"no clear cause ({listed})"
    cause = _LESS[largest]
    if error_us > 0:
        cause = _MORE[largest]
    if cause == _MORE["compute"] and not on_device:
        cause = f"{cause} on shared cores"
    return f"{cause} ({scale.time(sizes[largest])})"


# of the added time: the columns of its terms after what is exposed
_TERMS = {"compute": "slowdown_us", "idle": "added_idle_us", "unexplained": "added_tracer_us"}
_MORE = {
    "compute": "compute runs slower",
    "idle": "devices are idle longer",
    "unexplained": "traced steps do not show it",
}
_LESS = {
    "compute": "compute is shorter than on one device",
    "idle": "devices are idle for less time",
    "unexplained": "tracing adds time",
}


def _ring(row: CellRow, data: Job) -> str:
    ring_us = row.ring_us
    if ring_us is None:
        why = row.reasons.get("ring_us", NA)
        return f"ring formula gives no value: {why}"
    scale = Scale([row.traced_step_us])
    # each once: a link has one rate for all collectives
    rates = dict.fromkeys(map(_rate_text, row.ring_rates))
    at = " and ".join(rates)
    result = f"ring formula = {scale.time(ring_us)} at {at}"
    transfer_us = row.transfer_us
    if transfer_us is None or row.ring_error_us is None:
        missing = row.reasons.get("ring_error_us", "ranks are missing")
        return f"{result}; it cannot be compared: {missing}"
    bounds = row.interval("transfer_us")
    judged = _judged(ring_us, transfer_us, _around(ring_us, transfer_us, bounds))
    took = scale.number(transfer_us)
    if judged == "agrees":
        return f"{result} agrees: {_TRANSFERS} {took} {scale.unit}"
    if judged is not None:
        noisy = _with_interval(took, bounds, scale)
        return f"{result}; {_TRANSFERS} {noisy}: {judged}"
    error = _ring_error(row, data, transfer_us - ring_us, scale)
    return f"{result}; {_TRANSFERS} {took}{error}"


def _rate_text(rate: RingRate) -> str:
    """A rate of the formula with its source."""
    gb_per_s = f"{rate.gb_per_s:.3g} GB/s"
    if rate.source != "calibration":
        return f"the link's {gb_per_s}"
    return f"{gb_per_s} (the calibration's fit)"


def _around(ring_us: float, transfer_us: float, bounds: Interval | None) -> Interval | None:
    """The interval of the mean transfers drawn around the formula, which has no noise of its
    own.
    """
    if bounds is None:
        return None
    half_us = bounds.half_width(transfer_us)
    return Interval(max(0.0, ring_us - half_us), ring_us + half_us)


def _ring_error(row: CellRow, data: Job, error_us: float, scale: Scale) -> str:
    """Why the transfers took `error_us` longer than the formula has it, from what the calibration
    and the traces show.
    """
    of_link = row.text("ring_source") == "specification"
    if error_us < 0:
        if of_link:
            return ": the link is faster than that"
        return ": the calibration was slower than the run; calibrate again"
    transfer_us = row.transfer_us or 0.0
    if transfer_us - _busy_us(row) >= _MOST * error_us:
        concurrent = data.tables.collectives["concurrent"]
        at_once = int(concurrent.max(initial=1)) + 1
        return f": up to {at_once} all-reduces were in flight at once"
    if of_link:
        return ": it leaves out latency and protocol"
    fitted_us = row.predicted_transfer_us
    if fitted_us is not None and fitted_us - (row.ring_us or 0.0) >= _MOST * error_us:
        return f": it leaves out latency ({scale.number(fitted_us)} with it)"
    if (row.hidden_us or 0.0) >= _MOST * transfer_us:
        return ": compute ran at the same time"
    return ""


def _busy_us(row: CellRow) -> float:
    """Of a step, in which at least one all-reduce transfers."""
    if row.bytes_per_step is None or not row.algbw_gb_per_s:
        return row.transfer_us or 0.0
    return row.bytes_per_step / row.algbw_gb_per_s / 1e3
