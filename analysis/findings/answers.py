"""The four answers about a run or traces, and the verdict on the traces of one job."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.actions import Confidence, Situation, best_action
from dpscope.analysis.findings.late_rank import LateRank
from dpscope.analysis.findings.ledger_text import cost_text
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing, slowed_text
from dpscope.analysis.runs.traced_job import TracedJob
from dpscope.analysis.stats.samples import CONFIDENCE
from dpscope.analysis.text.units import sentence, show_time
from dpscope.analysis.traces.ranks.exposed_parts import NotSplit
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.strategies import traits_of

QUESTIONS = ("Which strategy?", "What does communication cost?", "How accurate are the shortcuts?", "What to do next?")
LABELS = ("Which", "Cost", "Shortcuts", "To do")
ON_CPU = "These traces are from a CPU: compute and communication shared its cores, so the results do not apply to GPUs."
ONE_JOB = (
    "Traces of one job cannot show whether another strategy is faster: compare them with another strategy's traces (dpscope "
    "compare), or measure both (dpscope run)."
)
NO_SHORTCUT = "Nothing to compare: the shortcuts estimate communication between several devices."
NO_SINGLE_DEVICE = "T_N - T_1 needs a step on one device, which traces of one job do not contain."
_CONFIDENCE_WORDS: Mapping[Confidence, str] = {
    "shown": f"significant ({CONFIDENCE:.0%} interval)",
    "not_shown": f"not significant ({CONFIDENCE:.0%} interval)",
    "no_interval": "one repeat or fewer than five steps: no interval",
    "traced_means": "means of the traced steps, no interval",
    "timed_steps": "medians of the timed steps",
    "not_measured": "not measured",
}


@dataclass(frozen=True)
class Answer:
    """`text` is the answer with its number; `confidence` is what the statement `about` is based on."""

    text: str
    confidence: Confidence
    about: str = ""

    @property
    def basis(self) -> str:
        """How certain the answer is, in words."""
        words = _CONFIDENCE_WORDS[self.confidence]
        return f"{self.about}: {words}" if self.about else words


@dataclass(frozen=True)
class Verdict:
    """The four answers and the facts behind them, which every output shares.

    `strategy` is the recommended one, None if there is none. `cell` is the cell that cost, shortcuts and action are about, with
    its `ledger` and the rank `late` that it waits for; `part` is what the action removes, and `saves_us` at most how much.
    `cells` are those of the case. `caveat` and `unsteady` precede all conclusions: what the run does not apply to, and cells
    whose repeats' medians differ by more than 30%.
    """

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
    part: str | None = None
    saves_us: float | None = None
    cells: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[Answer, Answer, Answer, Answer]:
        """In the order of QUESTIONS and LABELS."""
        return self.which, self.cost, self.shortcuts, self.action

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that precede the answers."""
        return tuple(one for one in (self.caveat, self.unsteady) if one is not None)

    def record(self) -> dict[str, object]:
        """The verdict for JSON output: texts by question, and the facts."""
        return {
            **{name: getattr(self, name).text for name in ("which", "cost", "shortcuts", "action")},
            **{name: getattr(self, name) for name in ("caveat", "unsteady", "strategy", "cell", "part", "saves_us")},
            "late_rank": self.late.rank if self.late is not None else None,
            "late_share": self.late.share if self.late is not None else None,
            "ledger": ledger_record(self.ledger) if self.ledger is not None else None,
        }


def ledger_record(ledger: Ledger) -> dict[str, object]:
    """A ledger as plain data: intervals as pairs, ranks as text."""
    content = asdict(ledger)
    content["intervals"] = {name: list(bounds) for name, bounds in ledger.intervals.items()}
    content["wait_by_rank_us"] = {str(rank): time for rank, time in ledger.wait_by_rank_us.items()}
    return content


@dataclass(frozen=True)
class TracedFacts:
    """What the traces of one job show; `ledger` is None if communication is unknown."""

    job: TracedJob
    ledger: Ledger | None
    late: LateRank | None
    on_device: bool
    has_collectives: bool
    communication_known: bool
    not_split: NotSplit | None


def traces_verdict(facts: TracedFacts, shortcuts: str | None = None) -> Verdict:
    """The verdict on a job of foreign traces; `shortcuts` compares them with models, None without models."""
    job, ledger = facts.job, facts.ledger
    which = Answer(ONE_JOB, "not_measured")
    caveat = None if facts.on_device else ON_CPU
    nothing_moved = (
        facts.communication_known and not facts.has_collectives and not (ledger is not None and ledger.exposed_us)
    )
    if job.devices < 2 or ledger is None or nothing_moved:
        cost = (
            _no_collective(facts)
            if job.devices < 2 or nothing_moved
            else f"It was not measured: the traces of {job.name} do not show it."
        )
        action = Answer("Trace every rank of a job on several devices.", "not_measured")
        return Verdict(which, Answer(cost, "not_measured"), Answer(NO_SHORTCUT, "not_measured"), action, caveat)
    chosen = CellRow(cell=job.name, strategy=job.strategy, devices=job.devices, ledger=ledger)
    situation = Situation(chosen, facts.late, facts.on_device, of_script=True, not_split=facts.not_split)
    done = best_action([], situation)
    return Verdict(
        which=which,
        cost=cost_answer(chosen, facts.late),
        shortcuts=Answer(shortcuts or NO_SINGLE_DEVICE, "not_measured" if shortcuts is None else "traced_means"),
        action=Answer(done.text, done.confidence),
        caveat=caveat,
        strategy=job.strategy,
        cell=job.name,
        ledger=ledger,
        late=facts.late,
        part=done.part,
        saves_us=done.saves_us,
        cells=(job.name,),
    )


def _no_collective(facts: TracedFacts) -> str:
    """A sentence for traces without collectives, with the share of a step in which the devices are idle."""
    job, ledger = facts.job, facts.ledger
    which = "this trace" if job.processes == 1 else "these traces"
    if ledger is None or ledger.idle_us is None or not facts.on_device or not ledger.traced_step_us:
        return f"There is no collective in {which}."
    share = ledger.idle_us / ledger.traced_step_us
    devices = "the device is" if job.devices == 1 else "the devices are"
    times = f"{show_time(ledger.idle_us)} of a {show_time(ledger.traced_step_us)} step"
    return f"There is no collective in {which}; {devices} idle {share:.0%} of the time ({times})."


def cost_answer(chosen: CellRow, late: LateRank | None, launch_bound: bool = False) -> Answer:
    """The cost of communication, from the ledger."""
    ledger = chosen.ledger
    if ledger is None or ledger.exposed_us is None:
        return Answer(f"It was not measured: the trace of {chosen.cell} does not show it.", "not_measured")
    if (slowed := slowed_by_tracing(chosen)) is not None:
        return Answer(sentence(slowed_text(chosen, slowed)), "not_measured")
    bounds = ledger.intervals.get("exposed")
    confidence: Confidence = "traced_means" if bounds is None else "shown" if bounds.low > 0 else "not_shown"
    text = cost_text(strategy_name(chosen), chosen.strategy, ledger, late)
    return Answer(f"{text} The step is launch-bound." if launch_bound else text, confidence)


def strategy_name(row: CellRow) -> str:
    """The label of a cell's strategy."""
    return traits_of(row.strategy).label
