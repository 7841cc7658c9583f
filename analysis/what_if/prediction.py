"""The answer to a what-if: a number with its band, or the reason why there is none."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.short_repr import short_repr

BAND = 0.9  # share of the truths that lie inside a band


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and `reason` is the reason.

    A range without `step_us` is no band: it is what two assumptions give that the measurements cannot choose between.
    `efficiency` is t_1 / t_N at equal batch per device. `ledger` is where the step goes, `missing` the reason by unknown part,
    and `bound_by` the largest part: compute, waiting, transfer, communication (any other) or idle.
    """

    __repr__ = short_repr

    devices: int
    nodes: int
    batch_size: int | None
    step_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    exposed_us: float | None = None
    efficiency: float | None = None
    bound_by: str | None = None
    rests_on: str | None = None
    reason: str | None = None
    ledger: Ledger | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def as_plain(self) -> dict[str, object]:
        """For JSON; without the ledger."""
        return {name: value for name, value in asdict(self).items() if name not in ("ledger", "missing")}
