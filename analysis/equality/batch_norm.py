"""Whether batch norm explains that two trainings differ: shown by what was measured, or not said.

Batch norm normalises by the mean and variance of what it is given (Ioffe and Szegedy 2015): a single device's is the global
batch, a device's under DataParallel and DistributedDataParallel its share. Three things together prove that this, and
nothing else, sets a training by the global batch apart from one by shares:
- in the first forward the first output beyond the tolerance is a batch norm's;
- a single device that takes the batch in shares agrees with the one by shares, at every judged step;
- the one by the global batch is a single device, or agrees with it (DistributedDataParallel with SyncBatchNorm).
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import pandas as pd

from dpscope.analysis.equality.data import EqualityData, RecordedTraining
from dpscope.analysis.equality.differences import output_differences
from dpscope.analysis.equality.pairs import JudgedPair, judge_pair
from dpscope.profiling.records.equality import EqualitySettings
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import CellOptions

Scope = Literal["none", "batch", "share"]


def statistics_of(training: RecordedTraining, settings: EqualitySettings) -> Scope:
    """What batch norm's statistics are about: the global batch, a device's share, or nothing where none is computed."""
    if not training.ranks[0].record.batch_norms:
        return "none"
    synchronised = settings.sync_batch_norm and training.cell.per_device
    return "batch" if training.cell.traits.baseline or synchronised else "share"


def first_output_apart(
    pair: JudgedPair, tolerance: float, pairs: Sequence[JudgedPair] = ()
) -> tuple[str, float] | None:
    """The first module call of the first forward whose output is beyond the tolerance, and how far.

    Of a compiled training outputs are not kept: its strategy's own are taken, if one of `pairs` says that both agree.
    """
    outputs = output_differences(*(_as_is(training, pairs) for training in (pair.reference, pair.other)))
    apart = outputs[outputs["relative"] > tolerance]
    return None if apart.empty else (str(apart["call"].iloc[0]), float(apart["relative"].iloc[0]))


def _as_is(training: RecordedTraining, pairs: Sequence[JudgedPair]) -> RecordedTraining:
    plain = msgspec.structs.replace(training.cell, options=CellOptions(), variant="")
    agreeing = (
        pair.reference for pair in pairs if pair.agree and pair.other is training and pair.reference.cell == plain
    )
    return next(agreeing, training)


def batch_norm_finding(
    pair: JudgedPair, pairs: list[JudgedPair], data: EqualityData, tolerance: pd.DataFrame, output_tolerance: float
) -> Finding | None:
    """The finding that explains a pair's difference by batch norm; None where the evidence does not hold."""
    scopes = [statistics_of(one, data.settings) for one in (pair.reference, pair.other)]
    if set(scopes) != {"batch", "share"} or data.in_shares is None:
        return None
    by_batch, by_share = (pair.reference, pair.other) if scopes[0] == "batch" else (pair.other, pair.reference)
    apart = first_output_apart(pair, output_tolerance, pairs)
    norms = pair.reference.ranks[0].record.batch_norms
    if apart is None or apart[0].partition("#")[0] not in norms:
        return None
    in_shares = judge_pair(data.in_shares, by_share, tolerance, pair.judged_steps)
    if not in_shares.agree or not _is_single(by_batch, pairs):
        return None
    how = "bit for bit" if in_shares.same_bits else "within the tolerance"
    devices = data.settings.devices
    share = data.settings.global_batch_size // devices
    return LearningCode.BATCH_NORM_BY_SHARE.finding(
        message=f"{pair.reference.name} and {pair.other.name} differ through batch norm alone: the first output that "
        f"differs is {apart[0]}'s ({apart[1]:.2g} of its norm), and a single device that takes each batch in {devices} "
        f"shares of {share} agrees with {by_share.name} {how} over {counted(pair.judged_steps, 'step')}"
    )


def _is_single(training: RecordedTraining, pairs: list[JudgedPair]) -> bool:
    if training.cell.traits.baseline:
        return True
    return any(pair.agree for pair in pairs if pair.reference.cell.traits.baseline and pair.other.name == training.name)
