"""The types of `equality.json`. A value that is not finite (a training diverged) is null."""

from typing import Literal

from dpscope.profiling.records.equality import EqualitySettings
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.stored import Stored

EQUALITY_SCHEMA_VERSION = 4

What = Literal["loss", "gradient", "weight"]
Value = float | None
Agreement = Literal["bit-equal", "equal", "different", "not judged"]


class TensorDifference(Stored, frozen=True):
    """One tensor at one step, counted from 0; the loss has an empty name."""

    step: int
    what: What
    tensor: str
    relative: Value  # as analysis/equality/differences.py defines it
    tolerance: Value  # of it


class StepDistance(Stored, frozen=True):
    """The largest relative difference of any tensor at one step."""

    step: int
    loss: Value
    gradient: Value
    weight: Value


class StepTolerance(StepDistance, frozen=True):
    """The tolerance of one step, and the measured effect of rounding: relative differences."""

    loss_rounding: Value
    gradient_rounding: Value
    weight_rounding: Value


class PairResult(Stored, frozen=True):
    """Two trainings. `bit-equal` is about gradients and weights: losses are averaged in different
    ways.
    """

    reference: str
    other: str
    verdict: Agreement
    # until rounding has grown too far, or, if all bits are equal, until values are not finite
    judged_steps: int
    first_difference: TensorDifference | None  # beyond the tolerance
    steps: tuple[StepDistance, ...]


class RankAgreement(Stored, frozen=True):
    """Whether all processes of a training had the same gradients and weights after every step, bit
    for bit.
    """

    training: str
    ranks: int
    same_bits: bool
    first_difference: TensorDifference | None  # the largest to rank 0 at the first step with any
    ranks_apart: tuple[int, ...]  # that differ from rank 0 there


class EqualityReport(Stored, frozen=True):
    """`equality.json`."""

    schema_version: int
    settings: EqualitySettings
    reference: str
    losses: dict[str, tuple[Value, ...]]  # per training and step, of the global batch
    tolerances: tuple[StepTolerance, ...]
    pairs: tuple[PairResult, ...]
    ranks: tuple[RankAgreement, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether steps are judged and nothing differs."""
        return all(finding.severity != "error" for finding in self.findings)
