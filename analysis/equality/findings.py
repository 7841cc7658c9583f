"""What a comparison means, as findings: mistakes named at the step where they first matter, expected differences explained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.equality.batch_norm import first_output_apart
from dpscope.analysis.equality.data import EqualityData
from dpscope.analysis.equality.differences import gradient_factor
from dpscope.analysis.equality.pairs import JudgedPair
from dpscope.analysis.equality.result import RankAgreement, TensorDifference
from dpscope.analysis.equality.samples import lost_samples, repeated_epoch, repeated_samples, sample_difference
from dpscope.profiling.records.finding import Finding, FindingCode, counted
from dpscope.profiling.records.learning_codes import LearningCode

_SHOWN = 5  # indices named in a message


@dataclass(frozen=True)
class Mistake:
    """A finding of severity error, and the training that is to blame."""

    training: str
    finding: Finding


SampleTables = Mapping[str, pd.DataFrame]
"""Tables of samples (`RecordedTraining.samples`) by the training's name, the reference's first."""


def sample_mistakes(samples: SampleTables, shuffled: bool) -> list[Mistake]:
    """Other samples than the reference's, samples lost between loader and model, epochs in the same order."""
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
                    f"the epoch before ({counted(repeated.steps_compared, 'step')} compared)",
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
    """Processes of one training that are not what the others are."""
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
                    "find out what keeps gradients from being averaged on that rank: no_sync, a communication hook, a "
                    "different graph",
                )
            )
    return found


def unexplained_findings(
    pairs: Sequence[JudgedPair], mistakes: Sequence[Mistake], output_tolerance: float
) -> list[Finding]:
    """Differences of pairs in which neither training has a mistake that was named."""
    blamed = {mistake.training for mistake in mistakes}
    return [
        _unexplained(pair, pair.first, output_tolerance)
        for pair in pairs
        if pair.first is not None and not blamed & {pair.reference.name, pair.other.name}
    ]


def _unexplained(pair: JudgedPair, first: TensorDifference, output_tolerance: float) -> Finding:
    tensor = f" of {first.tensor}" if first.tensor else ""
    output = first_output_apart(pair, output_tolerance)
    where = f"; in the first forward {output[0]} is the first whose output differs" if output else ""
    where = where or _scaled(pair, first)
    return LearningCode.UNEXPLAINED_DIFFERENCE.finding(
        message=f"{pair.other.name} differs from {pair.reference.name} from step {first.step} on: the {first.what}{tensor} "
        f"by {_share(first.relative)}, where rounding may make {_share(first.tolerance)}{where}"
    )


def _scaled(pair: JudgedPair, first: TensorDifference) -> str:
    """What is said of gradients that are a multiple of the reference's."""
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
    """What was not compared, or was switched off for the comparison."""
    reference = data.compared[0]
    yield from _judged(data, judged_steps, all(pair.same_bits for pair in pairs))
    if off := reference.ranks[0].record.random_layers:
        yield LearningCode.RANDOM_LAYERS_OFF.finding(
            message=f"dropout and the like are switched off here ({_named(off)}): each strategy draws other random numbers"
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
            message=f"an epoch takes {counted(padding, 'sample')} twice, to make all shares equal, "
            "under every strategy alike"
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


def _mistake(training: str, code: FindingCode, message: str, next_step: str) -> Mistake:
    return Mistake(training, code.finding(message, next_step))


def _share(value: float | None) -> str:
    return "more than any number" if value is None else f"{value:.2g} of its norm"


def _listed(samples: Sequence[int], one: str, several: str) -> str:
    if not samples:
        return f"none {one}"
    shown = ", ".join(str(sample) for sample in samples[:_SHOWN])
    more = f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
    return f"sample {shown} {one}" if len(samples) == 1 else f"samples {shown}{more} {several}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
