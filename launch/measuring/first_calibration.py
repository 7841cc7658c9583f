"""The short calibration with which a run begins, on its device counts. Imports no torch."""

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from rich.console import Console

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.job_queue import THIS_HOST, JobStarter
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.launch.measuring.calibration_run import run_calibration
from dpscope.launch.measuring.calibration_settings import (
    CONTENDED_CALLS,
    ITEM_BYTES,
    contended_bytes,
)
from dpscope.launch.workload.model_size import ModelSize
from dpscope.profiling.machine.conditions import machine_differences
from dpscope.profiling.records.calibration import (
    MEASURED_COLLECTIVES,
    Calibration,
    CalibrationPoint,
    CalibrationSettings,
    Collective,
    CollectiveFit,
    Contention,
)
from dpscope.profiling.records.config import ResolvedConfig
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.matrix import Layout, Matrix
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Cell, Environment, PlannedCell
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import concurrent_collectives, shard_groups
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.folders import RunFolder

LARGEST_BYTES = 64 << 20  # larger sizes are predicted from the line through smaller ones
_DEFAULT_CAP_MB = 25.0  # DistributedDataParallel's, for all buckets except the first
_SMALL = (4 << 10, 64 << 10)
_ITERATIONS, _WARM_UP = 8, 2
_CALLS = 13  # per size: the iterations, the warm-up, and one more for each further round
_LONGEST_S = 120.0
_START_S: dict[DeviceType, float] = {"cuda": 14.0, "cpu": 5.0}  # torchrun, imports, process group
_GB_PER_S: dict[DeviceType, float] = {"cuda": 5.0, "cpu": 0.5}  # assumed in the estimate of time

Pair = tuple[Collective, Layout]
_ORDER: tuple[Collective, ...] = MEASURED_COLLECTIVES  # type: ignore[assignment]


def plan_calibration(
    plan: Collection[PlannedCell],
    config: ResolvedConfig,
    kind: DeviceType,
    size: ModelSize,
    stored: Calibration | None,
) -> CalibrationSettings | None:
    """What a run times before its cells; None if it needs nothing, has everything already, or is
    not to calibrate.

    DDP needs all-reduces and broadcasts of buffers, DataParallel broadcasts and reduces, FSDP
    all-gathers and reduce-scatters; dp-host uses no link. A calibration from nccl-tests' logs,
    which the user provides, is not extended.
    """
    missing = needed_pairs(plan) - (_held(stored) if stored is not None else set())
    is_of_logs = stored is not None and stored.source != "measured"
    if is_of_logs or not missing or not config.measurement.calibrate:
        return None
    sizes = calibrated_sizes(config.matrix, size)
    collectives = {collective for collective, _ in missing}
    layouts = sorted({layout for _, layout in missing})
    return CalibrationSettings(
        device=kind,
        devices=tuple(layout.devices for layout in layouts if layout.nodes == 1),
        layouts=tuple(str(layout) for layout in layouts if layout.nodes > 1),
        collectives=tuple(collective for collective in _ORDER if collective in collectives),
        min_bytes=sizes[0],
        max_bytes=sizes[-1],
        iterations=_ITERATIONS,
        warmup_iterations=_WARM_UP,
        timeout_s=min(_LONGEST_S, config.measurement.timeout_s),
        chosen_sizes=sizes,
    )


def needed_pairs(plan: Collection[PlannedCell]) -> set[Pair]:
    """The collectives that the planned cells run, each with its layout of devices.

    Without those that several groups run at once on the same links: a calibration times one group
    alone.
    """
    pairs: set[Pair] = set()
    for planned in plan:
        cell = planned.cell
        if planned.skip_reason is not None or cell.devices == 1:
            continue
        layout = Layout(cell.nodes, cell.devices // cell.nodes)
        # the others run each of theirs over all devices
        if cell.traits.sharded:
            pairs |= _pairs_of_shards(cell)
        else:
            pairs |= {(kind, layout) for kind in _ORDER if kind in cell.traits.collectives}
        if cell.traits.reducer and cell.options.broadcast_buffers == "on":
            pairs.add(("broadcast", layout))
    return pairs


def _pairs_of_shards(cell: Cell) -> set[Pair]:
    """Within a group, and HSDP's between groups, which are the nodes if there are several."""
    groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
    nodes = cell.nodes if groups == 1 else 1
    within = Layout(nodes, shards // nodes)
    pairs: set[Pair] = {("all_gather", within), ("reduce_scatter", within)}
    if groups > 1:
        pairs.add(("all_reduce", Layout(groups, 1) if cell.nodes > 1 else Layout(1, groups)))
    concurrent = concurrent_collectives(cell.strategy, cell.devices, cell.nodes)
    return {
        (kind, layout) for kind, layout in pairs if kind not in concurrent and layout.devices > 1
    }


def _held(calibration: Calibration) -> set[Pair]:
    return {(point.collective, _layout(calibration, point)) for point in calibration.points}


def _layout(
    calibration: Calibration, timed: CalibrationPoint | CollectiveFit | Contention
) -> Layout:
    # one that was timed on one node has no number of nodes
    nodes = timed.nodes or calibration.nodes_of(timed.devices) or 1
    return Layout(nodes, timed.devices // nodes)


def calibrated_sizes(matrix: Matrix, size: ModelSize) -> tuple[int, ...]:
    """Two small sizes, and the largest bucket with three fractions of it, in bytes: whole numbers
    of KiB.

    The largest bucket follows from the largest cap, or holds all gradients if they are smaller or
    nothing overlaps.
    """
    gradients = size.parameters * ITEM_BYTES["float32"]
    cap_mb = max(_DEFAULT_CAP_MB if cap == "default" else cap for cap in matrix.bucket_mb)
    # without overlap one bucket holds all gradients
    bucket = gradients if "off" in matrix.overlap else min(gradients, int(cap_mb * 2**20))
    largest = max(8 * _SMALL[-1], min(bucket, LARGEST_BYTES))
    sizes = {*_SMALL}
    for part in (8, 4, 2, 1):
        # whole elements for every device count
        kib = largest // part // 1024
        sizes.add(kib * 1024)
    return tuple(sorted(sizes))


def calibration_seconds(settings: CalibrationSettings) -> float:
    """Estimated duration; a reduce or broadcast counts as an all-reduce."""
    calls = sum(settings.sizes) * _CALLS * len(settings.collectives)
    if "all_reduce" in settings.collectives:
        iterations = settings.iterations + settings.warmup_iterations
        calls += contended_bytes(settings.sizes) * CONTENDED_CALLS * iterations
    moved = calls * len(settings.groups)
    # NCCL's choices: a short job per count
    jobs = 1
    if settings.device == "cuda":
        jobs += len(settings.groups)
    return jobs * _START_S[settings.device] + moved / _GB_PER_S[settings.device] / 1e9


def described(settings: CalibrationSettings) -> str:
    counts = ", ".join((*map(str, settings.devices), *settings.layouts))
    return (
        f"Calibration first: {', '.join(settings.collectives)} on {counts} devices at {counted(len(settings.sizes), 'size')} "
        f"up to {settings.sizes[-1] / 1e6:.3g} MB (--no-calibrate skips it)"
    )


def stored_calibration(run: RunFolder) -> Calibration | None:
    """The calibration in a run folder; raises DpscopeError for an invalid file."""
    return read_json_if_there(run.calibration_path, Calibration)


def calibrate_first(
    run: RunFolder,
    settings: CalibrationSettings | None,
    environment: Environment,
    console: Console,
    starter: JobStarter = THIS_HOST,
) -> tuple[Finding, ...]:
    """Run a calibration and merge it into the run folder's, unless that is another machine's or
    NCCL engine's.

    A failure is a finding. Raises StoppedError if a signal ends it.
    """
    if settings is None:
        return ()
    try:
        measured = run_calibration(settings, console, starter=starter, scratch=run.path)
        stored = of_this_machine(stored_calibration(run), environment)
        if (
            stored is not None
            and stored.environment is not None
            and stored.nccl_engine == measured.nccl_engine
        ):
            measured = _together(stored, measured)
        write_json(run.calibration_path, measured)
    except StoppedError:
        raise
    except DpscopeError as error:
        return (PlanCode.CALIBRATION_FAILED.finding(f"The run's own calibration failed: {error}"),)
    incomplete = RunCode.CALIBRATION_INCOMPLETE.code
    return tuple(finding for finding in measured.findings if finding.code == incomplete)


def of_this_machine(stored: Calibration | None, environment: Environment) -> Calibration | None:
    """The calibration unless it was measured on another machine; logs do not name theirs."""
    if stored is None or stored.environment is None:
        return stored
    differences = machine_differences(stored.environment, environment)
    return None if differences else stored


def _together(stored: Calibration, measured: Calibration) -> Calibration:
    """Both calibrations' points as one with the later time; fits are kept with their points, and
    readers compute the others.
    """
    held = _held(measured)
    timed = {_layout(measured, point) for point in measured.contention}
    chosen = {(choice.devices, choice.nodes) for choice in measured.nccl}

    # of the same collective on the same devices, at any size
    def is_measured_again(timed: CalibrationPoint | CollectiveFit) -> bool:
        return (timed.collective, _layout(stored, timed)) in held

    points = [point for point in stored.points if not is_measured_again(point)]
    fits = [fit for fit in stored.fits if not is_measured_again(fit)]
    slowed = [point for point in stored.contention if _layout(stored, point) not in timed]
    choices = [choice for choice in stored.nccl if (choice.devices, choice.nodes) not in chosen]
    return msgspec.structs.replace(
        measured,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device_names=max(stored.device_names, measured.device_names, key=len),
        points=(*points, *measured.points),
        fits=tuple(fits),
        contention=(*slowed, *measured.contention),
        nccl=(*choices, *measured.nccl),
        left_out=tuple(dict.fromkeys((*stored.left_out, *measured.left_out))),
        links={**stored.links, **measured.links},
        findings=tuple(dict.fromkeys((*stored.findings, *measured.findings))),
    )
