"""What will be measured: the cells of a run, for this machine. Imports no torch unless a model's
name needs it.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dpscope.launch.jobs.devices import Devices, DeviceType, doubling, resolve_devices
from dpscope.launch.planning.run_config import check_idle, flag_name, raising_user_errors
from dpscope.launch.planning.variants import (
    alone_options,
    strategy_options,
    too_few_devices,
    too_large,
    uncompilable,
)
from dpscope.launch.workload.data_files import CIFAR_RESNET, SMALL_RESNET, TRAINING_SAMPLES
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.records.config import (
    ResolvedConfig,
    ResolvedMeasurement,
    RunConfig,
    Workload,
)
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.matrix import (
    BY_CUDA_GRAPHS,
    Amp,
    Layout,
    Matrix,
    ResolvedMatrix,
    check_micro_batches,
    layouts_of,
)
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Cell, PlannedCell
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.strategies import (
    Strategy,
    any_reducer,
    spans_nodes,
    strategy_on,
    strategy_order,
    traits_of,
)
from dpscope.profiling.store.errors import DpscopeError

DEFAULT_BATCH_SIZES: dict[DeviceType, tuple[int, ...]] = {"cuda": (128, 512), "cpu": (32,)}
"""On a modern GPU ResNet-18 for CIFAR at batch 32 only measures how fast the host launches
kernels.
"""
DEFAULT_STEPS: dict[DeviceType, int] = {"cuda": 50, "cpu": 150}
DEFAULT_MODELS: dict[DeviceType, str] = {"cuda": CIFAR_RESNET, "cpu": SMALL_RESNET}
DEFAULT_REPEATS: dict[DeviceType, int] = {"cuda": 2, "cpu": 5}
"""A CPU's cores are shared with other programs, so repeats differ more than a GPU's do; its steps
are short instead.
"""


def resolve(config: RunConfig, devices: Devices, nodes: int = 1) -> ResolvedConfig:
    """The configuration with every "choose for this machine" chosen; raises DpscopeError naming
    what cannot be.

    `nodes` are the hosts that the command was started on, each with this one's devices.
    """
    workload = resolved_workload(config.workload, devices.kind)
    requested = config.measurement
    steps = requested.steps if requested.steps or requested.epochs else DEFAULT_STEPS[devices.kind]
    chosen = {"steps": steps, "repeats": requested.repeats or DEFAULT_REPEATS[devices.kind]}
    parts = {
        "workload": workload,
        "measurement": ResolvedMeasurement(**{**msgspec.structs.asdict(requested), **chosen}),
        "matrix": resolved_matrix(config.matrix, devices, nodes),
    }
    return ResolvedConfig(**{**msgspec.structs.asdict(config), **parts})


def resolved_workload(workload: Workload, kind: DeviceType) -> Workload:
    """The workload on this machine's devices; raises DpscopeError for what they cannot do."""
    _check_precisions((workload.amp,), kind)
    if workload.pin_memory and kind == "cpu":
        raise DpscopeError(
            "--pin-memory on the CPU: it speeds up copies to GPUs and there are none; omit it"
        )
    return msgspec.structs.replace(
        workload,
        device=kind,
        model=DEFAULT_MODELS[kind] if workload.model == "auto" else workload.model,
        samples=TRAINING_SAMPLES.get(workload.data, workload.samples),
        data_dir=str(Path(workload.data_dir).expanduser()),
    )


def _check_precisions(precisions: Sequence[Amp], kind: DeviceType) -> None:
    if "fp16" in precisions and kind == "cpu":
        raise DpscopeError(
            "--amp fp16 on the CPU: not supported there; use --amp bf16 or --amp off"
        )


def resolved_matrix(
    matrix: Matrix, devices: Devices, nodes: int = 1, default_batch_sizes: tuple[int, ...] = ()
) -> ResolvedMatrix:
    """The matrix for this machine's devices, as `resolve` chooses it; raises DpscopeError.

    Batches that are not set are `default_batch_sizes`, or those of `dpscope run`.
    """
    _check_precisions(matrix.amp_variants, devices.kind)
    if devices.kind == "cpu":
        _check_for_cpu(matrix)
    counts = matrix.devices
    layouts = layouts_of(matrix)
    if counts is None:
        counts = (1, 2) if devices.count is None else doubling(devices.count)
        whole_nodes = tuple(Layout(count, max(counts)) for count in doubling(nodes)[1:])
        layouts = whole_nodes if spans_nodes(matrix.strategies) else ()
    _check_layouts(counts, layouts, matrix.strategies, nodes)
    _check_device_count(max((*counts, *(layout.per_node for layout in layouts))), devices)
    everywhere = {*counts, *(layout.devices for layout in layouts)}
    sizes = matrix.batch_sizes
    if not sizes:
        defaults = default_batch_sizes or DEFAULT_BATCH_SIZES[devices.kind]
        sizes = _batch_sizes_for(everywhere, defaults, matrix.scaling)
    if matrix.scaling != "weak":
        for count in sorted(everywhere):
            _check_shares(sizes, count, matrix.scaling)
    chosen = {
        "devices": counts,
        "layouts": tuple(map(str, layouts)),
        "batch_sizes": sizes,
        "ddp_alone": devices.kind != "cpu" if matrix.ddp_alone is None else matrix.ddp_alone,
    }
    with raising_user_errors():
        resolved = ResolvedMatrix(**{**msgspec.structs.asdict(matrix), **chosen})
        check_micro_batches(resolved)
    return resolved


def _batch_sizes_for(
    counts: Collection[int], defaults: Sequence[int], scaling: str
) -> tuple[int, ...]:
    """The default batches; global ones raised to what every device count divides."""
    if scaling == "weak":
        return tuple(defaults)
    multiple = math.lcm(*counts)
    return tuple(sorted({math.ceil(size / multiple) * multiple for size in defaults}))


def _check_for_cpu(matrix: Matrix) -> None:
    """Raises DpscopeError for what only a GPU can run."""
    graphed = [mode for mode in matrix.compile if mode in BY_CUDA_GRAPHS]
    if graphed:
        mode = graphed[0]
        other = BY_CUDA_GRAPHS[mode]
        raise DpscopeError(
            f"--compile {mode} on the CPU: only CUDA graphs distinguish it from {other}; use {other}"
        )
    if matrix.nccl_engine != ("default",):
        raise DpscopeError(
            f"--nccl-engine {','.join(matrix.nccl_engine)} on the CPU: gloo runs there, not NCCL; omit it"
        )


def _check_shares(sizes: Sequence[int], count: int, scaling: str) -> None:
    """Raise DpscopeError for a global batch that so many devices cannot share equally."""
    for size in sizes:
        if size % count:
            raise DpscopeError(
                f"--batch-size {size} with --scaling {scaling}: a global batch of {size} "
                f"cannot be split over {counted(count, 'device')}; choose a multiple of {count}"
            )


def check_idle_options(config: RunConfig, flags: Mapping[str, object], nodes: int = 1) -> None:
    """Raise DpscopeError for one of the `flags` (options) that has no effect with the devices that
    this machine has.
    """
    given = {
        name: flag_name(name, flags[declared.option])
        for name, declared in declarations(RunConfig).items()
        if declared.option in flags and declared.idle is not None
    }
    if config.matrix.devices is None and given:
        check_idle(resolve(config, resolve_devices(config.workload.device), nodes=nodes), given)


def _check_layouts(
    counts: Sequence[int], layouts: Sequence[Layout], strategies: Sequence[str], nodes: int
) -> None:
    """Raise DpscopeError for cells over more nodes than there are, for none over the nodes that
    there are.
    """
    written = ",".join(map(str, (*counts, *layouts)))
    most = max((layout.nodes for layout in layouts), default=1)
    if layouts and not spans_nodes(strategies):
        raise DpscopeError(
            f"--devices {written}: only strategies with a process for each device span nodes, and --strategy "
            f"{','.join(strategies)} has none; add ddp"
        )
    if most > nodes:
        there = "one node is" if nodes == 1 else f"{counted(nodes, 'node')} are"
        raise DpscopeError(
            f"--devices {written}: {there} available, {most} are needed; start the same command on {counted(most, 'node')}, with "
            f"--nodes {most} or --nodes auto"
        )
    given = f"--nodes {nodes} with --devices {written}"
    example = f"{nodes}x{max(counts, default=1)}"
    if nodes > most > 1:
        raise DpscopeError(
            f"{given}: only {most} of the nodes would be used; name counts over all of them, such as {example}, or give "
            f"--nodes {most}"
        )
    if nodes > most:
        raise DpscopeError(
            f"{given} and --strategy {','.join(strategies)}: nothing spans nodes; name counts over all of them, such as "
            f"--devices {example} with ddp, or omit --nodes"
        )


def _check_device_count(count: int, devices: Devices) -> None:
    devices.check_present(count, f"--devices {count}")
    most = max(8, 4 * usable_cores())
    if devices.count is None and count > most:
        raise DpscopeError(
            f"--devices {count}: on the CPU a device is a process, and this machine has {counted(usable_cores(), 'core')}: use "
            f"{usable_cores()}; to try dpscope out, up to {most} are accepted"
        )


def make_plan(matrix: ResolvedMatrix, samples: int, kind: DeviceType) -> tuple[PlannedCell, ...]:
    """The cells of a matrix, small batches first, variants together; batches are per device,
    `samples` an epoch's.

    Weak scaling puts each listed batch on every device; strong scaling splits it, with
    single-device cells at the whole batch and at every share. Raises DpscopeError when nothing is
    left to measure.
    """
    planned = []
    for cell in sorted(dict.fromkeys(_all_cells(matrix, samples, kind)), key=_order):
        reason = too_few_devices(cell) or uncompilable(cell) or too_large(cell, samples)
        planned.append(PlannedCell(cell=cell, skip_reason=reason))
    if all(entry.skip_reason for entry in planned):
        raise _nothing_to_measure(matrix, [str(entry.skip_reason) for entry in planned])
    return tuple(planned)


def _all_cells(matrix: ResolvedMatrix, samples: int, kind: DeviceType) -> Iterator[Cell]:
    """Of every device count and layout; some occur twice."""
    places = [(count, 1) for count in matrix.devices]
    places += [(layout.devices, layout.nodes) for layout in layouts_of(matrix)]
    for count, nodes in places:
        whole = [] if matrix.scaling == "strong" else _sizes(matrix, samples // count)
        global_sizes = [] if matrix.scaling == "weak" else _sizes(matrix, samples)
        shares = [size // count for size in global_sizes]
        for size in (*whole, *shares):
            yield from _cells(matrix, kind, count, size, nodes)
        for size in shares:
            alone = _cells(matrix, kind, 1, size)
            yield from (cell for cell in alone if cell.traits.baseline)


def _order(cell: Cell) -> tuple[int, int, int, int]:
    """Small batches first, variants of a strategy together."""
    return cell.batch_size, cell.devices, cell.nodes, strategy_order(cell.strategy)


def _nothing_to_measure(matrix: ResolvedMatrix, skipped: Sequence[str]) -> DpscopeError:
    needs = [*map(_needs, matrix.strategies), "a step takes no more samples than the data set has"]
    reasons = "; ".join(dict.fromkeys(skipped or needs))
    strategies = ",".join(matrix.strategies)
    devices = ",".join((*map(str, matrix.devices), *matrix.layouts))
    batches = ",".join(map(str, matrix.batch_sizes))
    return DpscopeError(
        f"nothing to measure: --strategy {strategies} with --devices {devices} and batches {batches} leaves no cell; {reasons}"
    )


def _needs(strategy: Strategy) -> str:
    traits = traits_of(strategy)
    more = "" if traits.baseline else " or more"
    return f"{strategy} needs {counted(traits.least_devices, 'device')}{more}"


def _sizes(matrix: ResolvedMatrix, largest: int) -> list[int]:
    """The batch sizes; those that grow end at the largest."""
    if matrix.batch_growth is None:
        return list(matrix.batch_sizes)
    (size,) = matrix.batch_sizes
    sizes = []
    while size <= largest:
        sizes.append(size)
        size *= matrix.batch_growth
    return sizes


def _cells(
    matrix: ResolvedMatrix, kind: DeviceType, count: int, size: int, nodes: int = 1
) -> Iterator[Cell]:
    """The cells on a number of devices with `size` samples each; DDP is on one device only next to
    others, if requested.
    """
    for strategy in matrix.strategies:
        traits = traits_of(strategy)
        if traits.baseline and count > 1:
            continue
        if traits.one_process and nodes > 1:
            continue
        options = strategy_options(matrix, strategy)
        if not traits.baseline and count == 1 < max(matrix.counts):
            if not (traits.plain_reducer and matrix.ddp_alone):
                continue
            options = alone_options(matrix, strategy)
        for chosen in options:
            yield Cell(strategy_on(strategy, kind), count, size, options=chosen, nodes=nodes)


def threads_per_process(matrix: ResolvedMatrix) -> int:
    """Intra-op threads of every process, equal for all cells: the cores over the most devices on a
    node.
    """
    return max(1, usable_cores() // matrix.most_on_a_node)


def plan_findings(workload: Workload, matrix: ResolvedMatrix, kind: DeviceType) -> list[Finding]:
    """Findings about what in this plan may mislead a reader."""
    findings = []
    largest = max(matrix.counts)
    here = matrix.most_on_a_node
    cores = usable_cores()
    in_all = workload.workers_total
    each = 0 if workload.data == "synthetic" else workload.workers
    workers = each * here if in_all is None or each == 0 else in_all
    if kind == "cpu" and here > cores:
        findings.append(
            PlanCode.CPU_OVERSUBSCRIBED.finding(
                f"{counted(here, 'process')} share {counted(cores, 'core')}: they wait for each other, so times on "
                f"{counted(largest, 'device')} do not show scaling.",
                f"Use --devices up to {cores} on this machine.",
            )
        )
    # each GPU is fed by a process, which has loader workers
    if kind == "cuda" and here + workers > cores:
        loaders = f" and {counted(workers, 'loader worker')}" if workers else ""
        findings.append(
            PlanCode.FEW_HOST_CORES.finding(
                f"{counted(here, 'GPU')}{loaders} on {counted(cores, 'host core')}: GPUs wait for the processes that feed them."
            )
        )
    if (
        workload.data != "synthetic"
        and any_reducer(matrix.strategies)
        and in_all
        and in_all < largest
    ):
        findings.append(
            PlanCode.LOADER_WORKERS.finding(
                f"{counted(in_all, 'loader worker')} in all for {largest} DDP processes: some of "
                "the processes load their batches themselves, in the middle of a step, and the others wait for them.",
                f"Use --workers-total {largest} or more, or 0 for all of them to load themselves.",
                severity="warning",
            )
        )
    return findings
