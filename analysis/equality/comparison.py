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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd

from dpscope.analysis.equality import differences
from dpscope.analysis.equality.data import EqualityData, RecordedTraining
from dpscope.analysis.equality.differences import JudgedPair, output_differences, training_differences
from dpscope.analysis.equality.result import EQUALITY_SCHEMA_VERSION, EqualityReport, RankAgreement, StepTolerance
from dpscope.analysis.equality.samples import Mistake, first_names, repeated_samples, sample_mistakes
from dpscope.profiling.records.equality import EQUALITY_NAME, EqualitySettings
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.store.files import write_json

Scope = Literal["none", "batch", "share"]


def compare_trainings(data: EqualityData) -> EqualityReport:
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
    ranks = [_rank_result(training, data) for training in data.compared if len(training.ranks) > 1]
    samples = {training.name: training.samples() for training in data.compared}

    output_tolerance = max(differences.least_tolerance(settings), differences.SAFETY * max(outputs, default=0.0))
    evidence = _Evidence(data, tolerance, output_tolerance, pairs)
    expected = {pair: evidence.batch_norm_finding(pair) for pair in pairs if not pair.agree}
    explained = {pair: finding for pair, finding in expected.items() if finding is not None}
    mistakes = [*sample_mistakes(samples, reference.ranks[0].record.shuffled), *_rank_mistakes(ranks)]
    mistaken = {training for training, _ in mistakes}
    unexplained = [pair for pair in expected if pair not in explained]
    return EqualityReport(
        schema_version=EQUALITY_SCHEMA_VERSION,
        settings=settings,
        reference=reference.name,
        losses={one.name: tuple(map(differences.known, one.losses().tolist())) for one in data.compared},
        tolerances=tuple(StepTolerance(**row) for row in differences.plain_rows(tolerance.reset_index())),
        pairs=tuple(differences.pair_result(pair, pair in explained) for pair in pairs),
        ranks=tuple(ranks),
        findings=(
            *(finding for _, finding in mistakes),
            *(evidence.unexplained(one) for one in unexplained if not mistaken & {one.reference.name, one.other.name}),
            *explained.values(),
            *_judged(settings, judged, all(pair.same_bits for pair in pairs)),
            *_recorded_settings(settings, reference, samples[reference.name]),
        ),
    )


def save_report(report: EqualityReport, out: Path) -> Path:
    """Write equality.json into the run folder; returns its path."""
    write_json(out / EQUALITY_NAME, report)
    return out / EQUALITY_NAME


def _rank_result(training: RecordedTraining, data: EqualityData) -> RankAgreement:
    """Compare the ranks of a training, and with a training that should agree with it, if there is one."""
    scope = _statistics_of(training, data.settings)
    same_scope = [one for one in data.compared if one is not training and _statistics_of(one, data.settings) == scope]
    if scope == "share" and data.in_shares is not None:
        same_scope.append(data.in_shares)
    return differences.rank_result(training, same_scope[-1] if same_scope else data.compared[0])


def _rank_mistakes(ranks: Sequence[RankAgreement]) -> Iterator[Mistake]:
    """Processes of one training that differ from the others."""
    for result in ranks:
        if not result.same_bits:
            apart = ", ".join(map(str, result.ranks_apart))
            finding = LearningCode.RANKS_APART.finding(
                f"{result.training}: from step {result.first_step} on rank {apart} has different {result.what}s "
                f"({result.tensor} differs by {_share(result.relative)} from another rank's): they are not averaged there",
                "find out why gradients are not averaged on that rank: no_sync, a communication hook, a different graph",
            )
            yield result.training, finding


def _judged(settings: EqualitySettings, judged_steps: int, same_bits: bool) -> Iterator[Finding]:
    if judged_steps < settings.steps and not same_bits:
        other = "--dtype float64, or " if settings.precision == "float32" else ""
        yield LearningCode.ROUNDING_GROWS.finding(
            f"only the first {judged_steps} of {counted(settings.steps, 'step')} are judged: after that, training "
            "amplifies rounding beyond 1% of the values, or diverges, which could hide a mistake",
            f"use {other}a smaller --lr",
        )


def _recorded_settings(
    settings: EqualitySettings, reference: RecordedTraining, samples: pd.DataFrame
) -> Iterator[Finding]:
    """What was not compared or was disabled for the comparison; `samples` are the reference's."""
    record = reference.ranks[0].record
    if record.random_layers:
        yield LearningCode.RANDOM_LAYERS_OFF.finding(
            f"dropout and similar layers are disabled ({first_names(record.random_layers)}): each strategy draws other "
            "random numbers"
        )
    if record.shuffled and samples["epoch"].nunique() < 2:
        yield LearningCode.NO_EPOCH_BOUNDARY.finding(
            f"no epoch ended within {counted(settings.steps, 'step')}: reshuffling (set_epoch) was not tested"
        )
    if record.shuffled and (padding := repeated_samples(samples)):
        yield LearningCode.SAMPLES_PADDED.finding(
            f"an epoch takes {counted(padding, 'sample')} twice, to make all shares equal, under every strategy"
        )


def _statistics_of(training: RecordedTraining, settings: EqualitySettings) -> Scope:
    """What batch norm's statistics cover: the global batch, a device's share, or none without batch norm."""
    if not training.ranks[0].record.batch_norms:
        return "none"
    synchronised = settings.sync_batch_norm and training.cell.per_device
    return "batch" if training.cell.traits.baseline or synchronised else "share"


@dataclass(frozen=True)
class _Evidence:
    """What explains the difference of a pair, or shows where it begins."""

    data: EqualityData
    tolerance: pd.DataFrame  # of each step
    output_tolerance: float
    pairs: Sequence[JudgedPair]

    def batch_norm_finding(self, pair: JudgedPair) -> Finding | None:
        """The finding that explains a pair's difference by batch norm; None if the evidence does not hold."""
        scopes = {_statistics_of(one, self.data.settings): one for one in (pair.reference, pair.other)}
        if scopes.keys() != {"batch", "share"} or self.data.in_shares is None:
            return None
        apart = self._first_output_apart(pair, self.pairs)
        if apart is None or apart[0].partition("#")[0] not in pair.reference.ranks[0].record.batch_norms:
            return None
        in_shares = differences.judge_pair(self.data.in_shares, scopes["share"], self.tolerance, pair.judged_steps)
        if not in_shares.agree or not self._agrees_with_single(scopes["batch"]):
            return None
        how = "bit for bit" if in_shares.same_bits else "within the tolerance"
        devices = self.data.settings.devices
        share = self.data.settings.global_batch_size // devices
        return LearningCode.BATCH_NORM_BY_SHARE.finding(
            f"{pair.reference.name} and {pair.other.name} differ only by batch norm: the first output that "
            f"differs is {apart[0]}'s ({apart[1]:.2g} of its norm), and a single device that takes each batch in {devices} "
            f"shares of {share} agrees with {scopes['share'].name} {how} over {counted(pair.judged_steps, 'step')}"
        )

    def _first_output_apart(self, pair: JudgedPair, pairs: Sequence[JudgedPair] = ()) -> tuple[str, float] | None:
        """The first module call of the first forward with an output beyond the tolerance, and its relative difference.

        A compiled training stores no outputs: those of its strategy without compilation are used if one of `pairs` shows that
        both agree.
        """

        def with_outputs(training: RecordedTraining) -> RecordedTraining:
            plain = msgspec.structs.replace(training.cell, options=CellOptions(), variant="")
            known = (one for one in pairs if one.agree and one.other is training and one.reference.cell == plain)
            return next((one.reference for one in known), training)

        outputs = output_differences(with_outputs(pair.reference), with_outputs(pair.other))
        return next((found for found in outputs.items() if found[1] > self.output_tolerance), None)

    def _agrees_with_single(self, training: RecordedTraining) -> bool:
        agreeing = [one.reference for one in self.pairs if one.agree and one.other.name == training.name]
        return any(one.cell.traits.baseline for one in (training, *agreeing))

    def unexplained(self, pair: JudgedPair) -> Finding:
        """The finding about a difference that is neither explained nor a training's reported mistake."""
        first = pair.first
        assert first is not None
        tensor, where = f" of {first.tensor}" if first.tensor else "", ""
        if output := self._first_output_apart(pair):
            where = f"; in the first forward {output[0]} is the first whose output differs"
        elif first.what == "gradient" and first.tolerance is not None:
            factor, distance = differences.gradient_factor(pair.reference.ranks[0], pair.other.ranks[0], first.step)
            if distance <= first.tolerance and factor != 1:
                where = (
                    f"; all its gradients are {factor:.6g} times as large: summed instead of averaged, or another scale of "
                    "the loss"
                )
        return LearningCode.UNEXPLAINED_DIFFERENCE.finding(
            f"{pair.other.name} differs from {pair.reference.name} from step {first.step} on: the {first.what}{tensor} by "
            f"{_share(first.relative)}; the tolerance for rounding is {_share(first.tolerance)}{where}"
        )


def _share(value: float | None) -> str:
    return "more than any number" if value is None else f"{value:.2g} of its norm"
