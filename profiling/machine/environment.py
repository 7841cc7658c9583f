"""Where a run takes place: versions, devices and their state, settings. Imports torch only to ask its versions."""

import importlib.metadata
import os
import platform
import socket
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dpscope.profiling.machine.checkout import commit_of
from dpscope.profiling.machine.interconnect import active_nvlinks, interconnect
from dpscope.profiling.machine.nvml import ask, bare_uuid, driver_version, gpu_handles
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import DeviceState, Environment

_SETTING_PREFIXES = (
    *("NCCL_", "RCCL_", "GLOO_", "TORCH_", "PYTORCH_", "DDP_", "OMP_", "MKL_", "KINETO_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_OVERRIDE", "HIP_", "HSA_"),
)
ENGINE_VARIABLE = "TORCH_DIST_USE_NCCL2"  # 0: torch >= 2.15 runs NCCL on its legacy engine
_POWER_CAP = "sw_power_cap"
_SLOWER_CLOCK = 0.95  # of the fastest GPU's: below it a power limit makes a GPU the slow one

_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t

# NVML's clock throttle (event) reasons, nvml.h; idle and applications-clock settings do not slow a busy device.
_THROTTLE_REASONS = {
    0x0000000000000004: _POWER_CAP,
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
}


def usable_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_states(
    nvml: Any | None, own_process_ids: Sequence[int] | None, visible: str | None = None
) -> tuple[DeviceState, ...]:
    """State of every visible GPU at this moment, numbered as CUDA does in PCI order; empty without NVML.

    Of a GPU that does not answer at all, as one that fell off the bus, nothing but its index is told.
    `visible` is the value of CUDA_VISIBLE_DEVICES. `own_process_ids` are not counted as others; None says that
    they are not known (as in a container, where NVML counts in the host's process ids): others then are None.
    """
    handles = _visible_handles(nvml, visible)
    return tuple(_device_state(nvml, handle, index, own_process_ids) for index, handle in enumerate(handles))


def torch_device_states(
    nvml: Any | None, own_process_ids: Sequence[int] | None, uuids: Mapping[int, str]
) -> tuple[DeviceState, ...]:
    """State at this moment of the GPUs whose UUIDs torch tells, by torch's index; `own_process_ids` as above.

    Neither CUDA's order of devices nor what is visible matters. A GPU that NVML does not know by its UUID (a MIG instance)
    is left out: its state is not known.
    """
    by_uuid = {
        bare_uuid(uuid): handle
        for handle in gpu_handles(nvml)
        if handle is not None and (uuid := ask(nvml, "nvmlDeviceGetUUID", handle)) is not None
    }
    return tuple(
        _device_state(nvml, by_uuid[bare_uuid(uuid)], index, own_process_ids)
        for index, uuid in uuids.items()
        if bare_uuid(uuid) in by_uuid
    )


def usable_device_states(nvml: Any | None, own_process_ids: Sequence[int] | None) -> tuple[DeviceState, ...]:
    """State of every GPU that torch can use, by torch's index; those that NVML knows and the user left visible without torch's.

    A GPU that NVML does not know (AMD's, a MIG instance, of which NVML lists the whole GPU) has its name and UUID only.
    """
    import torch

    if not torch.cuda.is_available():
        return device_states(nvml, own_process_ids, os.environ.get("CUDA_VISIBLE_DEVICES"))
    named = {index: torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())}
    uuids = {index: str(getattr(one, "uuid", "")) for index, one in named.items()}
    known = {state.index: state for state in torch_device_states(nvml, own_process_ids, uuids)}
    return tuple(
        known.get(index) or DeviceState(index=index, uuid=uuids[index] or None, name=one.name)
        for index, one in named.items()
    )


def states_under_load(samples: Sequence[Sequence[DeviceState]]) -> tuple[DeviceState, ...]:
    """One state per device from several moments: median clocks and power, the highest temperature, every reason and process."""
    by_device: dict[int, list[DeviceState]] = {}
    for state in (one for moment in samples for one in moment):
        by_device.setdefault(state.index, []).append(state)
    return tuple(_joined_state(states) for _, states in sorted(by_device.items()))


def _joined_state(states: Sequence[DeviceState]) -> DeviceState:
    def known(field: str) -> list[Any]:
        return [value for state in states if (value := getattr(state, field)) is not None]

    def united(field: str) -> tuple[Any, ...] | None:
        return tuple(dict.fromkeys(one for value in known(field) for one in value)) if known(field) else None

    changes: dict[str, Any] = {
        name: statistics.median_low(values)
        for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w")
        if (values := known(name))
    }
    highest = ("temperature_c", "pcie_generation", "pcie_width")
    changes |= {name: max(values) for name in highest if (values := known(name))}
    changes |= {name: united(name) for name in ("throttle_reasons", "other_process_ids")}
    return msgspec.structs.replace(states[-1], **changes)


def own_processes_seen(nvml: Any | None, process_id: int) -> bool:
    """Whether NVML lists `process_id`, so that its process ids are those of this process's namespace."""
    return any(process_id in (_process_ids(nvml, handle) or ()) for handle in gpu_handles(nvml) if handle is not None)


def _visible_handles(nvml: Any | None, visible: str | None) -> list[Any | None]:
    handles = gpu_handles(nvml)
    if visible is None:
        return handles
    by_uuid = {ask(nvml, "nvmlDeviceGetUUID", handle) or "": handle for handle in handles if handle is not None}
    chosen: list[Any | None] = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit() and int(name) < len(handles):
            chosen.append(handles[int(name)])
            continue
        matching = [handle for uuid, handle in by_uuid.items() if name and uuid.startswith(name)]
        if not matching:
            break  # CUDA stops at the first name it cannot resolve
        chosen.append(matching[0])
    return chosen


def _device_state(
    nvml: Any | None, handle: Any | None, index: int, own_process_ids: Sequence[int] | None
) -> DeviceState:
    if handle is None:
        return DeviceState(index=index)
    power_mw = ask(nvml, "nvmlDeviceGetPowerUsage", handle)
    reasons = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    processes = _process_ids(nvml, handle)
    others = None
    if processes is not None and own_process_ids is not None:
        others = tuple(process for process in processes if process not in own_process_ids)
    return DeviceState(
        index=index,
        uuid=ask(nvml, "nvmlDeviceGetUUID", handle),
        name=ask(nvml, "nvmlDeviceGetName", handle),
        sm_clock_mhz=ask(nvml, "nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        memory_clock_mhz=ask(nvml, "nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY),
        max_sm_clock_mhz=ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
        temperature_c=ask(nvml, "nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
        power_w=None if power_mw is None else power_mw / 1000,
        throttle_reasons=None
        if reasons is None
        else tuple(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
        other_process_ids=others,
        pcie_generation=ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        active_nvlinks=len(active_nvlinks(nvml, handle)),
    )


def _process_ids(nvml: Any | None, handle: Any) -> tuple[int, ...] | None:
    processes = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    return None if processes is None else tuple(process.pid for process in processes)


def collect_environment(nvml: Any | None, on_gpus: bool, code: Path | None = None) -> Environment:
    """This machine as it is now. Imports torch; `on_gpus`: with the GPUs that torch can use.

    `code` is the folder of the code that is measured, whose commit is asked of git; None: that is not asked.
    """
    import torch

    accelerators = usable_device_states(nvml, None) if on_gpus else ()
    return Environment(
        hostname=socket.gethostname(),
        platform=platform.platform(),
        cpu_name=_cpu_name(),
        cpu_count=usable_cores(),
        memory_bytes=_memory_bytes(),
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
        torchvision_version=_version("torchvision"),
        cuda_version=platform_version(torch.version),
        nccl_version=_nccl_version(torch),
        nccl_engine=default_engine(torch.distributed, os.environ),
        driver_version=driver_version(nvml),
        accelerators=accelerators,
        settings={name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTING_PREFIXES)},
        interconnect=interconnect(nvml, [one.uuid or "" for one in accelerators]) if nvml is not None else None,
        commit=None if code is None else commit_of(code),
    )


def platform_version(version: Any) -> str | None:
    """What torch was built for, by `torch.version`: CUDA's version, or ROCm's with its name; None for a CPU build."""
    cuda: str | None = version.cuda
    return cuda or (f"ROCm {hip}" if (hip := getattr(version, "hip", None)) else None)


def _nccl_version(torch: Any) -> str | None:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def default_engine(distributed: Any, environment: Mapping[str, str]) -> str | None:
    """Class of the process group that "nccl" means to this torch: >= 2.15 has two, and a variable chooses the older one."""
    if not (distributed.is_available() and distributed.is_nccl_available()):
        return None
    second = hasattr(distributed.distributed_c10d, "ProcessGroupNCCL2") and environment.get(ENGINE_VARIABLE) != "0"
    return "ProcessGroupNCCL2" if second else "ProcessGroupNCCL"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # torch built from source may come without a distribution
        version = getattr(sys.modules.get(package), "__version__", None)
        return None if version is None else str(version)


def _cpu_name() -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def machine_findings(environment: Environment, kind: Literal["cuda", "cpu"], devices: int) -> list[Finding]:
    """What about this machine's first `devices` GPUs makes times unfair, or cannot be told; none on the CPU."""
    states = environment.accelerators[:devices]
    findings = device_findings(states)
    if kind == "cuda" and not any(map(state_is_known, states)):
        unknown = (
            "whether they are slowed down or shared"
            if states
            else "whether they are slowed down, shared or unlike each other"
        )
        told = f"NVML says nothing about the GPUs in use: {unknown} is not known."
        return [PlanCode.DEVICE_STATE_UNKNOWN.finding(told), *findings]
    return findings


def state_is_known(state: DeviceState) -> bool:
    """Whether more than a GPU's name and UUID is known."""
    return msgspec.structs.replace(state, name=None, uuid=None) != DeviceState(index=state.index)


def findings_at_moments(*moments: Sequence[DeviceState]) -> list[Finding]:
    """`device_findings` of each moment, every finding once. Clocks of different moments are not compared."""
    return list(dict.fromkeys(finding for states in moments for finding in device_findings(states)))


def device_findings(states: Sequence[DeviceState]) -> list[Finding]:
    """What about these devices, at one moment, makes a comparison between them, or with another day, unfair."""
    findings: list[Finding] = []
    for state in states:
        if _tells_nothing(state):
            findings.append(
                PlanCode.DEVICE_LOST.finding(
                    f"GPU {state.index} does not answer its driver: it may have fallen off the bus."
                )
            )
        if set(state.throttle_reasons or ()) - {_POWER_CAP}:
            findings.append(_throttled(state))
        if state.other_process_ids:
            listed = ", ".join(str(process) for process in state.other_process_ids)
            findings.append(
                PlanCode.DEVICE_SHARED.finding(
                    message=f"GPU {state.index} is shared with other processes ({listed}): "
                    "their work is part of the measured times."
                )
            )
    findings = [*dict.fromkeys([*findings, *power_cap_findings(states)])]
    findings += _mixed(states, "name", PlanCode.MIXED_DEVICES, "GPU models differ")
    findings += _mixed(states, "pcie_width", PlanCode.MIXED_LINKS, "PCIe link widths differ")
    findings += _mixed(states, "active_nvlinks", PlanCode.MIXED_NVLINKS, "Numbers of active NVLinks differ")
    return findings


def power_cap_findings(states: Sequence[DeviceState]) -> list[Finding]:
    """Of GPUs that are held at their power limit and by nothing else: a warning of those whose clock is below the others'.

    A busy GPU is held there most of the time, and all alike: no news of one whose clock is as high as the others'. The
    states are of one moment, under load.
    """
    clocks = [state.sm_clock_mhz for state in states if state.sm_clock_mhz is not None]
    found = []
    for state in states:
        if state.throttle_reasons != (_POWER_CAP,):
            continue
        slower = state.sm_clock_mhz is not None and state.sm_clock_mhz < _SLOWER_CLOCK * max(clocks)
        found.append(_throttled(state, max(clocks)) if slower else _power_capped(state))
    return list(dict.fromkeys(found))


def _power_capped(state: DeviceState) -> Finding:
    return PlanCode.DEVICE_POWER_CAPPED.finding(
        f"GPU {state.index} is held at its power limit, as a busy GPU usually is."
    )


def _throttled(state: DeviceState, fastest_mhz: int | None = None) -> Finding:
    reasons = ", ".join(state.throttle_reasons or ())
    at = f" at {state.temperature_c} C" if state.temperature_c is not None else ""
    beside = "" if fastest_mhz is None else f" to {state.sm_clock_mhz} MHz, where another GPU has {fastest_mhz}"
    return PlanCode.DEVICE_THROTTLED.finding(
        f"GPU {state.index} is slowed down by {reasons}{beside}{at}: its times are those of a slower device."
    )


def _tells_nothing(state: DeviceState) -> bool:
    """Whether a GPU answered no question; links that are not told are counted as none."""
    return msgspec.structs.replace(state, active_nvlinks=None) == DeviceState(index=state.index)


def _mixed(states: Sequence[DeviceState], field: str, code: PlanCode, title: str) -> list[Finding]:
    devices = {state.index: getattr(state, field) for state in states}
    counts = Counter(value for value in devices.values() if value is not None)
    if len(counts) < 2:
        return []
    listed = ", ".join(f"{count} x {value}" for value, count in counts.most_common())
    return [code.finding(f"{title} ({listed}): every synchronous step waits for the slowest device.")]
