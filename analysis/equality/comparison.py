"""Compares the trainings of `dpscope equal`: a verdict on every pair, a finding for every difference.

Batch norm normalises by the mean and variance of its input (Ioffe and Szegedy 2015): of the global batch on a single device, of
a device's share under DataParallel and DistributedDataParallel. Together, three observations prove that only this makes a
training by the global batch differ from one by shares:
- in the first forward the first output beyond the tolerance is a batch norm's;
- a single device that takes the batch in shares agrees with the training by shares, at every judged step;
- the training by the global batch is a single device, or agrees with one (DistributedDataParallel with SyncBatchNorm).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd

from dpscope.analysis.equality.data import (
    EqualityData,
    RecordedTraining,
    lost_samples,
    repeated_epoch,
    repeated_samples,
    sample_difference,
)
from dpscope.analysis.equality.differences import (
    JudgedPair,
    gradient_factor,
    judge_pair,
    judged_steps,
    known,
    output_differences,
    output_tolerance,
    pair_result,
    plain_rows,
    rank_result,
    tolerances,
    training_differences,
)
from dpscope.analysis.equality.result import (
    EQUALITY_SCHEMA_VERSION,
    EqualityReport,
    RankAgreement,
    StepTolerance,
    TensorDifference,
)
from dpscope.profiling.records.equality import EQUALITY_NAME, EqualitySettings
from dpscope.profiling.records.finding import Finding, FindingCode, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.store.files import write_json


def compare_trainings(data: EqualityData) -> EqualityReport:
    """Compare all pairs of strategies, and the ranks of each, with a tolerance measured on the reference."""
    settings, reference = data.settings, data.compared[0]
    moved = _moved(data)
    rounding = pd.concat([training_differences(*pair) for pair in moved], ignore_index=True)
    tolerance = tolerances(rounding, settings)
    of_outputs = output_tolerance(pd.concat([output_differences(*pair) for pair in moved]), settings)
    judged = judged_steps(tolerance, rounding)
    pairs = [judge_pair(*pair, tolerance, judged) for pair in itertools.combinations(data.compared, 2)]
    ranks = [_rank_result(training, data) for training in data.compared if len(training.ranks) > 1]
    samples = {training.name: training.samples() for training in data.compared}

    mistakes = [*sample_mistakes(samples, reference.ranks[0].record.shuffled), *rank_mistakes(ranks)]
    expected = {
        _names(pair): batch_norm_finding(pair, pairs, data, tolerance, of_outputs) for pair in pairs if not pair.agree
    }
    explained = {names: finding for names, finding in expected.items() if finding is not None}
    unexplained = [pair for pair in pairs if not pair.agree and _names(pair) not in explained]
    return EqualityReport(
        schema_version=EQUALITY_SCHEMA_VERSION,
        settings=settings,
        reference=reference.name,
        losses={training.name: tuple(map(known, training.losses().tolist())) for training in data.compared},
        tolerances=tuple(StepTolerance(**row) for row in plain_rows(tolerance.reset_index())),
        pairs=tuple(pair_result(pair, _names(pair) in explained) for pair in pairs),
        ranks=tuple(ranks),
        findings=(
            *(mistake.finding for mistake in mistakes),
            *unexplained_findings(unexplained, mistakes, of_outputs),
            *explained.values(),
            *recorded_setting_findings(data, samples, judged, pairs),
        ),
    )


def save_report(report: EqualityReport, out: Path) -> Path:
    """Write equality.json into the run folder; returns its path."""
    write_json(out / EQUALITY_NAME, report)
    return out / EQUALITY_NAME


def _moved(data: EqualityData) -> list[tuple[RecordedTraining, RecordedTraining]]:
    """Each training that was repeated with moved weights, and its repetition."""
    moved = [(data.compared[0], data.rounding)]
    if data.in_shares is not None and data.rounding_in_shares is not None:
        moved.append((data.in_shares, data.rounding_in_shares))
    return moved


def _rank_result(training: RecordedTraining, data: EqualityData) -> RankAgreement:
    """Compare the ranks of a training, and with a training that should agree with it, if there is one."""
    scope = statistics_of(training, data.settings)
    same_scope = [one for one in data.compared if one is not training and statistics_of(one, data.settings) == scope]
    if scope == "share" and data.in_shares is not None:
        same_scope.append(data.in_shares)
    return rank_result(training, same_scope[-1] if same_scope else data.compared[0])


def _names(pair: JudgedPair) -> tuple[str, str]:
    return pair.reference.name, pair.other.name


_MAX_LISTED = 5  # names or indices in a message

Scope = Literal["none", "batch", "share"]


@dataclass(frozen=True)
class Mistake:
    """A finding of severity error, and the training that it is about."""

    training: str
    finding: Finding


SampleTables = Mapping[str, pd.DataFrame]
"""Tables of samples (`RecordedTraining.samples`) by the training's name, the reference's first."""


def sample_mistakes(samples: SampleTables, shuffled: bool) -> list[Mistake]:
    """Samples other than the reference's, samples lost between loader and model, epochs in the same order."""
    reference_name, reference = next(iter(samples.items()))
    found: list[Mistake] = []
    for name, table in samples.items():
        repeated = repeated_epoch(table) if shuffled else None
        if repeated is not None:
            found.append(
                _mistake(
                    name,
                    LearningCode.EPOCH_ORDER_REPEATED,
                    f"{name} takes the samples of epoch {repeated.epoch}, from step {repeated.step} on, in the order of "
                    f"the previous epoch ({counted(repeated.steps_compared, 'step')} compared)",
                    "call the sampler's set_epoch at the beginning of every epoch",
                )
            )
        found += _lost(name, table)
        other = sample_difference(reference, table)
        if other is not None and (repeated is None or other.step < repeated.step):
            found.append(
                _mistake(
                    name,
                    LearningCode.SAMPLES_DIFFER,
                    f"from step {other.step} on {name} trains on different samples from {reference_name}: in that step "
                    f"{_listed(other.missing, 'is', 'are')} missing and {_listed(other.extra, 'is', 'are')} too many",
                    "check how the sampler splits an epoch: remainders that no rank gets, shuffling, seeds",
                )
            )
    return found


def _lost(name: str, table: pd.DataFrame) -> Iterator[Mistake]:
    lost = lost_samples(table)
    if lost is None:
        return
    if lost.never:
        yield _mistake(
            name,
            LearningCode.SAMPLES_LOST,
            f"from step {lost.step} on {name} loses samples between loader and model: in that step "
            f"{_listed(lost.never, 'enters', 'enter')} no device's forward",
            "check how a batch is scattered: a remainder may go to no device",
        )
    if lost.repeatedly:
        yield _mistake(
            name,
            LearningCode.SAMPLES_REPEATED,
            f"from step {lost.step} on {name} trains on samples more than once: in that step "
            f"{_listed(lost.repeatedly, 'enters', 'enter')} several forwards",
            "check how a batch is scattered: shares may overlap",
        )


def rank_mistakes(ranks: Sequence[RankAgreement]) -> list[Mistake]:
    """Processes of one training that differ from the others."""
    found = []
    for result in ranks:
        if not result.same_bits:
            apart = ", ".join(str(rank) for rank in result.ranks_apart)
            found.append(
                _mistake(
                    result.training,
                    LearningCode.RANKS_APART,
                    f"{result.training}: from step {result.first_step} on rank {apart} has different {result.what}s "
                    f"({result.tensor} differs by {_share(result.relative)} from another rank's): they are not "
                    "averaged there",
                    "find out why gradients are not averaged on that rank: no_sync, a communication hook, a different graph",
                )
            )
    return found


def unexplained_findings(
    pairs: Sequence[JudgedPair], mistakes: Sequence[Mistake], output_tolerance: float
) -> list[Finding]:
    """Differences of pairs in which neither training has a reported mistake."""
    mistaken = {mistake.training for mistake in mistakes}
    return [
        _unexplained(pair, pair.first, output_tolerance)
        for pair in pairs
        if pair.first is not None and not mistaken & {pair.reference.name, pair.other.name}
    ]


def _unexplained(pair: JudgedPair, first: TensorDifference, output_tolerance: float) -> Finding:
    tensor = f" of {first.tensor}" if first.tensor else ""
    output = first_output_apart(pair, output_tolerance)
    where = f"; in the first forward {output[0]} is the first whose output differs" if output else ""
    where = where or _scaled(pair, first)
    return LearningCode.UNEXPLAINED_DIFFERENCE.finding(
        message=f"{pair.other.name} differs from {pair.reference.name} from step {first.step} on: the {first.what}{tensor} "
        f"by {_share(first.relative)}; the tolerance for rounding is {_share(first.tolerance)}{where}"
    )


def _scaled(pair: JudgedPair, first: TensorDifference) -> str:
    """A note on gradients that are a multiple of the reference's, or nothing."""
    if first.what != "gradient" or first.tolerance is None:
        return ""
    factor, distance = gradient_factor(pair.reference.ranks[0], pair.other.ranks[0], first.step)
    if not distance <= first.tolerance or factor == 1:
        return ""
    return (
        f"; all its gradients are {factor:.6g} times as large: summed instead of averaged, or another scale of the loss"
    )


def recorded_setting_findings(
    data: EqualityData, samples: SampleTables, judged_steps: int, pairs: Sequence[JudgedPair]
) -> Iterator[Finding]:
    """What was not compared or was disabled for the comparison."""
    reference = data.compared[0]
    yield from _judged(data, judged_steps, all(pair.same_bits for pair in pairs))
    if off := reference.ranks[0].record.random_layers:
        yield LearningCode.RANDOM_LAYERS_OFF.finding(
            message=f"dropout and similar layers are disabled ({_named(off)}): each strategy draws other random numbers"
        )
    table = samples[reference.name]
    if not reference.ranks[0].record.shuffled:
        return
    if table["epoch"].nunique() < 2:
        yield LearningCode.NO_EPOCH_BOUNDARY.finding(
            message=f"no epoch ended within {counted(data.settings.steps, 'step')}: reshuffling (set_epoch) was not tested"
        )
    if padding := repeated_samples(table):
        yield LearningCode.SAMPLES_PADDED.finding(
            message=f"an epoch takes {counted(padding, 'sample')} twice, to make all shares equal, under every strategy"
        )


def _judged(data: EqualityData, judged_steps: int, same_bits: bool) -> Iterator[Finding]:
    if judged_steps == data.settings.steps or same_bits:
        return
    other = "--dtype float64, or " if data.settings.precision == "float32" else ""
    yield LearningCode.ROUNDING_GROWS.finding(
        message=f"only the first {judged_steps} of {counted(data.settings.steps, 'step')} are judged: after that, training "
        "amplifies rounding beyond 1% of the values, or diverges, which could hide a mistake",
        next_step=f"use {other}a smaller --lr",
    )


def statistics_of(training: RecordedTraining, settings: EqualitySettings) -> Scope:
    """What batch norm's statistics cover: the global batch, a device's share, or none without batch norm."""
    if not training.ranks[0].record.batch_norms:
        return "none"
    synchronised = settings.sync_batch_norm and training.cell.per_device
    return "batch" if training.cell.traits.baseline or synchronised else "share"


def first_output_apart(
    pair: JudgedPair, tolerance: float, pairs: Sequence[JudgedPair] = ()
) -> tuple[str, float] | None:
    """The first module call of the first forward with an output beyond the tolerance, and its relative difference.

    A compiled training stores no outputs: those of its strategy without compilation are used if one of `pairs` shows that both
    agree.
    """
    outputs = output_differences(*(_with_outputs(training, pairs) for training in (pair.reference, pair.other)))
    apart = outputs[outputs["relative"] > tolerance]
    return None if apart.empty else (str(apart["call"].iloc[0]), float(apart["relative"].iloc[0]))


def _with_outputs(training: RecordedTraining, pairs: Sequence[JudgedPair]) -> RecordedTraining:
    plain = msgspec.structs.replace(training.cell, options=CellOptions(), variant="")
    agreeing = (
        pair.reference for pair in pairs if pair.agree and pair.other is training and pair.reference.cell == plain
    )
    return next(agreeing, training)


def batch_norm_finding(
    pair: JudgedPair, pairs: list[JudgedPair], data: EqualityData, tolerance: pd.DataFrame, output_tolerance: float
) -> Finding | None:
    """The finding that explains a pair's difference by batch norm; None if the evidence does not hold."""
    scopes = [statistics_of(one, data.settings) for one in (pair.reference, pair.other)]
    if set(scopes) != {"batch", "share"} or data.in_shares is None:
        return None
    by_batch, by_share = (pair.reference, pair.other) if scopes[0] == "batch" else (pair.other, pair.reference)
    apart = first_output_apart(pair, output_tolerance, pairs)
    norms = pair.reference.ranks[0].record.batch_norms
    if apart is None or apart[0].partition("#")[0] not in norms:
        return None
    in_shares = judge_pair(data.in_shares, by_share, tolerance, pair.judged_steps)
    if not in_shares.agree or not _agrees_with_single(by_batch, pairs):
        return None
    how = "bit for bit" if in_shares.same_bits else "within the tolerance"
    devices = data.settings.devices
    share = data.settings.global_batch_size // devices
    return LearningCode.BATCH_NORM_BY_SHARE.finding(
        message=f"{pair.reference.name} and {pair.other.name} differ only by batch norm: the first output that "
        f"differs is {apart[0]}'s ({apart[1]:.2g} of its norm), and a single device that takes each batch in {devices} "
        f"shares of {share} agrees with {by_share.name} {how} over {counted(pair.judged_steps, 'step')}"
    )


def _agrees_with_single(training: RecordedTraining, pairs: list[JudgedPair]) -> bool:
    if training.cell.traits.baseline:
        return True
    return any(pair.agree for pair in pairs if pair.reference.cell.traits.baseline and pair.other.name == training.name)


def _mistake(training: str, code: FindingCode, message: str, next_step: str) -> Mistake:
    return Mistake(training, code.finding(message, next_step))


def _share(value: float | None) -> str:
    return "more than any number" if value is None else f"{value:.2g} of its norm"


def _listed(samples: Sequence[int], one: str, several: str) -> str:
    if not samples:
        return f"none {one}"
    shown = ", ".join(str(sample) for sample in samples[:_MAX_LISTED])
    more = f" and {len(samples) - _MAX_LISTED} more" if len(samples) > _MAX_LISTED else ""
    return f"sample {shown} {one}" if len(samples) == 1 else f"samples {shown}{more} {several}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
