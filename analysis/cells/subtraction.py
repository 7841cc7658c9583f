"""The subtraction estimates people use for communication time, and how far each is from what was measured.

t_N(b) is a step on N devices at b samples per device, G = N b. All times in microseconds per step.
"""

from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.cells.row import minus

Method = Literal["same_local_batch", "ideal_split", "same_total"]
METHODS: tuple[Method, ...] = ("same_local_batch", "ideal_split", "same_total")

NO_SAME_BATCH = "no single-device cell with the same options at this batch per device"
NO_GLOBAL_BATCH = "no single-device cell with the same options at the global batch"

FORMULAS: dict[Method, str] = {
    "same_local_batch": "t_N(b) - t_1(b)",
    "ideal_split": "t_N(G/N) - t_1(G)/N",
    "same_total": "t_N(G/N) - t_1(G)",
}


@dataclass(frozen=True)
class SubtractionEstimate:
    """One estimate and its signed errors (estimate - measured); None is unknown, for `reason`."""

    method: Method
    value_us: float | None
    error_exposed_us: float | None
    error_communication_us: float | None
    reason: str | None


def subtraction_estimates(
    step_us: float,
    devices: int,
    single_same_batch_us: float | None,
    single_global_batch_us: float | None,
    exposed_us: float | None,
    communication_us: float | None,
) -> list[SubtractionEstimate]:
    """The three estimates of one multi-device cell.

    `single_same_batch_us` is t_1(b), `single_global_batch_us` is t_1(G). Assumptions: same_local_batch is sound as added
    wall time; ideal_split takes all of t_1(G) to shrink with the batch and errs by its fixed part; same_total compares
    different work per device and goes negative as soon as parallel training pays.
    """
    baselines: dict[Method, tuple[float | None, str]] = {
        "same_local_batch": (single_same_batch_us, NO_SAME_BATCH),
        "ideal_split": (
            single_global_batch_us / devices if single_global_batch_us is not None else None,
            NO_GLOBAL_BATCH,
        ),
        "same_total": (single_global_batch_us, NO_GLOBAL_BATCH),
    }
    estimates = []
    for method, (baseline_us, why_not) in baselines.items():
        value = step_us - baseline_us if baseline_us is not None else None
        estimates.append(
            SubtractionEstimate(
                method=method,
                value_us=value,
                error_exposed_us=minus(value, exposed_us),
                error_communication_us=minus(value, communication_us),
                reason=None if value is not None else why_not,
            )
        )
    return estimates
