"""What `calibration.json` holds, as types: settings, every sample, links, fits. Imports no torch.

Units stand in names: `_us`, `_bytes`, `_gb_per_s` (1e9 bytes per second).
"""

from typing import Literal

import msgspec

from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import Interconnect, LinkRate
from dpscope.profiling.records.matrix import Layout, parse_layout
from dpscope.profiling.records.nccl_log import NcclLog
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.records.stored import Stored

CALIBRATION_SCHEMA_VERSION = 1

Collective = Literal["all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all"]
MEASURED_COLLECTIVES = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
"""Those `dpscope calibrate` times; nccl-tests' logs may hold more."""


class CalibrationSettings(Stored, frozen=True):
    """What is to be timed; nothing in it is left to choose."""

    device: Literal["cuda", "cpu"]
    devices: tuple[int, ...]  # device counts on one node, each a subgroup of the first ranks of one job
    collectives: tuple[Collective, ...] = MEASURED_COLLECTIVES  # type: ignore[assignment]
    dtype: str = "float32"
    min_bytes: int = 4 * 1024
    max_bytes: int = 256 * 1024**2  # sizes double from min_bytes up to this one
    iterations: int = 20
    warmup_iterations: int = 5  # of every size
    timeout_s: float = 900.0
    chosen_sizes: tuple[int, ...] = ()  # bytes, ascending; instead of the doubling ones
    layouts: tuple[str, ...] = ()  # over several nodes, as 2x8; subgroups of the same job
    nccl_log: bool = False  # of a job that times nothing: one call of each size, for NCCL's log

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes asked for, in bytes, smallest first."""
        if self.chosen_sizes:
            return self.chosen_sizes
        doublings = (self.max_bytes // self.min_bytes).bit_length()
        return tuple(self.min_bytes << step for step in range(doublings))

    @property
    def groups(self) -> tuple[Layout, ...]:
        """All that is timed, by nodes and devices on each of them."""
        return (*(Layout(1, count) for count in self.devices), *map(parse_layout, self.layouts))

    @property
    def job(self) -> Layout:
        """The job that holds them all."""
        return Layout(max(one.nodes for one in self.groups), max(one.per_node for one in self.groups))


class CalibrationPoint(Stored, frozen=True):
    """One collective on one number of devices at one size."""

    collective: Collective
    devices: int
    size_bytes: int  # the larger of a rank's input and output buffer, as nccl-tests counts
    count: int  # elements, nccl-tests' meaning: of a rank's share for all_gather, reduce_scatter, all_to_all
    dtype: str
    times_us: tuple[float, ...]  # one per iteration: its slowest rank; one mean where a log has no more
    shortest_us: tuple[
        float, ...
    ] = ()  # one per iteration: the rank that took least, as transfers in traces are; logs have none
    nodes: int | None = None  # hosts that its ranks were on; None: as `Calibration.nodes_of` says


class Contention(Stored, frozen=True):
    """What a collective and computing do to each other, every sample; one entry per iteration, of its slowest rank.

    Computing is matrix products: on a CPU on a process's own threads, as in training; on a GPU on a stream of its own.
    """

    collective: Collective
    devices: int
    size_bytes: int
    alone_us: tuple[float, ...]  # one call, nothing beside it
    two_in_flight_us: tuple[float, ...]  # two calls at once, until both have ended
    beside_compute_us: tuple[float, ...]  # one call while every rank computes
    compute_alone_us: tuple[float, ...]  # one piece of computing, no collective beside it
    compute_beside_us: tuple[float, ...]  # the same piece while the collective runs
    nodes: int | None = None  # as a point has it


class NotTimed(Stored, frozen=True):
    """What was asked for and not timed, and why; `size_bytes` None is all sizes."""

    collective: Collective
    devices: int
    size_bytes: int | None
    reason: str


class FitPiece(Stored, frozen=True):
    """t = alpha + S / B for sizes between two breakpoints, with 95% intervals.

    In a piece that does not begin at 0 alpha is where its line meets the axis: no latency, and it may be negative.
    """

    from_bytes: int
    to_bytes: int | None  # None: no upper end
    alpha_us: float
    alpha_low_us: float
    alpha_high_us: float
    bandwidth_gb_per_s: float | None  # None: the size makes no difference in this piece
    bandwidth_low_gb_per_s: float | None
    bandwidth_high_gb_per_s: float | None  # None: the data do not bound it


class CollectiveFit(Stored, frozen=True):
    """Time of one collective on one number of devices as a function of its size, and how far off it is."""

    collective: Collective
    devices: int
    pieces: tuple[FitPiece, ...]  # continuous, never falling, smallest sizes first
    sizes: int  # how many sizes the fit rests on
    smallest_bytes: int
    largest_bytes: int
    median_relative_error: float  # of the fit at its own sizes
    largest_relative_error: float
    prediction_relative_error: float | None  # holds 90% of measurements, their sizes left out; None: too few sizes
    interval_source: Literal["samples", "residuals"]  # what was resampled for the intervals
    statistic: Literal["slowest", "shortest"] = "slowest"  # of each iteration's ranks: `times_us` or `shortest_us`
    nodes: int | None = None  # as its points have it


class CalibratedChoices(Stored, frozen=True):
    """What NCCL chose in one call of each size, in a job in which nothing was timed."""

    devices: int
    nodes: int
    log: NcclLog


class Calibration(Stored, frozen=True):
    """`calibration.json`: written whole or not at all."""

    schema_version: int
    dpscope_version: str
    created_at: str  # ISO 8601, UTC
    source: Literal["measured", "nccl-tests"]
    settings: CalibrationSettings | None  # None for logs
    backend: str | None
    environment: Environment | None  # None for logs
    device_names: tuple[str, ...]
    points: tuple[CalibrationPoint, ...]
    left_out: tuple[NotTimed, ...] = ()
    fits: tuple[CollectiveFit, ...] = ()
    contention: tuple[Contention, ...] = ()  # by device count; none in logs and in calibrations of older versions
    interconnect: Interconnect | None = None
    links: dict[int, LinkRate] = msgspec.field(
        default_factory=dict
    )  # by device count; a count whose link is unknown is not in it
    findings: tuple[Finding, ...] = ()
    nodes: dict[int, int] = msgspec.field(default_factory=dict)  # hosts that each device count spans, where it was told
    nccl_engine: str | None = None  # class that ran NCCL; None: gloo, logs, or an older version of dpscope
    hosts: tuple[Host, ...] = ()  # of a calibration over several nodes
    nccl: tuple[
        CalibratedChoices, ...
    ] = ()  # by device count; none on gloo, in logs and in calibrations of older versions

    def nodes_of(self, devices: int) -> int | None:
        """Hosts that the ranks of a device count were on: one where dpscope measured, in a log as it tells; None: untold."""
        return self.nodes.get(devices, 1 if self.source == "measured" else None)

    def spans(self, devices: int) -> set[int | None]:
        """All numbers of hosts on which so many ranks were timed: 2 on one host and 2x1 are both 2 ranks."""
        timed = {point.nodes or self.nodes_of(devices) for point in self.points if point.devices == devices}
        return timed or {self.nodes_of(devices)}

    def on_nodes(self, nodes: int) -> "Calibration":
        """What was timed with its ranks on so many hosts, or on a number that is not told."""
        if all(one.nodes is None for one in self.points):
            return self
        kept = {
            name: tuple(
                one for one in getattr(self, name) if (one.nodes or self.nodes_of(one.devices)) in (None, nodes)
            )
            for name in ("points", "fits", "contention")
        }
        own = {name: tuple(msgspec.structs.replace(one, nodes=None) for one in values) for name, values in kept.items()}
        spanned = dict.fromkeys((point.devices for point in kept["points"]), nodes)
        return msgspec.structs.replace(self, **own, nodes={**self.nodes, **spanned})
