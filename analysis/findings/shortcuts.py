"""The two shortcuts, the subtraction estimate and the ring formula: their results, how far off each is, and why."""

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.sources import RingRate
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.text.units import NA, show_time
from dpscope.analysis.traces.ranks.ledger import Ledger

CLOSE = 0.1  # of the measured value: an estimate within it counts as close
_MOST = 0.5  # of the error: a reason that explains as much is called most of it
_CONCURRENT = 0.5  # of the error: concurrent collectives that explain as much are named as the reason


def shortcuts_text(row: CellRow, data: CellData, rate: RingRate | None = None) -> str:
    """One sentence per estimate; `rate` is the ring formula's bandwidth."""
    return f"{_subtraction(row, data)} {_ring(row, data, rate)}"


def _subtraction(row: CellRow, data: CellData) -> str:
    ledger, devices = row.ledger, data.cell.devices
    name, estimate = f"T_{devices} - T_1", row.same_local_batch_us
    exposed = ledger.exposed_us if ledger is not None else None
    if estimate is None:
        return f"{name} is unknown: {row.reasons.get('same_local_batch_us', 'no single-device cell was measured')}."
    result = f"{name} gives {show_time(estimate)}"
    if slowed_by_tracing(row) is not None:
        return f"{result}, which cannot be checked because tracing slows the step too much."
    if exposed is None or ledger is None:
        return f"{result}; the traces do not show what is exposed."
    if abs(estimate - exposed) <= CLOSE * exposed:
        return f"{result}, close to the {show_time(exposed)} measured as exposed."
    negative = ", which cannot be a time," if estimate < 0 else ""
    times = f", {estimate / exposed:.2g} times" if estimate > 1.5 * exposed > 0 else f"{negative} against"
    bounds = row.interval("same_local_batch_us")
    compared = f"{result}{times} the {show_time(exposed)} measured as exposed"
    if bounds and bounds.low <= exposed <= bounds.high:
        return f"{compared}; its 95% interval, {show_time(bounds.low)} to {show_time(bounds.high)}, includes that."
    return f"{compared}{_why(row, ledger, data, estimate - exposed)}."


def _why(row: CellRow, ledger: Ledger, data: CellData, error_us: float) -> str:
    """The largest term of T_N - T_1 = exposed + slowdown + change of idle + change of tracer that has the error's sign.

    If it exceeds the error, the largest term of the other sign is named too, which offsets most of the excess.
    """
    slower = "compute that runs slower" + (" than on one device" if data.on_device else " on shared cores")
    terms = (
        (ledger.slowdown_us, slower, "compute that is shorter than on one device"),
        (
            row.added_idle_us,
            "idle time that one device does not have",
            "less idle time than on one device",
        ),
        (row.added_tracer_us, "time that traced steps do not show", "time that only tracing adds"),
    )
    known = [(value, more if value > 0 else less) for value, more, less in terms if value]
    same = [term for term in known if term[0] * error_us > 0]
    if not same:
        return ""
    value, text = max(same, key=_size)
    part = "most" if abs(value) >= _MOST * abs(error_us) else "the largest part"
    opposite = [term for term in known if term[0] * error_us < 0]
    offset = ""
    if opposite and abs(value) > (1 + CLOSE) * abs(error_us):
        offset_us, what = max(opposite, key=_size)
        offset = f"; {what} offsets {show_time(abs(offset_us))} of it"
    return f": {part} of the difference is {text} ({show_time(abs(value))}{offset})"


def _size(term: tuple[float, str]) -> float:
    return abs(term[0])


def _ring(row: CellRow, data: CellData, rate: RingRate | None) -> str:
    ring, transfer = row.ring_us, row.transfer_us
    if ring is None:
        return f"The ring formula does not apply: {row.reasons.get('ring_us', NA)}."
    of_link = row.ring_source == "specification"
    known = "" if rate is None else f" {rate.gb_per_s:.3g} GB/s{' of the link' if of_link else ''}"
    result = f"The ring formula gives {show_time(ring)} at {'the' if of_link else 'the calibrated'}{known or ' rate'}"
    if transfer is None or row.ring_error_us is None:
        return f"{result}; the transfer time is unknown ({row.reasons.get('ring_error_us', 'ranks are missing')})."
    if abs(ring - transfer) <= CLOSE * transfer:
        return f"{result}, close to the {show_time(transfer)} that the transfers took."
    return f"{result}; the transfers took {show_time(transfer)}{_ring_reason(row, data, transfer - ring)}."


def _ring_reason(row: CellRow, data: CellData, more_us: float) -> str:
    if more_us < 0:
        return ", less: the link is faster than that rate"
    total = row.transfer_us or 0.0
    size, rate = row.bytes_per_step, row.algbw_gb_per_s
    busy = size / rate / 1e3 if size is not None and rate else None  # us in which at least one all-reduce transfers
    if busy is not None and total - busy >= _CONCURRENT * more_us:
        most = int(data.collectives["concurrent"].max()) + 1 if "concurrent" in data.collectives else 2
        count = {2: "two", 3: "three", 4: "four"}.get(most, str(most))
        return f" because {'up to ' * (most > 2)}{count} all-reduces were in flight at once"
    hidden = row.hidden_us
    if hidden is not None and hidden >= _MOST * total:
        return " because compute ran at the same time"
    if row.ring_source == "specification":
        return ": a specification does not include latency and protocol overhead"
    return ""
