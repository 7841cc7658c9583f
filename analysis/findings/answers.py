"""The four answers about a run or traces, the two shortcuts among them, and the verdict on the
traces of one job.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.ledger_text import (
    NOT_SIGNIFICANT,
    SIGNIFICANT,
    TRACED,
    Answer,
    Situation,
    best_action,
    cost_text,
    slowed_by_tracing,
    slowed_text,
)
from dpscope.analysis.stats.samples import CONFIDENCE
from dpscope.analysis.text.units import NA, choose_unit, sentence, show, show_time, with_article
from dpscope.analysis.traces.ranks.lateness import LateRank
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.trace_codes import TraceCode

if TYPE_CHECKING:
    from dpscope.analysis.traces.ranks.job import Job

QUESTIONS = (
    "Which strategy?",
    "What does communication cost?",
    "How accurate are the shortcuts?",
    "What to do next?",
)
LABELS = ("Which", "Cost", "Shortcuts", "To do")
ON_CPU = "These traces are from a CPU: compute and communication shared its cores, so the results do not apply to GPUs."
ONE_JOB = (
    "Traces of one job cannot show whether another strategy is faster: compare them with another strategy's traces (dpscope "
    "compare), or measure both (dpscope run)."
)
NO_SHORTCUT = "Nothing to compare: the shortcuts estimate communication between several devices."
_LOST = (TraceCode.NO_KERNELS.code, TraceCode.TRACE_INCOMPLETE.code, TraceCode.DEVICE_NOT_READ.code)
NO_SINGLE_DEVICE = "T_N - T_1 needs a step on one device, which traces of one job do not contain."


@dataclass(frozen=True)
class Verdict:
    """The four answers and the facts behind them, which every output shares.

    `strategy` is the recommended one, None if there is none. `cell` is the cell that cost,
    shortcuts and action are about, with its `ledger` and the rank `late` that it waits for. `cells`
    are those of the case. `caveat` and `unsteady` precede all conclusions: what the run does not
    apply to, and cells whose repeats' medians differ by more than 30%.
    """

    __repr__ = short_repr

    which: Answer
    cost: Answer
    shortcuts: Answer
    action: Answer
    caveat: str | None = None
    unsteady: str | None = None
    strategy: str | None = None
    cell: str | None = None
    ledger: Ledger | None = None
    late: LateRank | None = None
    cells: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[Answer, Answer, Answer, Answer]:
        """In the order of QUESTIONS and LABELS."""
        return self.which, self.cost, self.shortcuts, self.action

    @property
    def labelled(self) -> tuple[tuple[str, str], ...]:
        """Each answer's label and text."""
        return tuple((label, one.text) for label, one in zip(LABELS, self.answers, strict=True))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that precede the answers."""
        return tuple(one for one in (self.caveat, self.unsteady) if one is not None)

    def record(self) -> dict[str, object]:
        """The verdict for JSON output: texts by question, and the facts; of the ledger intervals as
        pairs, ranks as text.
        """
        content = None
        if self.ledger is not None:
            content = asdict(self.ledger)
            content["intervals"] = {
                name: list(bounds) for name, bounds in self.ledger.intervals.items()
            }
            content["wait_by_rank_us"] = {
                str(rank): time for rank, time in self.ledger.wait_by_rank_us.items()
            }
        return {
            **{name: getattr(self, name).text for name in ("which", "cost", "shortcuts", "action")},
            **{name: getattr(self, name) for name in ("caveat", "unsteady", "strategy", "cell")},
            **{"part": self.action.part, "saves_us": self.action.saves_us},
            "late_rank": self.late.rank if self.late is not None else None,
            "late_share": self.late.share if self.late is not None else None,
            "ledger": content,
        }


def traces_verdict(data: "Job", shortcuts: str | None = None) -> Verdict:
    """The verdict on a job of foreign traces; `shortcuts` compares them with models, None without
    models.
    """
    ledger, on_device = data.ledger, data.on_device
    lost = next(
        (one for one in data.findings if one.code in _LOST and one.severity == "error"), None
    )
    which, caveat = Answer(ONE_JOB), None if on_device or lost is not None else ON_CPU
    moved = len(data.tables.collectives) > 0 or bool(ledger is not None and ledger.exposed_us)
    nothing_moved = data.communication_known and not moved
    if data.devices < 2 or ledger is None or nothing_moved:
        idle = _idle(data, ledger) if on_device else ""
        cost = f"There is no collective in {'this trace' if data.processes == 1 else 'these traces'}{idle}."
        action = "Trace every rank of a job on several devices."
        if not data.communication_known or not (data.devices < 2 or nothing_moved):
            cost = f"It was not measured: the {data.name} {'does' if data.processes == 1 else 'do'} not show it."
            action = (
                f"{sentence(lost.message)} {sentence(lost.next_step)}"
                if lost is not None
                else action
            )
        return Verdict(which, Answer(cost), Answer(NO_SHORTCUT), Answer(action), caveat)
    chosen = CellRow(cell=data.name, strategy=data.strategy, devices=data.devices, ledger=ledger)
    late = data.late
    return Verdict(
        which=which,
        cost=cost_answer(chosen, late),
        shortcuts=Answer(NO_SINGLE_DEVICE) if shortcuts is None else Answer(shortcuts, TRACED),
        action=best_action(
            [],
            Situation(
                chosen,
                late,
                on_device,
                data.messages,
                data.last_rank,
                knows_options=False,
                not_split=data.not_split,
            ),
        ),
        caveat=caveat,
        strategy=data.strategy,
        cell=data.name,
        ledger=ledger,
        late=late,
        cells=(data.name,),
    )


def _idle(data: "Job", ledger: Ledger | None) -> str:
    """A clause with the share of a step in which the devices are idle."""
    if ledger is None or ledger.idle_us is None or not ledger.traced_step_us:
        return ""
    devices = "the device is" if data.devices == 1 else "the devices are"
    times = f"{show_time(ledger.idle_us)} of {with_article(show_time(ledger.traced_step_us))} step"
    return f"; {devices} idle {ledger.idle_us / ledger.traced_step_us:.0%} of the time ({times})"


def cost_answer(chosen: CellRow, late: LateRank | None, launch_bound: bool = False) -> Answer:
    """The cost of communication, from the ledger."""
    ledger = chosen.ledger
    if ledger is None or ledger.exposed_us is None:
        return Answer(f"It was not measured: the trace of {chosen.cell} does not show it.")
    if (slowed := slowed_by_tracing(chosen)) is not None:
        return Answer(sentence(slowed_text(chosen, slowed)))
    bounds = ledger.intervals.get("exposed")
    basis = TRACED if bounds is None else SIGNIFICANT if bounds.low > 0 else NOT_SIGNIFICANT
    text = cost_text(chosen.strategy, ledger, late)
    return Answer(f"{text} The step is launch-bound." if launch_bound else text, basis)


CLOSE = 0.1  # of the measured value: an estimate within it counts as close
_MOST = 0.5  # of the error: a reason that explains as much is called most of it
# of the error: concurrent collectives that explain as much are named as the reason
_CONCURRENT = 0.5


def shortcuts_text(row: CellRow, data: "Job") -> str:
    """One sentence per estimate."""
    return f"{_subtraction(row, data)} {_ring(row, data)}"


def _subtraction(row: CellRow, data: "Job") -> str:
    name, estimate = f"T_{data.devices} - T_1", row.same_local_batch_us
    bounds, exposed = (
        row.interval("same_local_batch_us"),
        row.ledger.exposed_us if row.ledger is not None else None,
    )
    if estimate is None:
        return f"{name} is unknown: {row.reasons.get('same_local_batch_us', 'no single-device cell was measured')}."
    ends = ""
    if bounds is not None:
        unit = choose_unit("time", [bounds.low, bounds.high])
        ends = f" ({CONFIDENCE:.0%} interval {show(bounds.low, unit)} to {show(bounds.high, unit)} {unit.label})"
    result = f"{name} gives {show_time(estimate)}{ends}"
    if slowed_by_tracing(row) is not None:
        return f"{result}, which cannot be checked because tracing slows the step too much."
    if exposed is None:
        return f"{result}; the traces do not show what is exposed."
    if abs(estimate - exposed) <= CLOSE * exposed:
        return f"{result}, close to the {show_time(exposed)} measured as exposed."
    if bounds and bounds.low <= exposed <= bounds.high:
        measured = f"Measured as exposed: {show_time(exposed)}, which lies within that interval"
        return f"{result}. {measured}, so this run cannot tell the two apart."

    negative = ", a negative time," if estimate < 0 else ""
    times = (
        f", {estimate / exposed:.2g} times"
        if estimate > 1.5 * exposed > 0
        else f"{negative} against"
    )
    compared = f"{result}{times} the {show_time(exposed)} measured as exposed"
    return f"{compared}{_why(row, data.on_device, estimate - exposed)}."


def _why(row: CellRow, on_device: bool, error_us: float) -> str:
    """The largest term of T_N - T_1 = exposed + slowdown + change of idle + change of tracer that
    has the error's sign.

    If it exceeds the error, the largest term of the other sign is named too, which offsets most of
    the excess.
    """
    slower = "compute that runs slower" + (
        " than on one device" if on_device else " on shared cores"
    )
    terms = (
        (
            row.ledger.slowdown_us if row.ledger else None,
            slower,
            "compute that is shorter than on one device",
        ),
        (
            row.added_idle_us,
            "idle time that one device does not have",
            "less idle time than on one device",
        ),
        (row.added_tracer_us, "time that traced steps do not show", "time that only tracing adds"),
    )
    known = [(value, more if value > 0 else less) for value, more, less in terms if value]
    known.sort(key=lambda term: -abs(term[0]))
    value, text = next((term for term in known if term[0] * error_us > 0), (0.0, ""))
    if not value:
        return ""
    part = "most" if abs(value) >= _MOST * abs(error_us) else "the largest part"
    offset_us, what = next((term for term in known if term[0] * error_us < 0), (0.0, ""))
    offset = ""
    if what and abs(value) > (1 + CLOSE) * abs(error_us):
        offset = f"; {what} offsets {show_time(abs(offset_us))} of it"
    return f": {part} of the difference is {text} ({show_time(abs(value))}{offset})"


def _ring(row: CellRow, data: "Job") -> str:
    ring, transfer = row.ring_us, row.transfer_us
    if ring is None:
        return f"The ring formula gives no value: {row.reasons.get('ring_us', NA)}."
    of_link = row.text("ring_source") == "specification"
    rates = " and ".join(dict.fromkeys(f"{rate.gb_per_s:.3g}" for rate in row.ring_rates))
    at = f"at the {rates} GB/s of the link" if of_link else f"at the calibration's {rates} GB/s"
    result = f"The ring formula gives {show_time(ring)} {at}"
    if transfer is None or row.ring_error_us is None:
        return f"{result}; the transfer time is unknown ({row.reasons.get('ring_error_us', 'ranks are missing')})."
    if abs(ring - transfer) <= CLOSE * transfer:
        return f"{result}, close to the {show_time(transfer)} that the transfers took."
    size, algbw, fitted, why = row.bytes_per_step, row.algbw_gb_per_s, row.predicted_transfer_us, ""
    # us in which at least one all-reduce transfers
    busy = size / algbw / 1e3 if size is not None and algbw else None
    if transfer < ring:
        why = ", less: the link is faster than that rate"
    elif busy is not None and transfer - busy >= _CONCURRENT * (transfer - ring):
        most = int(data.tables.collectives["concurrent"].max(initial=1)) + 1
        count = {2: "two", 3: "three", 4: "four"}.get(most, str(most))
        why = f" because {'up to ' * (most > 2)}{count} all-reduces were in flight at once"
    elif of_link:
        why = ": a specification does not include latency and protocol overhead"
    elif fitted is not None and fitted - ring >= _MOST * (transfer - ring):
        why = f": the formula leaves out latency, with which the calibration gives {show_time(fitted)}"
    elif row.hidden_us is not None and row.hidden_us >= _MOST * transfer:
        why = " because compute ran at the same time"
    elif fitted is not None:
        why = f". With latency the calibration gives {show_time(fitted)}; the traces do not show what takes the rest"
    return f"{result}; the transfers took {show_time(transfer)}{why}."
