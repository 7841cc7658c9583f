"""Findings about trainings: failures, divergence, too few seeds, differences in accuracy."""

from dpscope.analysis.training.data import TrainedCell, TrainingData, failed_trainings
from dpscope.analysis.training.seed_statistics import FEWEST_SEEDS, CellDifference, against_default, against_single
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode


def training_findings(data: TrainingData) -> list[Finding]:
    """All findings about a run folder's trainings, including stored ones; each once."""
    found = [
        *data.findings,
        *_failed(data),
        *(finding for cell in data.trained for finding in _about_cell(data, cell)),
        *_percent(data),
        *_seeds(data),
        *(_about_difference(one) for one in (*against_single(data), *against_default(data)) if one.points is not None),
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
        resumed_from_other = all(one.epochs and one.epochs[0].epoch > 1 for one in short)
        seeds = ", ".join(f"seed {one.seed} has {len(one.epochs)}" for one in short)
        findings.append(
            LearningCode.TRAINING_INCOMPLETE.finding(
                message=f"{cell.name}: of {counted(data.planned_epochs, 'epoch')} {seeds}; left out of its accuracy",
                next_step="its first epochs are another cell's (--resume-from): train it from the beginning to get its accuracy"
                if resumed_from_other
                else "repeat the same `dpscope train` command: it resumes where it stopped",
            )
        )
    for training in cell.trainings:
        diverged = next((one.epoch for one in training.epochs if one.train_loss is None or one.test_loss is None), None)
        if diverged is not None:
            findings.append(
                LearningCode.TRAINING_DIVERGED.finding(
                    message=f"{cell.name}, seed {training.seed}: the loss is not finite in epoch {diverged}"
                )
            )
    return findings


def _percent(data: TrainingData) -> list[Finding]:
    """Accuracies of at most 1 are probably fractions."""
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
    fewest, names = min(len(cell.complete) for cell in few), ", ".join(cell.name for cell in few)
    return [
        LearningCode.FEW_SEEDS.finding(
            message=f"{names}: {counted(fewest, 'seed')}; {FEWEST_SEEDS} are needed to show how much accuracy "
            "varies by chance, so no difference in accuracy is judged"
        )
    ]


def difference_message(one: CellDifference) -> str:
    """The difference between two cells with known accuracies as a sentence."""
    pair = f"{one.cell} versus {one.against}"
    faster = f"an epoch trains {one.speedup.value:.2f}x as fast"
    points = f"{one.points:+.2f} points"
    spread = (
        f"{counted(one.seeds, 'seed')} spread over {one.spread_points:.2f} points"
        if one.spread_points is not None
        else ""
    )
    if one.verdict == "too_few_samples":
        return (
            f"{pair}: test accuracy is not judged ({points}, {counted(one.seeds, 'seed')}: {FEWEST_SEEDS} are needed for a "
            f"spread); {faster}"
        )
    if one.verdict == "no_difference_shown":
        return f"{pair}: no significant difference in test accuracy ({points}; {spread}); {faster}"
    return f"{pair}: test accuracy differs by {points}, more than the spread over seeds ({spread}); {faster}"


def _about_difference(one: CellDifference) -> Finding:
    advice = {
        "too_few_samples": "train with three seeds or more",
        "no_difference_shown": "train with more seeds if a smaller difference matters",
    }.get(
        one.verdict,
        "check what differs: batch per device (batch norm), learning rate for the global batch, precision; "
        "`dpscope equal` compares the first steps",
    )
    return LearningCode.ACCURACY_DIFFERENCE.finding(
        message=difference_message(one), next_step=advice, severity="warning" if one.verdict == "below" else "info"
    )
