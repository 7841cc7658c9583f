"""Findings about trainings: failures, divergence, too few seeds, differences in accuracy."""

from collections.abc import Iterator

from dpscope.analysis.stats.samples import Verdict
from dpscope.analysis.training.data import TrainedCell, TrainingData, failed_trainings, failure
from dpscope.analysis.training.seed_statistics import (
    FEWEST_SEEDS,
    CellDifference,
    against_default,
    against_single,
)
from dpscope.profiling.records.finding import Finding, Severity, counted, grouped
from dpscope.profiling.records.learning_codes import LearningCode


def training_findings(data: TrainingData) -> list[Finding]:
    """All findings about a run folder's trainings, including stored ones; each once."""
    differences = (*against_single(data), *against_default(data))
    found = (
        *data.findings,
        *_failed(data),
        *(finding for cell in data.trained for finding in _about_cell(data, cell)),
        *_about_all(data),
        *(_about_difference(one) for one in differences if one.points is not None),
    )
    return list(dict.fromkeys(found))


def _failed(data: TrainingData) -> Iterator[Finding]:
    for result in failed_trainings(data.folder):
        log = f"{data.folder}/training/{result.cell.name}/seed{result.seed}/log.txt"
        yield LearningCode.TRAINING_FAILED.finding(
            failure(result),
            LearningCode.TRAINING_INCOMPLETE.value.action
            if result.status == "interrupted"
            else f"read {log} and train again",
            about=f"{result.cell.name}, seed {result.seed}",
        )


def _about_cell(data: TrainingData, cell: TrainedCell) -> Iterator[Finding]:
    short = [training for training in cell.trainings if not training.complete]
    if short:
        seeds = ", ".join(f"seed {one.seed} has {len(one.epochs)}" for one in short)
        yield LearningCode.TRAINING_INCOMPLETE.finding(
            f"of {counted(data.planned_epochs, 'epoch')} {seeds}; left out of its accuracy",
            about=cell.name,
        )
    for training in cell.trainings:
        diverged = next(
            (one.epoch for one in training.epochs if None in (one.train_loss, one.test_loss)), None
        )
        if diverged is not None:
            yield LearningCode.TRAINING_DIVERGED.finding(
                f"the loss is not finite in epoch {diverged}",
                about=f"{cell.name}, seed {training.seed}",
            )


def _about_all(data: TrainingData) -> Iterator[Finding]:
    best = max(training.best_accuracy for cell in data.trained for training in cell.trainings)
    if data.manifest is None and best <= 1:
        yield LearningCode.ACCURACY_NOT_PERCENT.finding(
            f"no test accuracy is above {best:g}%: they look like fractions"
        )
    few = [cell for cell in data.trained if len(cell.complete) < FEWEST_SEEDS]
    if few and len(data.trained) > 1:
        names = grouped((counted(len(cell.complete), "seed"), cell.name) for cell in few)
        seeds = "; ".join(f"{', '.join(own)}: {count}" for count, own in names.items())
        yield LearningCode.FEW_SEEDS.finding(
            f"{seeds}; {FEWEST_SEEDS} are needed to show how much accuracy varies by chance, so no difference in accuracy is "
            "judged"
        )


_JUDGED: dict[Verdict, str] = {
    "above": "test accuracy is higher",
    "below": "test accuracy is lower",
    "no_difference_shown": "no significant difference in test accuracy",
    "too_few_samples": "test accuracy is not judged",
}
_CHECK = (
    "check what differs: batch per device (batch norm), learning rate for the global batch, precision; "
    "`dpscope equal` compares the first steps"
)
_ACTIONS: dict[Verdict, str] = {
    "above": _CHECK,
    "below": _CHECK,
    "no_difference_shown": "train with more seeds if a smaller difference matters",
    "too_few_samples": f"train with {FEWEST_SEEDS} seeds or more",
}


def difference_message(one: CellDifference) -> str:
    """The difference between two cells with known accuracies as a sentence."""
    spread = "spread unknown"
    if one.spread_points is not None:
        spread = f"spread {one.spread_points:.2f} points"
    low, high = one.speedup.low, one.speedup.high
    interval = f"{counted(one.speedup.count, 'epoch')}, no interval"
    if low is not None and high is not None:
        interval = f"95% interval {low:.2f} to {high:.2f}"
    return (
        f"{one.cell} versus {one.against}: {_JUDGED[one.verdict]} ({one.points:+.2f} points; {counted(one.seeds, 'seed')}, "
        f"{spread}); an epoch trains {one.speedup.value:.2f}x as fast ({interval})"
    )


def _about_difference(one: CellDifference) -> Finding:
    severity: Severity = "warning" if one.verdict == "below" else "info"
    return LearningCode.ACCURACY_DIFFERENCE.finding(
        difference_message(one), _ACTIONS[one.verdict], severity=severity
    )
