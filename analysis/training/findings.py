"""Findings about trainings: failures, divergence, too few seeds, differences in accuracy."""

from collections.abc import Iterator

from dpscope.analysis.stats.samples import Verdict
from dpscope.analysis.text.units import choose_unit, show
from dpscope.analysis.training.data import TrainingData, failure
from dpscope.analysis.training.seed_statistics import FEWEST_SEEDS, CellDifference, differences
from dpscope.profiling.records.finding import Finding, Severity, counted, grouped
from dpscope.profiling.records.learning_codes import LearningCode


def training_findings(data: TrainingData) -> list[Finding]:
    """All findings about a run folder's trainings, including stored ones; each once."""
    findings = [*data.findings, *_failed(data), *_incomplete(data), *_diverged(data)]
    findings += _few_seeds(data)
    findings += [
        _about(difference)
        for difference in differences(data)
        if difference.verdict != "too_few_samples"  # of which few_seeds warns
    ]
    return list(dict.fromkeys(findings))


def _failed(data: TrainingData) -> Iterator[Finding]:
    for result in data.failed:
        log = f"{data.folder}/training/{result.cell.name}/seed{result.seed}/log.txt"
        action = f"read {log} and train again"
        if result.status == "interrupted":
            action = LearningCode.TRAINING_INCOMPLETE.value.action
        yield LearningCode.TRAINING_FAILED.finding(
            failure(result), action, about=f"{result.cell.name}, seed {result.seed}"
        )


def _incomplete(data: TrainingData) -> Iterator[Finding]:
    """Of each cell, the trainings that were planned and lack epochs."""
    trained = {
        (cell.name, training.seed): len(training.epochs)
        for cell in data.trained
        for training in cell.trainings
    }
    planned = dict.fromkeys((*data.planned, *trained))
    lacking = [training for training in planned if trained.get(training, 0) < data.planned_epochs]
    for name, seeds in grouped(lacking).items():
        counts = ", ".join(f"seed {seed} has {trained.get((name, seed), 0)}" for seed in seeds)
        yield LearningCode.TRAINING_INCOMPLETE.finding(
            f"of {counted(data.planned_epochs, 'epoch')} {counts}; left out of its accuracy",
            about=name,
        )


def _diverged(data: TrainingData) -> Iterator[Finding]:
    for cell in data.trained:
        for training in cell.trainings:
            for epoch in training.epochs:
                if epoch.train_loss is None or epoch.test_loss is None:
                    yield LearningCode.TRAINING_DIVERGED.finding(
                        f"the loss is not finite in epoch {epoch.epoch}",
                        about=f"{cell.name}, seed {training.seed}",
                    )
                    break


def _few_seeds(data: TrainingData) -> Iterator[Finding]:
    few = [cell for cell in data.trained if len(cell.complete) < FEWEST_SEEDS]
    if few and len(data.trained) > 1:
        counts = ", ".join(f"{cell.name} has {len(cell.complete)}" for cell in few)
        yield LearningCode.FEW_SEEDS.finding(
            f"{FEWEST_SEEDS} complete seeds of a cell are needed to show how much accuracy varies by chance; {counts}"
        )


_POINTS = choose_unit("percent", ())  # of as many decimals as accuracies have
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
    spread = show(difference.spread_points, _POINTS)
    return (
        f"{difference.cell} versus {difference.against}: {_JUDGED[difference.verdict]} ({difference.shown_points:+.2f} points; "
        f"{counted(difference.seeds, 'seed')}, spread {spread} points); {speedup_text(difference)}"
    )


def speedup_text(difference: CellDifference) -> str:
    """How much faster an epoch is, with the interval or why there is none."""
    speedup = difference.speedup
    interval = f"{counted(speedup.count, 'epoch')}, no interval"
    if speedup.low is not None and speedup.high is not None:
        interval = f"95% interval {speedup.low:.2f} to {speedup.high:.2f}"
    return f"an epoch trains {speedup.value:.2f}x as fast ({interval})"


def _about(difference: CellDifference) -> Finding:
    severity: Severity = "warning" if difference.verdict == "below" else "info"
    return LearningCode.ACCURACY_DIFFERENCE.finding(
        difference_message(difference), _ACTIONS[difference.verdict], severity=severity
    )
