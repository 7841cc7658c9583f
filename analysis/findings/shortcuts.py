"""What the two shortcuts would have said: the subtraction estimate and the ring formula, how far off each is, and why."""

from dpscope.analysis.cells.row import CellValues, interval_of, number
from dpscope.analysis.costs.sources import RingRate
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.text.units import NA, show_time
from dpscope.analysis.traces.ranks.ledger import Ledger

CLOSE = 0.1  # of the measured value: an estimate within it is not called off
_MOST = 0.5  # of a distance: a reason that explains as much is called most of it
_CONCURRENT = 0.5  # of the time in which a collective transfers, another one does: it is named as the reason


def shortcuts_text(
    values: CellValues, ledger: Ledger | None, data: CellData, reasons: dict[str, str], rate: RingRate | None = None
) -> str:
    """Both estimates, a sentence each; `reasons` has by column why one is missing, `rate` is what the ring formula divides by."""
    return f"{_subtraction(values, ledger, data, reasons)} {_ring(values, data, reasons, rate)}"


def _subtraction(values: CellValues, ledger: Ledger | None, data: CellData, reasons: dict[str, str]) -> str:
    devices = data.cell.devices
    name, estimate = f"T_{devices} - T_1", number(values, "same_local_batch_us")
    exposed = ledger.exposed_us if ledger is not None else None
    if estimate is None:
        return f"{name} is not known: {reasons.get('same_local_batch_us', 'no single-device cell was measured')}."
    said = f"{name} would say {show_time(estimate)}"
    if slowed_by_tracing(values) is not None:
        return f"{said}, which traces that slow the step this much cannot check."
    if exposed is None or ledger is None:
        return f"{said}; the traces do not show what is exposed."
    if abs(estimate - exposed) <= CLOSE * exposed:
        return f"{said}, close to the {show_time(exposed)} measured as exposed."
    negative = ", which cannot be a time," if estimate < 0 else ""
    times = f", {estimate / exposed:.2g} times" if estimate > 1.5 * exposed > 0 else f"{negative} against"
    bounds = interval_of(values, "same_local_batch_us")
    unsure = " (its 95% interval includes that)" if bounds and bounds.low <= exposed <= bounds.high else ""
    return f"{said}{times} the {show_time(exposed)} measured as exposed{unsure}{_why(values, ledger, data, estimate - exposed)}."


def _why(values: CellValues, ledger: Ledger, data: CellData, error_us: float) -> str:
    """The largest term of T_N - T_1 = exposed + slowdown + change of idle + change of tracer that has the error's sign."""
    slower = "compute that runs slower" + (" than on one device" if data.on_device else " on shared cores")
    terms = {
        slower: ledger.slowdown_us,
        "idle time that one device does not have": number(values, "added_idle_us"),
        "what tracing changes": number(values, "added_tracer_us"),
    }
    if error_us < 0:
        terms = {
            "compute that is shorter than on one device": ledger.slowdown_us,
            "less idle time than on one device": number(values, "added_idle_us"),
            "what tracing changes": number(values, "added_tracer_us"),
        }
    known = {text: value for text, value in terms.items() if value is not None and value * error_us > 0}
    if not known:
        return ""
    text, value = max(known.items(), key=lambda one: abs(one[1]))
    part = "most" if abs(value) >= _MOST * abs(error_us) else "the largest part"
    return f": {part} of the difference is {text} ({show_time(abs(value))})"


def _ring(values: CellValues, data: CellData, reasons: dict[str, str], rate: RingRate | None) -> str:
    ring, transfer = number(values, "ring_us"), number(values, "transfer_us")
    if ring is None:
        return f"The ring formula does not apply: {reasons.get('ring_us', NA)}."
    of_link = values["ring_source"] == "specification"
    known = "" if rate is None else f" {rate.gb_per_s:.3g} GB/s{' of the link' if of_link else ''}"
    said = f"The ring formula says {show_time(ring)} at {'the' if of_link else 'the calibrated'}{known or ' rate'}"
    if transfer is None or number(values, "ring_error_us") is None:
        return f"{said}; the transfer itself is not known ({reasons.get('ring_error_us', 'ranks are missing')})."
    if abs(ring - transfer) <= CLOSE * transfer:
        return f"{said}, close to the {show_time(transfer)} that the transfers took."
    return f"{said}; the transfers took {show_time(transfer)}{_ring_reason(values, data, transfer - ring)}."


def _ring_reason(values: CellValues, data: CellData, more_us: float) -> str:
    if more_us < 0:
        return ", less: the link is faster than that rate"
    total, busy = number(values, "transfer_us") or 0.0, _busy_us(values)
    if busy is not None and total - busy >= _CONCURRENT * more_us:
        most = int(data.collectives["concurrent"].max()) + 1 if "concurrent" in data.collectives else 2
        return f" because {'up to ' * (most > 2)}{_count(most)} all-reduces were in flight at once"
    hidden = number(values, "hidden_us")
    if hidden is not None and hidden >= _MOST * total:
        return " because compute ran at the same time"
    if values["ring_source"] == "specification":
        return ": a specification leaves latency and protocol out"
    return ""


def _busy_us(values: CellValues) -> float | None:
    """Time per step in which at least one all-reduce transfers."""
    size, rate = number(values, "bytes_per_step"), number(values, "algbw_gb_per_s")
    return size / rate / 1e3 if size is not None and rate else None


def _count(number_of: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(number_of, str(number_of))
