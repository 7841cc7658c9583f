"""What trainings show, as findings: failures, divergence, too few seeds, accuracies that differ beyond their seeds."""

from dpscope.analysis.training.data import TrainedCell, TrainingData, failed_trainings
from dpscope.analysis.training.seed_statistics import FEWEST_SEEDS, CellDifference, against_default, against_single
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode


def training_findings(data: TrainingData) -> list[Finding]:
    """All findings of a run folder's trainings, those stored while training included; each once."""
    found = [
        *data.findings,
        *_failed(data),
        *(finding for cell in data.trained for finding in _about_cell(data, cell)),
        *_percent(data),
        *_seeds(data),
        *(_about_difference(one) for one in against_single(data) if one.points is not None),
        *(_about_difference(one) for one in against_default(data) if one.points is not None),
    ]
    return list(dict.fromkeys(found))


def _failed(data: TrainingData) -> list[Finding]:
    return [
        LearningCode.TRAINING_FAILED.finding(
            message=f"{result.cell.name}, seed {result.seed}: {result.status.replace('_', ' ')}: {result.message}",
            next_step=f"read {data.folder}/training/{result.cell.name}/seed{result.seed}/log.txt and train again",
        )
        for result in failed_trainings(data.folder)
    ]


def _about_cell(data: TrainingData, cell: TrainedCell) -> list[Finding]:
    findings = []
    short = [training for training in cell.trainings if not training.complete]
    if short:
        begun_elsewhere = all(one.epochs and one.epochs[0].epoch > 1 for one in short)
        seeds = ", ".join(f"seed {one.seed} has {len(one.epochs)}" for one in short)
        findings.append(
            LearningCode.TRAINING_INCOMPLETE.finding(
                message=f"{cell.name}: of {counted(data.planned_epochs, 'epoch')} {seeds}; left out of its accuracy",
                next_step="its first epochs are another cell's (--resume-from): train it from the beginning for an accuracy "
                "of its own"
                if begun_elsewhere
                else "give the same `dpscope train` command again: it resumes where it stopped",
            )
        )
    for training in cell.trainings:
        lost = next((one.epoch for one in training.epochs if one.train_loss is None or one.test_loss is None), None)
        if lost is not None:
            findings.append(
                LearningCode.TRAINING_DIVERGED.finding(
                    message=f"{cell.name}, seed {training.seed}: the loss is not finite in epoch {lost}"
                )
            )
    return findings


def _percent(data: TrainingData) -> list[Finding]:
    """Accuracies all at most 1 are most likely fractions."""
    best = max(training.best_accuracy for cell in data.trained for training in cell.trainings)
    if data.manifest is not None or best > 1:
        return []
    return [
        LearningCode.ACCURACY_NOT_PERCENT.finding(
            message=f"no test accuracy is above {best:g}%: they look like fractions"
        )
    ]


def _seeds(data: TrainingData) -> list[Finding]:
    few = [cell for cell in data.trained if len(cell.complete) < FEWEST_SEEDS]
    if not few or len(data.trained) < 2:
        return []
    fewest = min(len(cell.complete) for cell in few)
    return [
        LearningCode.FEW_SEEDS.finding(
            message=f"{_names(few)}: {counted(fewest, 'seed')}, and it takes {FEWEST_SEEDS} to show how much accuracy "
            "varies by chance; no difference of accuracy is judged"
        )
    ]


def _names(cells: list[TrainedCell]) -> str:
    return ", ".join(cell.name for cell in cells)


def difference_message(one: CellDifference) -> str:
    """A difference of two cells, whose accuracies are known, in words."""
    pair = f"{one.cell} against {one.against}"
    faster = f"an epoch trains {one.speedup.value:.2f}x as fast"
    points = f"{one.points:+.2f} points"
    spread = (
        f"{counted(one.seeds, 'seed')} spread over {one.spread_points:.2f} points"
        if one.spread_points is not None
        else ""
    )
    if one.verdict == "too_few_samples":
        return (
            f"{pair}: test accuracy is not judged ({points}, {counted(one.seeds, 'seed')}: {FEWEST_SEEDS} are the fewest that "
            f"show a spread); {faster}"
        )
    if one.verdict == "no_difference_shown":
        return f"{pair}: no difference of test accuracy is shown ({points}; {spread}); {faster}"
    return f"{pair}: test accuracy differs by {points}, more than the spread over seeds ({spread}); {faster}"


def _about_difference(one: CellDifference) -> Finding:
    advice = {
        "too_few_samples": "train with three seeds or more",
        "no_difference_shown": "train with more seeds if a smaller difference matters",
    }.get(
        one.verdict,
        "look for what differs: batch per device (batch norm), learning rate for the global batch, precision; "
        "`dpscope equal` compares the first steps",
    )
    return LearningCode.ACCURACY_DIFFERENCE.finding(
        message=difference_message(one), next_step=advice, severity="warning" if one.verdict == "below" else "info"
    )
