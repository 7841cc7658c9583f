"""The answer about a run or traces as labelled facts, which every output shows: what was measured,
what limits it, and a few lines for each question.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from dpscope.analysis.stats.samples import Estimate, Interval, verdict
from dpscope.analysis.stats.samples import Verdict as Shown
from dpscope.analysis.text.units import choose_unit, show_apart
from dpscope.analysis.traces.ranks.lateness import LateRank
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.short_repr import short_repr

QUESTIONS = {
    "which": "Which strategy?",
    "accuracy": "Same accuracy?",
    "speed": "How much faster?",
    "cost": "What does communication cost?",
    "shortcuts": "How accurate are the shortcuts?",
    "stopped": "What had not completed, and why?",
    "late": "Which rank is late?",
    "next": "What to do next?",
}
TRACED = "means of the traced steps"
TIMED = "medians of the timed steps"
_TIMES: dict[Shown, str] = {  # of a ratio of step times
    "above": "slower",
    "below": "faster",
    "no_difference_shown": "not significant",
    "too_few_samples": "not judged",
}


@dataclass(frozen=True)
class Fact:
    """An answer to one of QUESTIONS, or a limit of all answers: short lines after a label.

    `basis` is how it is known: of how many steps and repeats, and where its interval comes from.
    """

    question: str
    label: str
    lines: tuple[str, ...]
    basis: str = "not measured"

    @property
    def text(self) -> str:
        """Label and lines in one line, for outputs that show one line."""
        return f"{self.label}: {'; '.join(self.lines)}"


@dataclass(frozen=True)
class Verdict:
    """What was measured in a line, the limits of all that follows, then facts by question.

    `strategy` is the recommended one, None if there is none; of traces alone what they show, in the
    words of `setting` where it is none of dpscope's. `cell` is the cell that all but the
    first fact are about, with its `ledger` and the rank `late` that it waits for. `part` is the
    part of the step that the first action is about, and `saves_at_most_us` how long that is: an
    upper bound, since other parts may grow. `cells` are those of the case.
    """

    __repr__ = short_repr

    setting: str
    limits: tuple[Fact, ...] = ()
    facts: tuple[Fact, ...] = ()
    strategy: str | None = None
    cell: str | None = None
    ledger: Ledger | None = None
    late: LateRank | None = None
    part: str | None = None
    saves_at_most_us: float | None = None
    cells: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Fact, ...]:
        """Limits and facts in the order in which they are read."""
        return (*self.limits, *self.facts)

    def fact(self, question: str) -> Fact | None:
        """The answer to one of QUESTIONS; None if there is none. Raises KeyError for another."""
        if question not in QUESTIONS:
            raise KeyError(f"{question}: choose from {', '.join(QUESTIONS)}")
        return next((known for known in self.facts if known.question == question), None)

    def record(self) -> dict[str, object]:
        """For JSON: the facts' lines, and the numbers behind them; of the ledger intervals as
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
            "setting": self.setting,
            "limits": [asdict(limit) for limit in self.limits],
            "facts": [asdict(fact) for fact in self.facts],
            **{
                name: getattr(self, name)
                for name in ("strategy", "cell", "part", "saves_at_most_us")
            },
            "late_rank": self.late.rank if self.late is not None else None,
            "late_share": self.late.share if self.late is not None else None,
            "ledger": content,
        }


class Scale:
    """Times of one line, in one unit with two or three digits.

    >>> scale = Scale([2786.0, 25880.0])
    >>> scale.number(25880.0), scale.time(2786.0), scale.change(36.7)
    ('25.9', '2.8 ms', '+0.037')
    """

    def __init__(self, times_us: Iterable[float | None]) -> None:
        unit = choose_unit("time", times_us)
        self.unit, self.divisor = unit.label, unit.divisor

    def number(self, time_us: float) -> str:
        """Without the unit, which the line states once."""
        return digits(time_us / self.divisor)

    def alike(self, times_us: Sequence[float]) -> list[str]:
        """Without the unit, all with the decimals of the largest.

        >>> Scale([37400.0]).alike([11.7, 3520.0, 0.0])
        ['0.0', '3.5', '0']
        """
        largest = self.number(max(times_us, default=0.0))
        decimals = len(largest.partition(".")[2])
        return [f"{us / self.divisor:,.{decimals}f}" if us else "0" for us in times_us]

    def time(self, time_us: float) -> str:
        """With the unit."""
        return f"{self.number(time_us)} {self.unit}"

    def change(self, time_us: float) -> str:
        """Without the unit, with its sign."""
        return f"{'+' if time_us > 0 else ''}{self.number(time_us)}"

    def ends(self, bounds: Interval) -> str:
        """The ends of an interval, without the unit."""
        return f"{self.number(bounds.low)} to {self.number(bounds.high)}"


def digits(value: float) -> str:
    """Two or three digits; a whole number from 100 on.

    >>> digits(0.7562), digits(2.786), digits(25.88), digits(1345.2), digits(0.0)
    ('0.76', '2.8', '25.9', '1,345', '0')
    """
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2g}" if size >= 1e-4 else "0"


def time(time_us: float) -> str:
    """A time alone, with its unit."""
    return Scale([time_us]).time(time_us)


def percent(share: float) -> str:
    """A share in whole percent, never rounded to nothing or to all of it.

    >>> percent(0.11), percent(0.004), percent(0.996), percent(1.0), percent(0.0)
    ('11%', 'under 1%', 'over 99%', '100%', '0%')
    """
    if 0 < share < 0.005:
        return "under 1%"
    if 0.995 <= share < 1:
        return "over 99%"
    return f"{share:.0%}"


def numbered(lines: Sequence[str]) -> tuple[str, ...]:
    """Each with its number, unless there is one alone."""
    if len(lines) < 2:
        return tuple(lines)
    return tuple(f"{number}. {line}" for number, line in enumerate(lines, 1))


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def ends(ratio: Estimate, name: str = "") -> str:
    """The 95% interval of a ratio in brackets, after its name, or why there is none."""
    if ratio.low is None or ratio.high is None:
        return "(too few repeats or steps for an interval)"
    return f"({name}{show_apart(ratio.low)} to {show_apart(ratio.high)})"


def compared(strategy: str, other: str, ratio: Estimate) -> str:
    """A ratio of step times in words, such as ``DP takes 1.30x DDP's step (1.20 to 1.40): slower``."""
    times = f"{ratio.value or 0.0:.2f}x"
    judged = _TIMES[verdict(ratio)]
    return f"{strategy} takes {times} {other}'s step {ends(ratio)}: {judged}"


def basis_of(ratio: Estimate) -> str:
    """How a ratio of step times is known."""
    shown: Shown = verdict(ratio)
    how = {
        "too_few_samples": "too few repeats, or fewer than five steps: no interval",
        "no_difference_shown": "its 95% interval, from how repeats differ, includes 1",
    }
    excludes = "its 95% interval, from how repeats differ, excludes 1"
    return f"ratio of {TIMED}, {counted(ratio.count, 'step')} of each: {how.get(shown, excludes)}"
