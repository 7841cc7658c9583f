"""The types of `equality.json`. A value that is not finite (a training diverged) is null."""

from typing import Literal

from dpscope.profiling.records.equality import EqualitySettings
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.stored import Stored

EQUALITY_SCHEMA_VERSION = 1

What = Literal["loss", "gradient", "weight"]
Value = float | None
Agreement = Literal["bit-equal", "equal", "explained", "different", "not judged"]
"""explained: different, but no mistake."""


class TensorDifference(Stored, frozen=True):
    """One tensor at one step, counted from 0; the loss has an empty name."""

    step: int
    what: What
    tensor: str
    absolute: Value  # the largest of its elements
    relative: Value  # as analysis/equality/differences.py defines it
    tolerance: Value  # for `relative`
    elements: int  # compared


class StepTolerance(Stored, frozen=True):
    """The tolerance of one step, and the measured effect of rounding: relative differences."""

    step: int
    loss: Value
    gradient: Value
    weight: Value
    loss_rounding: Value
    gradient_rounding: Value
    weight_rounding: Value


class StepDistance(Stored, frozen=True):
    """The largest relative difference of any tensor at one step."""

    step: int
    loss: Value
    gradient: Value
    weight: Value


class TensorDistance(Stored, frozen=True):
    """The largest differences of one tensor over the judged steps."""

    what: What
    tensor: str
    absolute: Value
    relative: Value
    first_step_over: int | None  # its tolerance
    elements: int  # compared at every step
    elements_at_last_step: int


class PairResult(Stored, frozen=True):
    """Two trainings. `bit-equal` is about gradients and weights: losses are averaged in different ways."""

    reference: str
    other: str
    verdict: Agreement
    judged_steps: int  # until rounding has grown too far, or, if all bits are equal, until values are not finite
    first_difference: TensorDifference | None  # beyond the tolerance
    steps: tuple[StepDistance, ...]
    tensors: tuple[TensorDistance, ...]

    @property
    def agree(self) -> bool:
        """Whether they are equal bit for bit, or within the tolerance at every judged step."""
        return self.verdict in ("bit-equal", "equal")


class RankAgreement(Stored, frozen=True):
    """Whether all processes of a training had the same gradients and weights after every step, bit for bit."""

    training: str
    ranks: int
    same_bits: bool
    first_step: int | None  # with a difference
    what: What | None
    tensor: str | None
    relative: Value  # the largest difference to rank 0 at that step
    ranks_apart: tuple[int, ...]  # that differ from rank 0


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
        """Whether steps are judged and every difference is explained."""
        return all(finding.severity != "error" for finding in self.findings)
