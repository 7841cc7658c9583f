"""The types of `calibration.json`: settings, samples, links, fits, NCCL's choices. Imports no
torch.

Names hold units: `_us`, `_bytes`, `_gb_per_s` (1e9 bytes per second).
"""

from typing import Literal, get_args

import msgspec

from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import Interconnect, LinkRate
from dpscope.profiling.records.matrix import Layout, parse_layout
from dpscope.profiling.records.run import CellStatus, Environment, Host
from dpscope.profiling.records.settings import Config, setting
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.typed_text import parse_size


class Choice(Stored, frozen=True):
    """The algorithm and protocol chosen for calls of one size; `kind` None where that version of
    NCCL does not print it.
    """

    kind: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    calls: int

    @property
    def words(self) -> str:
        return f"{self.algorithm}, {self.protocol}"


class NcclLog(Stored, frozen=True):
    """The logs of one job. `links` counts pairs of ranks by transport, such as ``NET/IB/GDRDMA``;
    each direction is a pair.

    A call does not name its communicator: `choices` are those of all communicators together. Sizes
    are those of the larger of a rank's buffers.
    """

    library: str | None  # "NCCL 2.27.5"
    hosts: tuple[str, ...]
    choices: tuple[Choice, ...]
    ranks: int | None = None  # of the largest communicator; None: none is in the log
    links: dict[str, int] = msgspec.field(default_factory=dict)
    infiniband: bool = False  # whether InfiniBand or RoCE devices were found
    gpu_direct: bool | None = None  # GPU Direct RDMA, if the log reports it
    # of choices: cut, of another form, or shares of an unknown number of ranks
    unread_lines: int = 0


CALIBRATION_SCHEMA_VERSION = 1

Collective = Literal[
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all"
]
COLLECTIVES: dict[str, Collective] = {name.replace("_", ""): name for name in get_args(Collective)}
"""By the names of NCCL, in lower case, and of nccl-tests."""
MEASURED_COLLECTIVES = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
"""The collectives that `dpscope calibrate` times; nccl-tests' logs may hold others."""


class CalibrationSettings(Config, frozen=True):
    """Settings of a calibration, all resolved."""

    device: Literal["cuda", "cpu"] = setting(msgspec.NODEFAULT, "auto, cuda or cpu")
    devices: tuple[int, ...] = setting(
        msgspec.NODEFAULT, "device counts, such as 2,4; 2x4 is 2 nodes with 4 each"
    )  # on one node, each a subgroup of the first ranks of one job
    collectives: tuple[Collective, ...] = setting(
        MEASURED_COLLECTIVES, "all_reduce,broadcast,... or some of them"
    )
    dtype: str = setting("float32", "float32, float16, bfloat16 or float64")
    min_bytes: int = setting(4 * 1024, "smallest message", text=parse_size)
    max_bytes: int = setting(
        256 * 1024**2, "largest message; sizes double in between", text=parse_size
    )
    iterations: int = setting(20, "timed calls of each size")
    warmup_iterations: int = setting(5, "untimed calls of each size", option="warmup")
    timeout_s: float = setting(900.0, "seconds the job may take", option="timeout")
    chosen_sizes: tuple[int, ...] = ()  # bytes, ascending; instead of the doubling ones
    layouts: tuple[str, ...] = ()  # over several nodes, as 2x8; subgroups of the same job
    nccl_log: bool = False  # for NCCL's log: one call of each size, nothing is timed

    @property
    def sizes(self) -> tuple[int, ...]:
        """The requested sizes, in bytes, ascending."""
        if self.chosen_sizes:
            return self.chosen_sizes
        doublings = (self.max_bytes // self.min_bytes).bit_length()
        return tuple(self.min_bytes << step for step in range(doublings))

    @property
    def groups(self) -> tuple[Layout, ...]:
        return (*(Layout(1, count) for count in self.devices), *map(parse_layout, self.layouts))

    @property
    def job(self) -> Layout:
        """The smallest job that contains all groups."""
        return Layout(
            max(group.nodes for group in self.groups), max(group.per_node for group in self.groups)
        )


class CalibrationPoint(Stored, frozen=True):
    """One collective on one number of devices at one size."""

    collective: Collective
    devices: int
    size_bytes: int  # the larger of a rank's input and output buffer, as in nccl-tests
    # elements, as in nccl-tests: of a rank's share for all_gather, reduce_scatter, all_to_all
    count: int
    dtype: str
    # one per iteration: its slowest rank; a single mean if a log has no more
    times_us: tuple[float, ...]
    # one per iteration: its fastest rank, like transfers in traces; logs have none
    shortest_us: tuple[float, ...] = ()
    nodes: int | None = None  # hosts of its ranks; None: `Calibration.nodes_of`


class Contention(Stored, frozen=True):
    """How a collective and computing slow each other: one sample per iteration, of its slowest
    rank.

    Computing consists of matrix products: on a CPU on the process's threads, as in training; on a
    GPU on a separate stream.
    """

    collective: Collective
    devices: int
    size_bytes: int
    alone_us: tuple[float, ...]  # one call while nothing else runs
    two_in_flight_us: tuple[float, ...]  # two calls at once, until both have ended
    beside_compute_us: tuple[float, ...]  # one call while every rank computes
    compute_alone_us: tuple[float, ...]  # one piece of computing without a collective
    compute_beside_us: tuple[float, ...]  # the same piece while the collective runs
    nodes: int | None = None  # as in CalibrationPoint


class NotTimed(Stored, frozen=True):
    """A requested size that was not timed, with the reason; `size_bytes` None: all sizes."""

    collective: Collective
    devices: int
    size_bytes: int | None
    reason: str


class TimedCollectives(Stored, frozen=True, kw_only=True):
    """`result.json` of a calibration job."""

    status: CellStatus = "ok"
    backend: str
    device_names: tuple[str, ...] = ()
    device_uuids: tuple[str, ...] = ()  # of torch's GPUs in torch's order
    points: tuple[CalibrationPoint, ...] = ()
    left_out: tuple[NotTimed, ...] = ()
    contention: tuple[Contention, ...] = ()
    nccl_engine: str | None = None  # class that ran NCCL


class FitPiece(Stored, frozen=True):
    """t = alpha + S / B for sizes between two breakpoints, with 95% intervals.

    In a piece that does not begin at 0, alpha is the line's intercept: it is not a latency, and it
    may be negative.
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
    """The fitted time of one collective on one number of devices as a function of its size, with
    its errors.
    """

    collective: Collective
    devices: int
    pieces: tuple[FitPiece, ...]  # continuous, never falling, smallest sizes first
    sizes: int  # number of fitted sizes
    smallest_bytes: int
    largest_bytes: int
    median_relative_error: float  # of the fit at its own sizes
    largest_relative_error: float
    # 90% of measurements, with their sizes left out; None: too few sizes
    prediction_relative_error: float | None
    interval_source: Literal["samples", "residuals"]  # what was resampled for the intervals
    # of each iteration's ranks: `times_us` or `shortest_us`
    statistic: Literal["slowest", "shortest"] = "slowest"
    nodes: int | None = None  # of its points


class CalibratedChoices(Stored, frozen=True):
    """NCCL's choices in one call of each size, in a job in which nothing was timed."""

    devices: int
    nodes: int
    log: NcclLog


class Calibration(Stored, frozen=True):
    """`calibration.json`: written whole or not at all."""

    schema_version: int
    dpscope_version: str
    created_at: str  # ISO 8601, UTC
    source: str  # "measured", or the program whose logs were read
    settings: CalibrationSettings | None  # None for logs
    backend: str | None
    environment: Environment | None  # None for logs
    device_names: tuple[str, ...]
    points: tuple[CalibrationPoint, ...]
    left_out: tuple[NotTimed, ...] = ()
    fits: tuple[CollectiveFit, ...] = ()
    contention: tuple[Contention, ...] = ()  # by device count; none in logs
    interconnect: Interconnect | None = None
    # by device count, if the link is known
    links: dict[int, LinkRate] = msgspec.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    # hosts that each device count spans, if known
    nodes: dict[int, int] = msgspec.field(default_factory=dict)
    nccl_engine: str | None = None  # class that ran NCCL; None: gloo or logs
    hosts: tuple[Host, ...] = ()  # of a calibration over several nodes
    nccl: tuple[CalibratedChoices, ...] = ()  # by device count; none on gloo and in logs

    def nodes_of(self, devices: int) -> int | None:
        """Hosts of the ranks of a device count: 1 if dpscope measured, else as the log reports;
        None: unknown.
        """
        return self.nodes.get(devices, 1 if self.source == "measured" else None)

    def spans(self, devices: int) -> set[int | None]:
        """All numbers of hosts on which this number of ranks was timed: 2 on one host and 2x1 are
        both 2 ranks.
        """
        timed = {
            point.nodes or self.nodes_of(devices)
            for point in self.points
            if point.devices == devices
        }
        return timed or {self.nodes_of(devices)}

    def on_nodes(self, nodes: int) -> "Calibration":
        """The part that was timed on this number of hosts, or on an unknown number."""
        if all(measured.nodes is None for measured in self.points):
            return self
        parts = {
            name: tuple(
                msgspec.structs.replace(measured, nodes=None)
                for measured in getattr(self, name)
                if (measured.nodes or self.nodes_of(measured.devices)) in (None, nodes)
            )
            for name in ("points", "fits", "contention")
        }
        spanned = dict.fromkeys((point.devices for point in parts["points"]), nodes)
        return msgspec.structs.replace(self, **parts, nodes={**self.nodes, **spanned})
