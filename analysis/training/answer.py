"""What trainings answer, in one line: do accuracy and loss stay the same, and is an epoch faster?"""

from collections import Counter
from collections.abc import Iterator, Sequence

from dpscope.analysis.stats.samples import Verdict
from dpscope.analysis.text.units import NA, Unit, show
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.findings import speedup_text
from dpscope.analysis.training.seed_statistics import (
    FEWEST_SEEDS,
    CellDifference,
    differences,
    final_accuracy,
    final_loss,
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


def training_answer(data: TrainingData) -> str:
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
    sides = f"{_final(cells[shown.cell])} and {_final(cells[shown.against])}"
    accuracy = f"test accuracy of {sides} ({_seeds(shown)})"
    answer = f"{_ANSWERS[shown.verdict]}: {accuracy}; {speedup_text(shown)}"

    others = Counter(_ANSWERS[other.verdict] for other in plain if other is not shown)
    more = [f"{count} more {word}" for word, count in others.items()]
    return "; ".join([answer, *more])


def _first_accuracy(data: TrainingData) -> str:
    """Of the first cell whose trainings are complete."""
    for cell in data.trained:
        accuracy = final_accuracy(cell).value
        if accuracy is not None:
            epochs = counted(data.planned_epochs, "epoch")
            return f"{cell.name}: {accuracy:.2f}% test accuracy after {epochs}"
    return "No training is complete yet."


def _final(cell: TrainedCell) -> str:
    """Its accuracy and loss after the last epoch, medians over seeds."""
    loss = final_loss(cell)
    shown = NA if loss is None else f"{loss:.4f}"
    return f"{cell.name} {show(final_accuracy(cell).value, _PERCENT)}%, loss {shown}"


def _seeds(difference: CellDifference) -> str:
    """How many there are, and how many a judgement needs where these are too few."""
    seeds = counted(difference.seeds, "seed")
    if difference.spread_points is None:
        seeds += f", {FEWEST_SEEDS} are needed"
    return seeds


def next_action(findings: Sequence[Finding]) -> Iterator[str]:
    """What the first error or warning asks for."""
    for finding in findings:
        if finding.severity != "info":
            yield f"NEXT: {finding.next_step}"
            return
