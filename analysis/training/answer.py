"""What trainings answer: does accuracy stay the same, is an epoch faster, and what to do next?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.analysis.stats.samples import Verdict
from dpscope.analysis.text.units import Unit, show
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.findings import speedup_text
from dpscope.analysis.training.seed_statistics import (
    FEWEST_SEEDS,
    CellDifference,
    differences,
    final_accuracy,
)
from dpscope.profiling.records.finding import Finding, counted

_PERCENT = Unit("%", 1.0, 2)
_ANSWERS: dict[Verdict, str] = {
    "below": "LOWER",
    "above": "HIGHER",
    "too_few_samples": "UNDECIDED",
    "no_difference_shown": "SAME",
}
"""Whether accuracy stays as it is on a single device; what matters most first."""


@dataclass(frozen=True)
class TrainingAnswer:
    """`label`: one of _ANSWERS, or that nothing is compared. `accuracy` and `speed` are sentences;
    `others` counts the cells with another label.
    """

    label: str
    accuracy: str
    speed: str = ""
    others: str = ""

    @property
    def text(self) -> str:
        """All in one line."""
        first = f"{self.label}: {self.accuracy}"
        return "; ".join(filter(None, (first, self.speed, self.others)))


def training_answer(data: TrainingData) -> TrainingAnswer:
    """Of the cell without a variant whose verdict matters most; how many others have another one.

    Without a cell to compare with, the first accuracy.
    """
    cells = {cell.name: cell for cell in data.trained}
    every = differences(data)
    plain = [difference for difference in every if not cells[difference.cell].variant] or every
    if not plain:
        return _first_accuracy(data)

    order = list(_ANSWERS)
    # of equal verdicts the last cell's, the one with the most devices
    shown = min(reversed(plain), key=lambda difference: order.index(difference.verdict))
    sides = f"{_final(cells[shown.cell])}, {_final(cells[shown.against])}"
    accuracy = f"{sides} test accuracy: {_seeds(shown)}"

    others = Counter(_ANSWERS[other.verdict] for other in plain if other is not shown)
    more = [f"{count} more {word}" for word, count in others.items()]
    return TrainingAnswer(
        _ANSWERS[shown.verdict], accuracy, speedup_text(shown), others="; ".join(more)
    )


def _first_accuracy(data: TrainingData) -> TrainingAnswer:
    """Of the first cell whose trainings are complete."""
    for cell in data.trained:
        accuracy = final_accuracy(cell).value
        if accuracy is not None:
            epochs = counted(data.planned_epochs, "epoch")
            only = f"{cell.name} {accuracy:.2f}% test accuracy after {epochs}"
            return TrainingAnswer("ONE CELL", f"{only}; nothing to compare it with")
    return TrainingAnswer("UNKNOWN", "no training is complete yet")


def _final(cell: TrainedCell) -> str:
    """Its accuracy after the last epoch, the median over seeds."""
    return f"{cell.name} {show(final_accuracy(cell).value, _PERCENT)}%"


def _seeds(difference: CellDifference) -> str:
    """How many there are, and how many a judgement needs where these are too few."""
    seeds = f"{counted(difference.seeds, 'seed')} each"
    if difference.spread_points is None:
        seeds += f", {FEWEST_SEEDS} are needed"
    return seeds


def next_actions(findings: Sequence[Finding]) -> list[str]:
    """What the errors ask for; without one, what the warnings do. Each once."""
    for severity in ("error", "warning"):
        asked = [finding.next_step for finding in findings if finding.severity == severity]
        if asked:
            return list(dict.fromkeys(asked))
    return []
