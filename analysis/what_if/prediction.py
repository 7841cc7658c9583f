"""What a what-if answers: a number with its band, or a reason why there is none."""

from dataclasses import asdict, dataclass

BAND = 0.9  # of the truths lie inside


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and `reason` says why.

    A range without `step_us` is no band: it is what two assumptions give that the measurements cannot choose between.
    `efficiency` is t_1 / t_N at equal batch per device; `bound_by` what the step is made of beyond compute.
    """

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

    def as_plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)
