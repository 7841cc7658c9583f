"""Compares the trainings of `dpscope equal`: a verdict on every pair, a finding for every difference.

Batch norm normalises by the mean and variance of its input (Ioffe and Szegedy 2015): of the global batch on a single device, of
a device's share under DataParallel and DistributedDataParallel. Together, three observations prove that only this makes a
training by the global batch differ from one by shares:
- in the first forward the first output beyond the tolerance is a batch norm's;
- a single device that takes the batch in shares agrees with the training by shares, at every judged step;
- the training by the global batch is a single device, or agrees with one (DistributedDataParallel with SyncBatchNorm).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import pandas as pd

from dpscope.analysis.equality import differences, result
from dpscope.analysis.equality.data import (
    EqualityData,
    RecordedTraining,
    first_names,
    sample_mistakes,
)
from dpscope.analysis.equality.differences import output_differences, training_differences
from dpscope.profiling.records.equality import EqualitySettings
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import CellOptions

Scope = Literal["none", "batch", "share"]


def compare_trainings(data: EqualityData) -> result.EqualityReport:
    """Compare all pairs of strategies, and the ranks of each, with a tolerance measured on the reference."""
    settings, reference = data.settings, data.compared[0]
    moved = [(reference, data.rounding)]  # trainings that were repeated with moved weights
    if data.in_shares is not None and data.rounding_in_shares is not None:
        moved.append((data.in_shares, data.rounding_in_shares))
    rounding = pd.concat([training_differences(*pair) for pair in moved], ignore_index=True)
    tolerance = differences.tolerances(rounding, settings)
    outputs = [one for pair in moved for one in output_differences(*pair).values() if not math.isnan(one)]
    judged = differences.judged_steps(tolerance, rounding)
    pairs = [differences.judge_pair(*pair, tolerance, judged) for pair in itertools.combinations(data.compared, 2)]
    ranks = [differences.rank_result(training) for training in data.compared if len(training.ranks) > 1]
    samples = {training.name: training.samples() for training in data.compared}

    output_tolerance = max(differences.least_tolerance(settings), differences.SAFETY * max(outputs, default=0.0))
    evidence = _Evidence(data, tolerance, output_tolerance, pairs)
    explained = [evidence.batch_norm_finding(pair) if pair.verdict == "different" else None for pair in pairs]
    in_samples = ((name, finding) for name in samples for finding in sample_mistakes(name, samples))
    mistakes = [*in_samples, *_rank_mistakes(ranks)]  # with the training that each is about
    mistaken = {training for training, _ in mistakes}
    different = [(pair, found) for pair, found in zip(pairs, explained, strict=True) if pair.verdict == "different"]
    unexplained = [pair for pair, finding in different if finding is None]
    return result.EqualityReport(
        schema_version=result.EQUALITY_SCHEMA_VERSION,
        settings=settings,
        reference=reference.name,
        losses={one.name: tuple(map(differences.known, one.losses().tolist())) for one in data.compared},
        tolerances=tuple(result.StepTolerance(**row) for row in differences.plain_rows(tolerance.reset_index())),
        pairs=tuple(
            pair if finding is None else msgspec.structs.replace(pair, verdict="explained")
            for pair, finding in zip(pairs, explained, strict=True)
        ),
        ranks=tuple(ranks),
        findings=(
            *(finding for _, finding in mistakes),
            *(evidence.unexplained(one) for one in unexplained if not mistaken & {one.reference, one.other}),
            *filter(None, explained),
            *_judged(settings, min(pair.judged_steps for pair in pairs)),
            *_random_layers(reference),
        ),
    )


def _rank_mistakes(ranks: Sequence[result.RankAgreement]) -> Iterator[tuple[str, Finding]]:
    """Processes of one training that differ from the others."""
    for one in ranks:
        if not one.same_bits:
            apart = ", ".join(map(str, one.ranks_apart))
            finding = LearningCode.RANKS_APART.finding(
                f"{one.training}: from step {one.first_step} on rank {apart} has different {one.what}s from rank 0's "
                f"({one.tensor} differs by {_share(one.relative)}): they are not averaged there"
            )
            yield one.training, finding


def _judged(settings: EqualitySettings, judged_steps: int) -> Iterator[Finding]:
    if not judged_steps:
        yield LearningCode.NOTHING_JUDGED.finding(
            "no step is judged: in the first one values are not finite, or rounding is beyond 1% of them"
        )
    elif judged_steps < settings.steps:
        other = "--dtype float64, or " if settings.precision == "float32" else ""
        yield LearningCode.ROUNDING_GROWS.finding(
            f"only the first {judged_steps} of {counted(settings.steps, 'step')} are judged: after that, training "
            "amplifies rounding beyond 1% of the values, or diverges, which could hide a mistake",
            f"use {other}a smaller --lr",
        )


def _random_layers(reference: RecordedTraining) -> Iterator[Finding]:
    if disabled := reference.ranks[0].record.random_layers:
        yield LearningCode.RANDOM_LAYERS_OFF.finding(
            f"dropout and similar layers are disabled ({first_names(disabled)}): each strategy draws other random numbers"
        )


def _statistics_of(training: RecordedTraining, settings: EqualitySettings) -> Scope:
    """What batch norm's statistics cover: the global batch, a device's share, or none without batch norm."""
    if not training.ranks[0].record.batch_norms:
        return "none"
    synchronised = settings.sync_batch_norm and training.cell.per_device
    return "batch" if training.cell.traits.baseline or synchronised else "share"


class _Evidence:
    """What explains the difference of a pair, or shows where it begins."""

    def __init__(
        self, data: EqualityData, tolerance: pd.DataFrame, output_tolerance: float, pairs: Sequence[result.PairResult]
    ) -> None:
        """`tolerance` has a row per step."""
        self._data, self._tolerance, self._output_tolerance, self._pairs = data, tolerance, output_tolerance, pairs
        self._trainings = {one.name: one for one in data.compared}

    def batch_norm_finding(self, pair: result.PairResult) -> Finding | None:
        """The finding that explains a pair's difference by batch norm; None if the evidence does not hold."""
        settings, in_shares = self._data.settings, self._data.in_shares
        reference, other = self._trainings[pair.reference], self._trainings[pair.other]
        scopes = {_statistics_of(one, settings): one for one in (reference, other)}
        if scopes.keys() != {"batch", "share"} or in_shares is None:
            return None
        apart = self._first_output_apart(self._with_outputs(reference), self._with_outputs(other))
        if apart is None or apart[0].partition("#")[0] not in reference.ranks[0].record.batch_norms:
            return None
        by_share = differences.judge_pair(in_shares, scopes["share"], self._tolerance, pair.judged_steps)
        of_batch = scopes["batch"]
        agreeing = [self._trainings[one.reference] for one in self._pairs if one.agree and one.other == of_batch.name]
        if not by_share.agree or not any(one.cell.traits.baseline for one in (of_batch, *agreeing)):
            return None
        how = "bit for bit" if by_share.verdict == "bit-equal" else "within the tolerance"
        return LearningCode.BATCH_NORM_BY_SHARE.finding(
            f"{pair.reference} and {pair.other} differ only by batch norm: the first output that "
            f"differs is {apart[0]}'s ({apart[1]:.2g} of its norm), and a single device that takes each batch in "
            f"{settings.devices} shares of {settings.global_batch_size // settings.devices} agrees with "
            f"{scopes['share'].name} {how} over {counted(pair.judged_steps, 'step')}"
        )

    def _with_outputs(self, training: RecordedTraining) -> RecordedTraining:
        """The training; for a compiled one, which stores no outputs, its strategy without compilation, if both agree."""
        plain = msgspec.structs.replace(training.cell, options=CellOptions(), variant="")
        agreeing = (self._trainings[one.reference] for one in self._pairs if one.agree and one.other == training.name)
        return next((one for one in agreeing if one.cell == plain), training)

    def _first_output_apart(self, reference: RecordedTraining, other: RecordedTraining) -> tuple[str, float] | None:
        """The first module call of the first forward with an output beyond the tolerance, and its relative difference."""
        outputs = output_differences(reference, other)
        return next((found for found in outputs.items() if found[1] > self._output_tolerance), None)

    def unexplained(self, pair: result.PairResult) -> Finding:
        """The finding about a difference that is neither explained nor a training's reported mistake."""
        first, reference, other = pair.first_difference, self._trainings[pair.reference], self._trainings[pair.other]
        assert first is not None
        tensor, where = f" of {first.tensor}" if first.tensor else "", ""
        if output := self._first_output_apart(reference, other):
            where = f"; in the first forward {output[0]} is the first whose output differs"
        elif first.what == "gradient" and first.tolerance is not None:
            factor, distance = differences.gradient_factor(reference.ranks[0], other.ranks[0], first.step)
            if distance <= first.tolerance and factor != 1:
                where = (
                    f"; all its gradients are {factor:.6g} times as large: summed instead of averaged, or another scale of "
                    "the loss"
                )
        return LearningCode.UNEXPLAINED_DIFFERENCE.finding(
            f"{pair.other} differs from {pair.reference} from step {first.step} on: the {first.what}{tensor} by "
            f"{_share(first.relative)}; the tolerance for rounding is {_share(first.tolerance)}{where}"
        )


def _share(value: float | None) -> str:
    return "more than any number" if value is None else f"{value:.2g} of its norm"
