"""Compares the trainings of `dpscope equal`: a verdict on every pair, a finding for every
difference.
"""

import itertools
from collections.abc import Iterator, Sequence

from dpscope.analysis.equality import differences, result
from dpscope.analysis.equality.data import (
    EqualityData,
    RecordedTraining,
    first_names,
    sample_difference,
)
from dpscope.analysis.equality.differences import judge_pair, training_differences
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode


def compare_trainings(data: EqualityData) -> result.EqualityReport:
    """Compare all pairs of strategies, and the ranks of each, with a tolerance measured on the
    reference.
    """
    settings, compared = data.settings, data.compared
    tolerance = differences.tolerances(training_differences(compared[0], data.rounding), settings)
    ranks = [differences.rank_result(training) for training in compared if len(training.ranks) > 1]
    # by the training that each is about
    mistakes = {**_other_samples(compared), **_ranks_apart(ranks)}
    pairs, of_pairs = [], []
    for reference, other in itertools.combinations(compared, 2):
        pair = judge_pair(reference, other, tolerance)
        pairs.append(pair)
        if pair.verdict == "different" and not {reference.name, other.name} & mistakes.keys():
            of_pairs.append(_unexplained(pair, reference, other))
    return result.EqualityReport(
        schema_version=result.EQUALITY_SCHEMA_VERSION,
        settings=settings,
        reference=compared[0].name,
        losses={
            training.name: tuple(map(differences.known, training.losses().tolist()))
            for training in compared
        },
        tolerances=tolerance.rows(),
        pairs=tuple(pairs),
        ranks=tuple(ranks),
        findings=(
            *mistakes.values(),
            *of_pairs,
            *_judged(data, min(pair.judged_steps for pair in pairs)),
            *_random_layers(compared[0]),
        ),
    )


def _other_samples(compared: Sequence[RecordedTraining]) -> dict[str, Finding]:
    """Trainings on other samples than the reference's."""
    reference, *others = compared
    expected = reference.samples()
    findings = {}
    for training in others:
        difference = sample_difference(expected, training.samples())
        if difference is None:
            continue
        step, missing, extra = difference
        findings[training.name] = LearningCode.SAMPLES_DIFFER.finding(
            f"from step {step} on {training.name} trains on different samples from {reference.name}: in that step, "
            f"missing are {first_names(missing) or 'none'}, too many are {first_names(extra) or 'none'}"
        )
    return findings


def _ranks_apart(ranks: Sequence[result.RankAgreement]) -> dict[str, Finding]:
    """Processes of one training that differ from the others."""
    findings = {}
    for agreement in ranks:
        first = agreement.first_difference
        if first is not None:
            apart = ", ".join(map(str, agreement.ranks_apart))
            findings[agreement.training] = LearningCode.RANKS_APART.finding(
                f"{agreement.training}: from step {first.step} on rank {apart} has different {first.what}s from rank 0's "
                f"({first.tensor} differs by {_share(first.relative)}): they are not averaged there"
            )
    return findings


def _unexplained(
    pair: result.PairResult, reference: RecordedTraining, other: RecordedTraining
) -> Finding:
    """The finding about a difference that is neither explained nor a training's reported
    mistake.
    """
    first = pair.first_difference
    assert first is not None
    tensor = f" of {first.tensor}" if first.tensor else ""
    cause = ""
    if first.what == "gradient" and first.tolerance is not None:
        mine, others = reference.ranks[0], other.ranks[0]
        factor, distance = differences.gradient_factor(mine, others, first.step)
        if distance <= first.tolerance and factor != 1:
            larger = f"all its gradients are {factor:.6g} times as large"
            cause = f"; {larger}: summed instead of averaged, or another scale of the loss"
    return LearningCode.UNEXPLAINED_DIFFERENCE.finding(
        f"{pair.other} differs from {pair.reference} from step {first.step} on: the {first.what}{tensor} by "
        f"{_share(first.relative)}; the tolerance for rounding is {_share(first.tolerance)}{cause}"
    )


def _judged(data: EqualityData, judged_steps: int) -> Iterator[Finding]:
    settings = data.settings
    if not judged_steps:
        yield LearningCode.STEPS_NOT_JUDGED.finding(
            "no step is judged: in the first one values are not finite, or rounding is beyond 1% of them",
            "check that the loss is finite; use --dtype float64, or a smaller --lr",
            severity="error",
        )
    elif judged_steps < settings.steps:
        other = "--dtype float64, or " if settings.precision == "float32" else ""
        yield LearningCode.STEPS_NOT_JUDGED.finding(
            f"only the first {judged_steps} of {counted(settings.steps, 'step')} are judged: after that, training "
            "amplifies rounding beyond 1% of the values, or diverges, which could hide a mistake",
            f"use {other}a smaller --lr",
        )


def _random_layers(reference: RecordedTraining) -> Iterator[Finding]:
    if disabled := reference.ranks[0].record.random_layers:
        yield LearningCode.RANDOM_LAYERS_OFF.finding(
            f"dropout and similar layers are disabled ({first_names(disabled)}): each strategy draws other random numbers"
        )


def _share(value: float | None) -> str:
    return "more than any number" if value is None else f"{value:.2g} of its norm"
