"""What a run folder holds, as types: plan, samples, results. Imports no torch.

Every type is `Stored`: frozen, and refused where it holds a field this version does not know. Units stand in names:
`_us`, `_s`, `_bytes`.
"""

import re
from typing import Literal

import msgspec

from dpscope.profiling.records.commit import Commit
from dpscope.profiling.records.config import ResolvedConfig, Workload
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import Interconnect
from dpscope.profiling.records.matrix import Amp, CommHook, CompileMode, NcclEngine, Switch
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of
from dpscope.profiling.records.wrapped import Compilation, ShardedUnit

SCHEMA_VERSION = 1

CellStatus = Literal["ok", "out_of_memory", "crashed", "timed_out", "interrupted", "skipped"]


class CellOptions(Stored, frozen=True):
    """How a cell departs from its strategy's defaults; all but `accumulate`, `amp` and `compile` are DistributedDataParallel's.

    A step is one optimizer step on the cell's batch whatever `accumulate` is: it cuts that batch into micro-batches.
    """

    overlap: Switch = "on"
    bucket_mb: float | None = None  # MiB; None: torch's default
    comm_hook: CommHook = "none"
    gradient_as_bucket_view: Switch = "off"
    static_graph: Switch = "off"
    broadcast_buffers: Switch = "on"
    accumulate: int = 1
    amp: Amp | None = None  # None: the run's own
    ddp_args: str = "default"
    nccl_engine: NcclEngine = "default"
    compile: CompileMode = "off"

    @property
    def name(self) -> str:
        """Such as ``overlap-off-hook-fp16``; empty for the defaults."""
        parts = {
            "overlap-off": self.overlap == "off",
            f"bucket-{str(self.bucket_mb).removesuffix('.0')}mb": self.bucket_mb is not None,
            f"hook-{self.comm_hook}": self.comm_hook != "none",
            "bucket-view": self.gradient_as_bucket_view == "on",
            "static-graph": self.static_graph == "on",
            "buffers-off": self.broadcast_buffers == "off",
            f"accumulate-{self.accumulate}": self.accumulate > 1,
            f"amp-{self.amp}": self.amp is not None,
            "-".join(re.findall(r"[\w.]+", self.ddp_args)): self.ddp_args != "default",
            f"engine-{self.nccl_engine}": self.nccl_engine != "default",
            f"compile-{self.compile}": self.compile != "off",
        }
        return "-".join(part for part, present in parts.items() if present)


class Cell(Stored, frozen=True):
    """One thing that is measured: a strategy on a number of devices at a batch size per device, with its options.

    `variant` names the options and follows from them; it is stored for whoever reads the files.
    """

    strategy: CellStrategy
    devices: int
    batch_size: int  # per device and step
    variant: str = ""
    options: CellOptions = CellOptions()
    nodes: int = 1  # hosts that its processes are spread over

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.devices or (self.nodes > 1 and not self.per_device):
            raise ValueError(
                f"{self.strategy} on {counted(self.devices, 'device')} does not span {counted(self.nodes, 'node')}"
            )
        if self.variant not in ("", self.options.name):
            raise ValueError(f"variant {self.variant} does not name the options, which are {self.options.name!r}")
        msgspec.structs.force_setattr(self, "variant", self.options.name)

    @property
    def name(self) -> str:
        """Folder name, such as ``ddp-d4-b128``, over two nodes ``ddp-d4-n2-b128``; the batch in it is per device."""
        nodes = f"-n{self.nodes}" if self.nodes > 1 else ""
        base = f"{self.strategy}-d{self.devices}{nodes}-b{self.batch_size}"
        return f"{base}-{self.variant}" if self.variant else base

    @property
    def global_batch_size(self) -> int:
        """Samples one step trains on, over all devices."""
        return self.devices * self.batch_size

    @property
    def processes(self) -> int:
        """Processes of the job: one on one device, and all devices in one process under DataParallel; else one per device."""
        return self.devices if self.per_device else 1

    @property
    def per_device(self) -> bool:
        """Whether each device has a process of its own."""
        return not self.traits.one_process

    @property
    def traits(self) -> StrategyTraits:
        """What its strategy does."""
        return traits_of(self.strategy)


def cell_workload(workload: Workload, cell: Cell) -> Workload:
    """The workload as a cell has it: in its own precision where it has one."""
    return msgspec.structs.replace(workload, amp=cell.options.amp or workload.amp)


class PlannedCell(Stored, frozen=True):
    """A cell of the plan, or why it is left out."""

    cell: Cell
    skip_reason: str | None = None  # set: never started


class DeviceState(Stored, frozen=True):
    """One GPU at one moment, as NVML reports it; None where it does not."""

    index: int
    uuid: str | None = None
    name: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    other_process_ids: tuple[int, ...] | None = None  # compute processes that are not the run's own
    pcie_generation: int | None = None
    pcie_width: int | None = None
    active_nvlinks: int | None = None  # None in runs of older versions


class Environment(Stored, frozen=True):
    """Where a run took place."""

    hostname: str
    platform: str
    cpu_name: str | None
    cpu_count: int  # cores this process may use
    memory_bytes: int | None
    python_version: str
    torch_version: str | None
    torchvision_version: str | None
    cuda_version: str | None  # the one torch was built with, or "ROCm" and its version
    nccl_version: str | None
    driver_version: str | None
    accelerators: tuple[DeviceState, ...] = ()
    settings: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # the variables that times may depend on and that are set: NCCL_*, TORCH_*, CUDA_*, ...
    interconnect: Interconnect | None = None  # links of the visible GPUs, by NVML; None: not asked, or no NVML
    nccl_engine: str | None = None  # class that runs NCCL unless a cell chooses; None: no NCCL, or an older dpscope
    commit: Commit | None = None  # of the code that is measured; None: git tells none, or an older dpscope


_PublishedTime = Literal["epoch_seconds", "compute_seconds", "communication_seconds"]
PublishedQuantity = (
    _PublishedTime | Literal["speedup", "efficiency", "effective_bandwidth", "utilisation", "test_accuracy"]
)


class PublishedValue(Stored, frozen=True):
    """What somebody published of a cell: of which, what, who says so. `fixed` is what stays the same as devices are added."""

    source: str
    hardware: str
    model: str  # as --model names it
    data: str  # as --data names it
    strategy: Literal["single", "dp", "ddp"]
    devices: int
    batch_size: int  # per device
    fixed: Literal["global", "per_device"]
    quantity: PublishedQuantity
    value: float  # in `unit`
    unit: str
    method: str  # how its authors obtained it


class Host(Stored, frozen=True):
    """One node of a command that was started on several."""

    node: int
    hostname: str
    address: str  # by which the nodes reach each other
    interface: str | None  # that gloo uses between them; None: not known
    interface_chosen_by: str
    environment: Environment | None = None  # None of node 0: it is the manifest's own


class Manifest(Stored, frozen=True):
    """`manifest.json`: written once, by the sweep (or by a worker started by hand)."""

    schema_version: int
    dpscope_version: str
    created_at: str  # ISO 8601, UTC
    config: ResolvedConfig
    device_type: Literal["cuda", "cpu"]
    threads_per_process: int  # intra-op threads each process (dp-host: each replica) computes with
    environment: Environment
    plan: tuple[PlannedCell, ...]
    findings: tuple[Finding, ...] = ()
    normalisation: str | None = None  # of images, in words; None where dpscope does not or did not tell
    script: str | None = None  # that was attached to, its command: of `config` its model and windows are told then
    repeats_by_cell: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # those --detect chose; else the measurement's repeats
    published: tuple[PublishedValue, ...] = ()  # what others published of these cells, where a table of it was named
    hosts: tuple[Host, ...] = ()  # of a run over several nodes, as it was started last


class TimedBlock(Stored, frozen=True):
    """Steps timed as one block between two synchronisations: the throughput's source."""

    epoch: int | None  # set when the block is a whole epoch
    steps: int
    samples: int  # of this process (DDP) or of all replicas (DP)
    duration_s: float
    data_wait_s: (
        float | None
    )  # of it, waiting for the loader: the sum over its steps' data_wait_us; None where not measured


class DeviceMemory(Stored, frozen=True):
    """Peak memory of one device over the timed steps, from torch's allocator."""

    device: int
    allocated_bytes: int
    reserved_bytes: int


class TensorSize(Stored, frozen=True):
    """One parameter or buffer; DP's chunks are counted from these."""

    dtype: str
    bytes: int


class ParameterSizes(Stored, frozen=True):
    """Sizes of the model: what a strategy has to move."""

    parameter_count: int
    parameter_bytes: int
    gradient_bytes: int  # of parameters that require a gradient
    buffer_bytes: int
    gradient_elements: int | None = None  # of the same; None in runs of older versions
    gradient_shapes: tuple[tuple[int, ...], ...] = ()  # of the same; empty in runs of older versions
    parameter_tensors: tuple[TensorSize, ...] = ()  # in the order of Module.parameters()
    buffer_tensors: tuple[TensorSize, ...] = ()


class AttachedProcess(Stored, frozen=True):
    """What one process saw of the script that it ran."""

    cell: Cell
    reduction_known: bool  # whether what its strategy must move can be told from the model's sizes
    batch_known: bool = True  # else each step counts as one sample of each device
    counters_missing: str | None = None  # why none of DDP's counters were saved; None where they should be there
    inputs: int | None = None  # checksum of its first inputs, None where they show nothing
    model_parallel: bool = False  # whether parameters are sharded without FSDP


Precision = Literal["fp32", "tf32", "half"]


class StepFlops(Stored, frozen=True):
    """FLOPs of one step on one device, forward and backward; `missing` says why they are not known."""

    total: int | None = None
    convolutions: int = 0  # of `total`
    product_precision: Precision = "fp32"  # of matrix products, which on GPUs decides their peak
    convolution_precision: Precision = "fp32"
    missing: str = ""


class RankResult(Stored, frozen=True):
    """`rank_<node>_<rank>.json`: what one process says of its job, beside its samples."""

    rank: int
    node: int
    local_rank: int
    world_size: int
    device_names: tuple[str, ...]
    threads: int
    backend: str | None  # the process group's backend that really ran, None without one
    nccl_engine: str | None  # torch >= 2.15 has two
    loader_workers: int | None  # None of a script that was attached to
    steps_per_epoch: int | None  # the same
    model: ParameterSizes
    blocks: tuple[TimedBlock, ...]
    memory: tuple[DeviceMemory, ...]  # empty on CPU: the allocator keeps no such figure there
    device_states_before: tuple[DeviceState, ...] = ()  # before any process of the job was on them
    device_states_after: tuple[DeviceState, ...] = ()  # while untimed steps ran after the timed ones: under their load
    findings: tuple[Finding, ...] = ()  # about its devices' states
    environment: Environment | None = None  # of its host, told by the first process on each host but the first
    last_loss: float | None = None
    attached: AttachedProcess | None = None  # None where dpscope's own loop was measured
    units: tuple[ShardedUnit, ...] = ()  # of FSDP
    tokens_per_sample: int | None = None
    flops: StepFlops | None = None  # counted by rank 0
    compilation: Compilation | None = None  # of cells that are compiled
    state_bytes: int | None = None  # of parameters, buffers and optimizer state, between steps
    interfaces: tuple[str, ...] | None = (
        None  # of its TCP connections to other hosts, the store's left out; None on one host
    )


class CellResult(Stored, frozen=True):
    """`result.json`: renamed into place last; a repeat without it is not done."""

    cell: Cell
    repeat: int
    status: CellStatus
    duration_s: float  # of the whole job, start of torchrun to its end
    message: str = ""  # why it is not ok, in one line
    log_tail: tuple[str, ...] = ()  # each line with its rank, the first rank to fail first


class DdpCounters(Stored, frozen=True):
    """One step of DDP's own runtime counters; durations in microseconds, as DDP defines them.

    Source: `torch.distributed` DDPLoggingData. `backward_comm_us` is a span: from the launch of the first
    bucket to the end of the last one.
    """

    step: int  # the number in ProfilerStep# of the same step
    forward_compute_us: float
    backward_compute_us: float
    backward_comm_us: float
    overlap_us: float
    bucket_bytes: tuple[int, ...]  # rebuilt_bucket_sizes
    iterations: int = (
        1  # forward passes of a step that reduce gradients; of several, the one before the last is described
    )
    cpu_wait_us: float | None = None  # of the rank's threads in the step, summed: ready to run, but waiting for a core
