"""What was measured and where: as one paragraph, and as the page's list of facts."""

from collections.abc import Iterator, Sequence

from dpscope.analysis.costs.node_rates import rate_between, rate_within
from dpscope.analysis.runs.run_data import RunData, repeats_text, traces_text
from dpscope.analysis.text.units import NA, show_bytes, show_moment
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import DeviceLinks
from dpscope.profiling.records.run import DeviceState, Environment, Manifest, RankResult


def setting_of(run: RunData) -> str:
    """Model, data, machine, versions and repeats in one paragraph; for traces alone a description
    of them.
    """
    if run.recorded is None:
        return traces_text(run)
    manifest = run.manifest
    workload, environment = manifest.config.workload, manifest.environment
    model = next((rank.model for data in run.measured for _, rank in data.ranks), None)
    name = workload.model
    if model is not None:
        name += f" ({counted(model.parameter_count, 'parameter')}, {show_bytes(model.gradient_bytes)} of gradients)"
    where = (
        f"{_machine(run)}, torch {environment.torch_version}; "
        f"{counted(manifest.threads_per_process, 'thread')} per process"
    )
    moment = show_moment(manifest.created_at)
    measured = f"{repeats_text(run)}; measured {moment}."
    if manifest.script is not None:
        return f"{manifest.script}, attached to: {name}; {where}; {measured}"
    normalised = (
        f" (normalised by {manifest.normalisation})" if manifest.normalisation is not None else ""
    )
    what = f"{name}, {workload.data} data{normalised}, amp {workload.amp}, SGD"
    return f"{what}; {where}; seed {workload.seed}; {measured}"


def _of_traces(run: RunData) -> Iterator[tuple[str, str]]:
    """The devices, the files, and what they record of where they were made."""
    (data,) = run.cells.values()
    if data.traced_devices:
        yield "Devices", data.traced_devices
    for trace in run.traces:
        yield f"Rank {NA if trace.rank is None else trace.rank}", str(trace.path)
    facts: dict[tuple[str, str], None] = {}
    for summary in data.summaries:
        facts |= dict.fromkeys(summary.environment)
    yield from facts


def _machine(run: RunData) -> str:
    environment = run.manifest.environment
    if run.manifest.device_type != "cuda":
        return f"CPU only ({environment.cpu_name or 'unknown'}, {counted(environment.cpu_count, 'core')})"
    names = ", ".join(sorted({device.name or "unknown" for device in environment.accelerators}))
    return f"{len(environment.accelerators)} x {names}"


def environment_facts(
    run: RunData, calibration: Calibration | None = None
) -> Iterator[tuple[str, str]]:
    """Name and value of all settings that must be equal to compare two runs; for traces alone their
    files.

    `calibration` is the one that the report's predictions are from.
    """
    if run.recorded is None:
        yield from _of_traces(run)
        return
    manifest = run.manifest
    environment = manifest.environment
    ranks = [rank for data in run.measured for _, rank in data.ranks]
    yield "Measured", manifest.created_at
    yield "dpscope", manifest.dpscope_version
    yield "Host", environment.hostname
    yield from _nodes(manifest, ranks, calibration)
    yield "Platform", environment.platform
    yield "CPU", f"{environment.cpu_name or NA}, {counted(environment.cpu_count, 'core')} usable"
    yield "Memory", show_bytes(environment.memory_bytes)
    yield "Devices", _machine(run)
    yield from versions(environment)
    yield (
        "Backend",
        ", ".join(sorted({rank.backend for rank in ranks if rank.backend})) or "none: one process",
    )
    if engines := ", ".join(sorted({rank.nccl_engine for rank in ranks if rank.nccl_engine})):
        yield "NCCL engine", engines
    yield "Threads per process", str(manifest.threads_per_process)
    yield from _measured_training(manifest)
    yield from _gpus(environment, ranks)
    yield from sorted(environment.settings.items())


def _nodes(
    manifest: Manifest, ranks: Sequence[RankResult], calibration: Calibration | None
) -> Iterator[tuple[str, str]]:
    for host in manifest.hosts:
        way = f"gloo over {host.interface or NA}, by {host.interface_chosen_by}"
        yield (
            f"Node {host.node}",
            f"{host.hostname}, {host.address}, {way}{_connected(ranks, host.node)}",
        )
    if manifest.hosts:
        yield from _rates(calibration)


def _measured_training(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What was trained, and for how many steps."""
    workload, measurement = manifest.config.workload, manifest.config.measurement
    on_devices = manifest.device_type == "cuda" and manifest.script is None
    warm_up = f"{measurement.warmup_steps} warm-up{' (on devices 11 and 1.5 s at least)' if on_devices else ''}"
    yield (
        "Steps",
        f"{warm_up}, {measurement.steps or NA} timed, {measurement.traced_steps} traced, each repeat",
    )
    if manifest.script is not None:
        yield "Script", manifest.script
        yield "Model", workload.model
    else:
        yield "Model and data", f"{workload.model}, {workload.data}, amp {workload.amp}"
        if manifest.normalisation is not None:
            yield "Normalised by", manifest.normalisation
        optimizer = manifest.config.optimizer
        yield (
            "Optimizer",
            f"SGD, learning rate {optimizer.learning_rate:g}, momentum {optimizer.momentum:g}",
        )


def _gpus(environment: Environment, ranks: Sequence[RankResult]) -> Iterator[tuple[str, str]]:
    loaded = [state for rank in ranks for state in rank.device_states_after]
    links = environment.interconnect.devices if environment.interconnect is not None else ()
    for device in environment.accelerators:
        under_load = [
            state for state in loaded if state.uuid is not None and state.uuid == device.uuid
        ]
        slot = next(
            (link for link in links if link.uuid is not None and link.uuid == device.uuid), None
        )
        yield f"GPU {device.index}", _device(device, under_load, slot)


def _connected(ranks: Sequence[RankResult], node: int) -> str:
    """The network interfaces that a node's processes used, NCCL included; empty if no process
    recorded them.
    """
    recorded = [
        rank.interfaces for rank in ranks if rank.node == node and rank.interfaces is not None
    ]
    if not recorded:
        return ""
    seen = ", ".join(sorted({name for names in recorded for name in names}))
    return (
        f"; connections seen over {seen}"
        if seen
        else "; no TCP connection to other nodes seen (RDMA, or none open)"
    )


def _rates(calibration: Calibration | None) -> Iterator[tuple[str, str]]:
    """The calibrated rates between nodes and within a node."""
    why = "no calibration" if calibration is None else "not calibrated"
    between, within = (
        (rate_between(calibration), rate_within(calibration))
        if calibration is not None
        else (None, None)
    )
    yield "Rate between nodes", f"{NA} ({why})" if between is None else str(between)
    yield "Rate within a node", f"{NA} ({why})" if within is None else str(within)


def versions(environment: Environment) -> Iterator[tuple[str, str]]:
    """Name and version of the code and of the libraries used."""
    if environment.commit is not None:
        changes = ", tracked files changed" if environment.commit.changed else ""
        yield (
            "Code",
            f"commit {environment.commit.name} of {environment.commit.committed_at}{changes}",
        )
    yield "Python", environment.python_version
    for name in ("torch", "torchvision", "CUDA", "NCCL", "Driver"):
        if (version := getattr(environment, f"{name.lower()}_version")) is not None:
            yield name, version


def _device(
    device: DeviceState, under_load: Sequence[DeviceState], slot: DeviceLinks | None
) -> str:
    """A GPU with its clocks and throttling over all cells and repeats, and its largest PCIe link.

    `slot` is that recorded for the machine, since idle GPUs lower their current PCIe generation.
    """
    parts = [device.name or NA]
    if clocks := sorted(
        {state.sm_clock_mhz for state in under_load if state.sm_clock_mhz is not None}
    ):
        seen = " to ".join(map(str, dict.fromkeys((clocks[0], clocks[-1]))))
        largest = f" of {device.max_sm_clock_mhz}" if device.max_sm_clock_mhz is not None else ""
        parts.append(f"SM clock under load {seen}{largest} MHz")
    if slot is not None and slot.pcie_generation is not None and slot.pcie_width is not None:
        parts.append(f"PCIe {slot.pcie_generation}.0 x{slot.pcie_width}")
    if reasons := dict.fromkeys(
        reason for state in under_load for reason in state.throttle_reasons or ()
    ):
        parts.append(f"throttled under load: {', '.join(reasons)}")
    return ", ".join(parts)
