"""Findings about trainings: failures, divergence, too few seeds, differences in accuracy."""

from collections.abc import Iterator

from dpscope.analysis.stats.samples import Verdict
from dpscope.analysis.training.data import TrainingData, failure
from dpscope.analysis.training.seed_statistics import (
    FEWEST_SEEDS,
    CellDifference,
    differences,
    last_rise_points,
)
from dpscope.profiling.records.finding import Finding, Severity, counted
from dpscope.profiling.records.learning_codes import LearningCode

_STILL_LEARNING_POINTS = 1.0  # by which accuracy rises in an epoch of an unfinished training


def training_findings(data: TrainingData) -> list[Finding]:
    """All findings about a run folder's trainings, including stored ones; each once."""
    findings = [
        *data.findings,
        *_failed(data),
        *_incomplete(data),
        *_diverged(data),
        *_still_learning(data),
        *_few_seeds(data),
        *_differences(data),
    ]
    return list(dict.fromkeys(findings))


def _failed(data: TrainingData) -> Iterator[Finding]:
    for result in data.failed:
        cell = result.cell.name
        seed = result.seed
        action = f"read {data.folder}/training/{cell}/seed{seed}/log.txt and train again"
        if result.status == "interrupted":
            action = LearningCode.TRAINING_INCOMPLETE.value.action
        about = f"{cell}, seed {seed}"
        yield LearningCode.TRAINING_FAILED.finding(failure(result), action, about=about)


def _incomplete(data: TrainingData) -> Iterator[Finding]:
    planned = counted(data.planned_epochs, "epoch")
    for cell in data.trained:
        short = []
        for training in cell.trainings:
            if not training.complete:
                trained = len(training.epochs)
                short.append(f"seed {training.seed} has {trained}")
        if short:
            seeds = ", ".join(short)
            lacks = f"of {planned} {seeds}"
            yield LearningCode.TRAINING_INCOMPLETE.finding(
                f"{lacks}; left out of its accuracy", about=cell.name
            )
    for name, seed in data.untrained:
        yield LearningCode.TRAINING_INCOMPLETE.finding(
            f"of {planned} none is trained", about=f"{name}, seed {seed}"
        )


def _diverged(data: TrainingData) -> Iterator[Finding]:
    for cell in data.trained:
        for training in cell.trainings:
            for epoch in training.epochs:
                if epoch.train_loss is None or epoch.test_loss is None:
                    message = f"the loss is not finite in epoch {epoch.epoch}"
                    about = f"{cell.name}, seed {training.seed}"
                    yield LearningCode.TRAINING_DIVERGED.finding(message, about=about)
                    break


def _still_learning(data: TrainingData) -> Iterator[Finding]:
    for cell in data.trained:
        rise_points = last_rise_points(cell)
        if rise_points is not None and rise_points >= _STILL_LEARNING_POINTS:
            yield LearningCode.STILL_LEARNING.finding(
                f"test accuracy rose by {rise_points:.1f} points in the last epoch",
                f"train for more epochs (--epochs {2 * data.planned_epochs})",
                about=cell.name,
            )


def _few_seeds(data: TrainingData) -> Iterator[Finding]:
    seeds = {}
    for cell in data.trained:
        seeds[cell.name] = len(cell.complete)
    few = []
    for name, count in seeds.items():
        if count < FEWEST_SEEDS:
            few.append(f"{name} has {count}")
    if few and len(seeds) > 1:
        needed = f"{FEWEST_SEEDS} complete seeds of a cell are needed"
        yield LearningCode.FEW_SEEDS.finding(
            f"{needed} to show how much accuracy varies by chance; {', '.join(few)}"
        )


_JUDGED: dict[Verdict, str] = {
    "above": "test accuracy is higher",
    "below": "test accuracy is lower",
    "no_difference_shown": "no significant difference in test accuracy",
}
_CHECK = (
    "check what differs: batch per device (batch norm), learning rate for the global batch, precision; "
    "`dpscope equal` compares the first steps"
)
_ACTIONS: dict[Verdict, str] = {
    "above": _CHECK,
    "below": _CHECK,
    "no_difference_shown": "train with more seeds if a smaller difference matters",
}


def difference_message(difference: CellDifference) -> str:
    """The difference between two cells of enough seeds to judge accuracies as a sentence."""
    judged = _JUDGED[difference.verdict]
    points = f"{difference.shown_points:+.2f} points"
    seeds = counted(difference.seeds, "seed")
    spread = f"spread {difference.spread_points:.2f} points"
    speedup = speedup_text(difference)
    cells = f"{difference.cell} versus {difference.against}"
    basis = f"{points}; {seeds}, {spread}"
    return f"{cells}: {judged} ({basis}); {speedup}"


def speedup_text(difference: CellDifference) -> str:
    """How much faster an epoch is, with the interval or why there is none."""
    speedup = difference.speedup
    epochs = counted(speedup.count, "epoch")
    interval = f"{epochs}, no interval"
    if speedup.low is not None and speedup.high is not None:
        interval = f"95% interval {speedup.low:.2f} to {speedup.high:.2f}"
    times = f"{speedup.value:.2f}x as fast as {difference.against}"
    return f"{difference.cell} trains an epoch {times} ({interval})"


def _differences(data: TrainingData) -> Iterator[Finding]:
    for difference in differences(data):
        if difference.verdict == "too_few_samples":
            continue  # of which few_seeds warns
        severity: Severity = "info"
        if difference.verdict == "below":
            severity = "warning"
        message = difference_message(difference)
        action = _ACTIONS[difference.verdict]
        yield LearningCode.ACCURACY_DIFFERENCE.finding(message, action, severity=severity)
