"""The types of a run folder's files: plan, environment, results. Imports no torch.

Every type is `Stored`: frozen, and refused if it holds a field that this version does not know.
Names hold units: `_us`, `_s`, `_bytes`.
"""

import re
from typing import Literal

import msgspec

from dpscope.profiling.records.config import ResolvedConfig, Workload
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import Interconnect
from dpscope.profiling.records.matrix import Amp, CommHook, CompileMode, NcclEngine, Switch
from dpscope.profiling.records.quantities import Amount, Count, Flops, Positive
from dpscope.profiling.records.redaction import command_without_secrets, variables_without_secrets
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.strategies import (
    CellStrategy,
    StrategyTraits,
    ddp_arguments,
    traits_of,
)
from dpscope.profiling.records.turns import Order

SCHEMA_VERSION = 1

CellStatus = Literal["ok", "out_of_memory", "crashed", "timed_out", "interrupted", "skipped"]
SHORT_HASH_DIGITS = 10  # shown digits of a hash; git's short names have seven or more


class Commit(Stored, frozen=True):
    """The commit that a folder of code had checked out."""

    name: str  # the full hash
    committed_at: str  # ISO 8601 with the offset
    changed: bool  # whether tracked files differed from the commit

    def __str__(self) -> str:
        return f"commit {self.name[:SHORT_HASH_DIGITS]}{', changed' if self.changed else ''}"


class ShardedUnit(Stored, frozen=True):
    """Parameters that FSDP gathers together: those of a wrapped module that are not in a wrapped
    module within it.
    """

    name: str  # of the module; empty: the whole model
    shapes: tuple[tuple[Count, ...], ...]  # of its parameters, unsharded
    trained: tuple[bool, ...]  # whether each parameter requires a gradient
    element_bytes: tuple[Count, ...]  # of each parameter
    resharded: bool  # whether it is gathered again for the backward pass


class Compilation(Stored, frozen=True):
    """Compilation by torch.compile in a process."""

    seconds: Amount  # of wall time, in warm-up and after
    graphs: Count  # captured from Python code
    # separately compiled parts of the graphs: by DDP's buckets, else one for each graph
    parts: Count
    breaks: Count  # places in the code at which a graph ended early
    late_graphs: Count = 0  # graphs captured after warm-up, in timed or traced steps


class CellOptions(Stored, frozen=True):
    """A cell's options; all except `accumulate`, `amp` and `compile` are DistributedDataParallel's.

    A step is one optimizer step on the cell's batch, which `accumulate` divides into micro-batches.
    """

    overlap: Switch = "on"
    bucket_mb: float | None = None  # MiB; None: torch's default
    comm_hook: CommHook = "none"
    gradient_as_bucket_view: Switch = "off"  # this and the next: in folders of earlier versions
    static_graph: Switch = "off"
    broadcast_buffers: Switch = "on"
    accumulate: Positive = 1
    amp: Amp | None = None  # None: the run's
    ddp_args: str = "default"
    nccl_engine: NcclEngine = "default"
    compile: CompileMode = "off"

    def __post_init__(self) -> None:
        ddp_arguments(self.ddp_args)  # raises ValueError for what is none

    @property
    def maps_used_parameters(self) -> bool:
        """Whether DDP also all-reduces which parameters a step used, 4 bytes for each (torch's
        reducer.cpp).
        """
        return bool(ddp_arguments(self.ddp_args).get("find_unused_parameters"))

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
    """A unit of measurement: a strategy on a number of devices at a batch size per device, with its
    options.

    `variant` names the options and follows from them; it is stored for readers of the files.
    """

    strategy: CellStrategy
    devices: Positive
    batch_size: Positive  # per device and step
    variant: str = ""
    options: CellOptions = CellOptions()
    nodes: Positive = 1  # hosts over which its processes are spread

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.devices or (self.nodes > 1 and not self.per_device):
            raise ValueError(
                f"{self.strategy} on {counted(self.devices, 'device')} does not span {counted(self.nodes, 'node')}"
            )
        if self.variant not in ("", self.options.name):
            raise ValueError(
                f"variant {self.variant} does not name the options, which are {self.options.name!r}"
            )
        msgspec.structs.force_setattr(self, "variant", self.options.name)

    @property
    def name(self) -> str:
        """Folder name, such as ``ddp-d4-b128``, over two nodes ``ddp-d4-n2-b128``; the batch in it
        is per device.
        """
        nodes = f"-n{self.nodes}" if self.nodes > 1 else ""
        base = f"{self.strategy}-d{self.devices}{nodes}-b{self.batch_size}"
        return f"{base}-{self.variant}" if self.variant else base

    @property
    def global_batch_size(self) -> int:
        """Samples of one step on all devices."""
        return self.devices * self.batch_size

    @property
    def processes(self) -> int:
        """Processes of the job: one on one device, and all devices in one process under
        DataParallel; else one per device.
        """
        return self.devices if self.per_device else 1

    @property
    def per_device(self) -> bool:
        """Whether each device has its own process."""
        return not self.traits.one_process

    @property
    def traits(self) -> StrategyTraits:
        return traits_of(self.strategy)


def cell_workload(workload: Workload, cell: Cell) -> Workload:
    """The workload with the cell's precision, if it has one."""
    return msgspec.structs.replace(workload, amp=cell.options.amp or workload.amp)


class PlannedCell(Stored, frozen=True):
    """A cell of the plan, with the reason if it is left out."""

    cell: Cell
    skip_reason: str | None = None  # if set, the cell is never started


class DeviceState(Stored, frozen=True):
    """One GPU at one moment, by NVML; None: not reported."""

    index: int
    uuid: str | None = None
    name: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None  # in folders of earlier versions
    max_sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    # compute processes that do not belong to the run
    other_process_ids: tuple[int, ...] | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    active_nvlinks: int | None = None


class Environment(Stored, frozen=True):
    """The machine, software and variables of a run."""

    hostname: str
    platform: str
    cpu_name: str | None
    cpu_count: int  # cores that this process may use
    memory_bytes: int | None
    python_version: str
    torch_version: str | None
    cuda_version: str | None  # the one torch was built with, or "ROCm" and its version
    nccl_version: str | None
    driver_version: str | None
    accelerators: tuple[DeviceState, ...] = ()
    # variables that affect times: NCCL_*, ...
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    interconnect: Interconnect | None = None  # links of the visible GPUs; None: without NVML
    nccl_engine: str | None = None  # class that runs NCCL unless a cell chooses; None: no NCCL
    commit: Commit | None = None  # of the measured code; None: not in git
    torchvision_version: str | None = None  # in folders of earlier versions

    def __post_init__(self) -> None:
        """Without secrets."""
        msgspec.structs.force_setattr(self, "settings", variables_without_secrets(self.settings))


_PublishedTime = Literal["epoch_seconds", "compute_seconds", "communication_seconds"]
PublishedQuantity = (
    _PublishedTime
    | Literal["speedup", "efficiency", "effective_bandwidth", "utilisation", "test_accuracy"]
)


class PublishedValue(Stored, frozen=True):
    """A published value of a cell, with its source. `fixed` is the batch that stays constant as
    devices are added.
    """

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
    method: str  # by which its authors obtained it


class Host(Stored, frozen=True):
    """One node of a command that was started on several."""

    node: int
    hostname: str
    address: str  # by which the nodes reach each other
    interface: str | None  # that gloo uses between them; None: unknown
    interface_chosen_by: str
    environment: Environment | None = None  # None for node 0, whose environment is the manifest's


class Manifest(Stored, frozen=True):
    """`manifest.json`, written by the run or by a worker started by hand."""

    schema_version: int
    dpscope_version: str
    created_at: str  # ISO 8601, UTC
    config: ResolvedConfig
    device_type: Literal["cuda", "cpu"]
    threads_per_process: int  # intra-op threads of each process (dp-host: of each replica)
    environment: Environment
    plan: tuple[PlannedCell, ...]
    findings: tuple[Finding, ...] = ()
    normalisation: str | None = None  # of images, as text; None if unknown
    # the command of an attached script: of `config`, only model and windows apply then
    script: str | None = None
    # by --detect; default: config's repeats
    repeats_by_cell: dict[str, int] = msgspec.field(default_factory=dict)
    # published values of these cells, if a table was given
    published: tuple[PublishedValue, ...] = ()
    hosts: tuple[Host, ...] = ()  # of a run over several nodes, at its last start
    # In which order the measured cells of the plan are measured in each repeat; empty: one order,
    # or by hand
    orders: tuple[Order, ...] = ()

    def places(self, cell: Cell) -> tuple[int, ...] | None:
        """As which of all cells it is measured in each repeat; None where that is one place, or not
        known.
        """
        measured = [planned.cell for planned in self.plan if planned.skip_reason is None]
        if not self.orders or cell not in measured:
            return None
        return tuple(order.index(measured.index(cell)) for order in self.orders)

    def __post_init__(self) -> None:
        """Without secrets."""
        if (script := self.script) is None or (shown := command_without_secrets(script)) == script:
            return
        findings = tuple(
            msgspec.structs.replace(
                finding,
                message=finding.message.replace(script, shown),
                next_step=finding.next_step.replace(script, shown),
            )
            for finding in self.findings
        )
        msgspec.structs.force_setattr(self, "script", shown)
        msgspec.structs.force_setattr(self, "findings", findings)


class TimedBlock(Stored, frozen=True):
    """Steps timed as one block between two synchronisations, from which throughput is computed."""

    epoch: Count | None  # set if the block is a whole epoch
    steps: Count
    samples: Count  # of this process (DDP) or of all replicas (DP)
    duration_s: Amount
    # part of it spent waiting for the loader: the sum of data_wait_us; None: not measured
    data_wait_s: Amount | None


class DeviceMemory(Stored, frozen=True):
    """Peak memory of one device over the timed steps, from torch's allocator."""

    device: Count
    allocated_bytes: Count
    reserved_bytes: Count


class TensorSize(Stored, frozen=True):
    """One parameter or buffer; DataParallel's chunks follow from these."""

    dtype: str
    bytes: Count


class ParameterSizes(Stored, frozen=True):
    """Sizes of the model, from which a strategy's traffic follows."""

    parameter_count: Count
    parameter_bytes: Count
    gradient_bytes: Count  # of parameters that require a gradient
    buffer_bytes: Count
    gradient_elements: Count | None = None  # of the same parameters
    gradient_shapes: tuple[tuple[Count, ...], ...] = ()  # of the same parameters
    parameter_tensors: tuple[TensorSize, ...] = ()  # in the order of Module.parameters()
    buffer_tensors: tuple[TensorSize, ...] = ()


class AttachedProcess(Stored, frozen=True):
    """What one process observed of the script that it ran."""

    cell: Cell
    reduction_known: bool  # whether the strategy's traffic follows from the model's sizes
    batch_known: bool = True  # else each step counts as one sample per device
    # why DDP's counters were not saved; None if they should exist
    counters_missing: str | None = None
    # checksum of its first inputs; None if they are constant or have no tensor
    inputs: int | None = None
    model_parallel: bool = False  # whether parameters are sharded without FSDP


Precision = Literal["fp32", "tf32", "half", "bf16"]
"""Of matrix products: `half` is fp16, in runs of older versions bf16 as well."""


class StepFlops(Stored, frozen=True):
    """FLOPs of one step on one device, forward and backward; `missing` is the reason if they are
    unknown.
    """

    total: Flops | None = None
    convolutions: Flops = 0  # of `total`
    product_precision: Precision = "fp32"  # of matrix products, which determines their peak on GPUs
    convolution_precision: Precision = "fp32"
    missing: str = ""


class MatmulPeak(Stored, frozen=True):
    """The highest rate at which a process multiplied two square matrices on the CPU, outside timed
    and traced passes.
    """

    tflops: Amount  # 1e12 FLOPs per second, 2 side^3 a product
    side: Count
    dtype: str  # such as "float32": that of the products in its steps
    threads: Count


class RankResult(Stored, frozen=True):
    """`rank_<node>_<rank>.json`: the results of one process, except its samples."""

    rank: Count
    node: Count
    local_rank: Count
    world_size: Positive
    device_names: tuple[str, ...]
    threads: Count
    backend: str | None  # the process group's actual backend, None without one
    nccl_engine: str | None  # torch may have two
    loader_workers: Count | None  # None for an attached script
    steps_per_epoch: Count | None  # None for an attached script
    model: ParameterSizes
    blocks: tuple[TimedBlock, ...]
    memory: tuple[DeviceMemory, ...]  # empty on a CPU, where the allocator does not record it
    device_states_before: tuple[DeviceState, ...] = ()  # before any process of the job used them
    # during untimed steps after the timed ones: under load
    device_states_after: tuple[DeviceState, ...] = ()
    findings: tuple[Finding, ...] = ()  # about its devices' states
    # of its host, from the first process on each host except the first
    environment: Environment | None = None
    last_loss: float | None = None
    attached: AttachedProcess | None = None  # None if dpscope's loop was measured
    units: tuple[ShardedUnit, ...] = ()  # of FSDP
    tokens_per_sample: Count | None = None
    flops: StepFlops | None = None  # counted by rank 0
    matmul_peak: MatmulPeak | None = None  # None on GPUs and for scripts
    compilation: Compilation | None = None  # of compiled cells
    state_bytes: Count | None = None  # of parameters, buffers and optimizer state, between steps
    # of TCP connections to other hosts except the store's; None on one host
    interfaces: tuple[str, ...] | None = None


class CellResult(Stored, frozen=True):
    """`result.json`, written last; a repeat without it is not done."""

    cell: Cell
    repeat: Count
    status: CellStatus
    duration_s: Amount  # of the whole job, from the start of torchrun to its end
    message: str = ""  # why it is not ok, in one line
    log_tail: tuple[str, ...] = ()  # each line with its rank, the first rank to fail first


class DdpCounters(Stored, frozen=True):
    """DDP's runtime counters of one step; durations in microseconds, as DDP defines them.

    Source: `torch.distributed` DDPLoggingData. `backward_comm_us` is a span: from the launch of the
    first bucket to the end of the last one.
    """

    step: Count  # the number in ProfilerStep# of the same step
    forward_compute_us: Amount
    backward_compute_us: Amount
    backward_comm_us: Amount
    overlap_us: Amount
    bucket_bytes: tuple[Count, ...]  # rebuilt_bucket_sizes
    # forward passes of a step that reduce gradients; the counters are of the last but one of
    # several
    iterations: Count = 1
    # total over the rank's threads in the step: ready to run, but waiting for a core
    cpu_wait_us: Amount | None = None
