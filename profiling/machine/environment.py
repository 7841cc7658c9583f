"""The environment of a run: versions, devices and their states, variables, commit. Imports torch
only for its versions.
"""

import itertools
import os
import platform
import socket
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.machine.gpus import usable_gpu_count
from dpscope.profiling.machine.host_memory import total_host_bytes
from dpscope.profiling.machine.interconnect import active_nvlinks, interconnect
from dpscope.profiling.machine.interfaces import LOOPBACK_INTERFACE
from dpscope.profiling.machine.nvml import bare_uuid, driver_version, gpu_handles, query
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import Interconnect
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Commit, DeviceState, Environment

_SETTING_PREFIXES = (
    *("NCCL_", "RCCL_", "GLOO_", "TORCH_", "PYTORCH_", "DDP_", "OMP_", "MKL_", "KINETO_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_OVERRIDE", "HIP_", "HSA_"),
)
# 0 or 1: which of its two NCCL engines torch registers, if it has both
ENGINE_VARIABLE = "TORCH_DIST_USE_NCCL2"
_POWER_CAP = "sw_power_cap"
_LISTED_PAIRS = 3  # of GPUs, in a finding
# of the fastest GPU's clock: below this share, a power limit makes a GPU slower than the others
_SLOWER_CLOCK = 0.95

_GIT_TIMEOUT_S = 10.0  # a large checkout on a slow disk; then the commit is unknown

_CLOCK_SM, _TEMPERATURE_GPU = 1, 0  # nvmlClockType_t, nvmlTemperatureSensors_t
_QUERIES: dict[str, tuple[Any, ...]] = {
    "uuid": ("UUID",),
    "name": ("Name",),
    "sm_clock_mhz": ("ClockInfo", _CLOCK_SM),
    "max_sm_clock_mhz": ("MaxClockInfo", _CLOCK_SM),
    "temperature_c": ("Temperature", _TEMPERATURE_GPU),
    "pcie_generation": ("CurrPcieLinkGeneration",),
    "pcie_width": ("CurrPcieLinkWidth",),
}
"""Fields of DeviceState as nvmlDeviceGet... answers them."""

# NVML's clock throttle (event) reasons, nvml.h; idle and applications-clock settings do not slow a
# busy device.
_THROTTLE_REASONS = {
    0x0000000000000004: _POWER_CAP,
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
}


def device_states(
    nvml: Any | None, own_process_ids: Sequence[int] | None
) -> tuple[DeviceState, ...]:
    """Current state of every GPU, numbered as by NVML; empty without NVML.

    A GPU that does not respond at all, such as one that fell off the bus, has only its index.
    `own_process_ids` are not counted as other processes; if they are unknown (None, as in a
    container, where NVML reports the host's process ids), the other processes are unknown, too.
    """
    return tuple(
        _device_state(nvml, handle, index, own_process_ids)
        for index, handle in enumerate(gpu_handles(nvml))
    )


def torch_device_states(
    nvml: Any | None, own_process_ids: Sequence[int] | None, uuids: Mapping[int, str]
) -> tuple[DeviceState, ...]:
    """Current states of the GPUs with these UUIDs, by torch's index; `own_process_ids` as in
    `device_states`.

    CUDA's order of devices and their visibility do not matter. A GPU whose UUID NVML does not know
    (a MIG instance) is omitted.
    """
    handles = {}
    for handle in gpu_handles(nvml):
        if handle is not None:
            handles[bare_uuid(query(nvml, "nvmlDeviceGetUUID", handle) or "")] = handle
    states = []
    for index, uuid in uuids.items():
        found = handles.get(bare_uuid(uuid)) if uuid else None
        if found is not None:
            states.append(_device_state(nvml, found, index, own_process_ids))
    return tuple(states)


def usable_device_states(
    nvml: Any | None, own_process_ids: Sequence[int] | None
) -> tuple[DeviceState, ...]:
    """States of all GPUs that torch can use, by torch's index; if it can use none, of NVML's GPUs.

    A GPU that NVML does not list (AMD's, or a MIG instance, whose whole GPU NVML lists) only has
    its name and UUID. Where a GPU does not respond to NVML, an unlisted one is taken to be that
    GPU, and only has its index.
    """
    import torch

    if not (count := usable_gpu_count()):
        return device_states(nvml, own_process_ids)
    named = {index: torch.cuda.get_device_properties(index) for index in range(count)}
    uuids = {index: str(getattr(device, "uuid", "")) for index, device in named.items()}
    listed = {state.index: state for state in torch_device_states(nvml, own_process_ids, uuids)}
    # a GPU that has fallen off the bus has no UUID
    one_is_silent = None in gpu_handles(nvml)
    states = []
    for index, gpu in named.items():
        # which of the unlisted ones is silent is not known
        unlisted = DeviceState(index=index)
        if not one_is_silent:
            unlisted = DeviceState(index=index, uuid=uuids[index] or None, name=gpu.name)
        states.append(listed.get(index, unlisted))
    return tuple(states)


def states_under_load(samples: Sequence[Sequence[DeviceState]]) -> tuple[DeviceState, ...]:
    """One state per device from several moments: median clocks and power, maximum temperature, all
    reasons and processes.
    """
    by_device: dict[int, list[DeviceState]] = {}
    for state in itertools.chain(*samples):
        by_device.setdefault(state.index, []).append(state)
    return tuple(_joined_state(states) for _, states in sorted(by_device.items()))


def _joined_state(states: Sequence[DeviceState]) -> DeviceState:
    joined: dict[str, Any] = {}
    for name in DeviceState.__struct_fields__:
        values = [value for state in states if (value := getattr(state, name)) is not None]
        if values and isinstance(values[0], tuple):
            joined[name] = tuple(dict.fromkeys(itertools.chain(*values)))
        # an idle GPU may lower the generation and width of its link
        elif values and name in ("temperature_c", "pcie_generation", "pcie_width"):
            joined[name] = max(values)
        # a value that was sampled, not the mean of two
        elif values and name in ("sm_clock_mhz", "power_w"):
            joined[name] = statistics.median_low(values)
    return msgspec.structs.replace(states[-1], **joined)


def lists_process(nvml: Any | None, process_id: int) -> bool:
    """Whether NVML lists `process_id`, which shows that it uses the process ids of this process's
    namespace.
    """
    return any(
        process_id in (_process_ids(nvml, handle) or ())
        for handle in gpu_handles(nvml)
        if handle is not None
    )


def _device_state(
    nvml: Any | None, handle: Any | None, index: int, own_process_ids: Sequence[int] | None
) -> DeviceState:
    if handle is None:
        return DeviceState(index=index)
    fields = {
        name: query(nvml, f"nvmlDeviceGet{what}", handle, *rest)
        for name, (what, *rest) in _QUERIES.items()
    }
    power_mw = query(nvml, "nvmlDeviceGetPowerUsage", handle)
    if power_mw is not None:
        fields["power_w"] = power_mw / 1000
    reasons = query(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if reasons is not None:
        slowing = [name for bit, name in _THROTTLE_REASONS.items() if reasons & bit]
        fields["throttle_reasons"] = tuple(slowing)
    # NVML gives the ids of the host's namespace
    process_ids = _process_ids(nvml, handle)
    if own_process_ids is not None and process_ids is not None:
        others = [process_id for process_id in process_ids if process_id not in own_process_ids]
        fields["other_process_ids"] = tuple(others)
    return DeviceState(index=index, active_nvlinks=len(active_nvlinks(nvml, handle)), **fields)


def _process_ids(nvml: Any | None, handle: Any) -> tuple[int, ...] | None:
    processes = query(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    return None if processes is None else tuple(process.pid for process in processes)


def _settings(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables on which times may depend; gloo's interface within one host, which
    dpscope.launch.torchrun sets, is none.
    """
    loopback = ("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
    recorded = {}
    for name, value in sorted(variables.items()):
        if name.startswith(_SETTING_PREFIXES) and (name, value) != loopback:
            recorded[name] = value
    return recorded


def collect_environment(nvml: Any | None, on_gpus: bool, code: Path | None = None) -> Environment:
    """The current environment on this machine, with the GPUs that torch can use if `on_gpus`.
    Imports torch.

    `code` is the folder of the measured code, whose commit is recorded; None: no commit.
    """
    import torch

    accelerators = usable_device_states(nvml, None) if on_gpus else ()
    engine = default_engine(torch.distributed)
    nccl = cast(Any, torch.cuda.nccl)
    return Environment(
        hostname=socket.gethostname(),
        platform=platform.platform(),
        cpu_name=_cpu_name(),
        cpu_count=usable_cores(),
        memory_bytes=total_host_bytes(),
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
        cuda_version=platform_version(torch.version),
        nccl_version=None if engine is None else ".".join(map(str, nccl.version())),
        nccl_engine=engine,
        driver_version=driver_version(nvml),
        accelerators=accelerators,
        settings=_settings(os.environ),
        interconnect=interconnect(nvml, [accelerator.uuid or "" for accelerator in accelerators])
        if nvml is not None
        else None,
        commit=None if code is None else commit_of(code),
    )


def platform_version(version: Any) -> str | None:
    """The platform torch was built for, from `torch.version`: CUDA's version, or "ROCm" and its
    version; None for the CPU.
    """
    cuda: str | None = version.cuda
    return cuda or (f"ROCm {hip}" if (hip := getattr(version, "hip", None)) else None)


def default_engine(distributed: Any) -> str | None:
    """Class of the process group that torch registers for "nccl"; None without NCCL.

    Torch 2.14 has two and registers the older one, at the first use; other versions register
    another one, or at import.
    """
    if not (distributed.is_available() and distributed.is_nccl_available()):
        return None
    # a method of torch 2.14
    if (register := getattr(distributed.Backend, "_ensure_backend_registered", None)) is not None:
        register("nccl")
    registered = getattr(distributed.Backend, "_plugins", {}).get("NCCL")
    second = getattr(distributed.distributed_c10d, "_create_nccl2_process_group", None)
    is_second = second is not None and registered is not None and registered.creator_fn is second
    return "ProcessGroupNCCL2" if is_second else "ProcessGroupNCCL"


def _cpu_name() -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or None
    names = [
        line.partition(":")[2].strip()
        for line in path.read_text().splitlines()
        if "model name" in line
    ]
    return names[0] if names else platform.machine()


def commit_of(folder: Path) -> Commit | None:
    """The commit that `folder` has checked out; None outside a checkout, before its first commit,
    and without git.

    Untracked files, such as run folders, do not count as changes. Nothing is written, not even
    git's index.
    """
    places = (folder.absolute(), *folder.absolute().parents)
    if not any((place / ".git").exists() for place in places):
        return None
    try:
        commit = _git(folder, "log", "-1", "--no-show-signature", "--format=%H %cI")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    name, _, committed_at = commit.partition(" ")
    return Commit(name, committed_at, changed=bool(changes))


def _git(folder: Path, *arguments: str) -> str:
    """What git prints about a checkout; raises OSError or SubprocessError."""
    git = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_GIT_TIMEOUT_S,
        check=True,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return git.stdout.strip()


def machine_findings(
    environment: Environment, kind: Literal["cuda", "cpu"], devices: int
) -> list[Finding]:
    """Findings about conditions of this machine's first `devices` GPUs that distort times, or are
    unknown; none on the CPU.
    """
    states = environment.accelerators[:devices]
    findings = device_findings(states)
    if environment.interconnect is not None:
        findings += _pair_findings(environment.interconnect, devices)
    if kind == "cuda" and not any(map(state_is_known, states)):
        unknown = "slowed down or shared" if states else "slowed down, shared or unlike each other"
        message = (
            f"NVML reports nothing about the GPUs in use: whether they are {unknown} is not known."
        )
        return [PlanCode.DEVICE_STATE_UNKNOWN.finding(message), *findings]
    return findings


def _pair_findings(links: Interconnect, devices: int) -> list[Finding]:
    """Findings about pairs of the first `devices` GPUs that exchange data more slowly than other
    pairs do.
    """
    places = {link.index: link.torch_index for link in links.devices}
    pairs = {}
    for pair in links.pairs:
        first, second = (places.get(index) for index in (pair.first, pair.second))
        if first is not None and second is not None and max(first, second) < devices:
            pairs[min(first, second), max(first, second)] = pair
    blocked = [gpus for gpus, pair in pairs.items() if pair.peer_access is False]
    slow = [
        gpus for gpus, pair in pairs.items() if not (pair.direct_nvlinks or pair.through_nvswitch)
    ]
    findings = []
    if blocked:
        through_host = f"No peer access between {_listed_pairs(blocked)}: what they exchange goes through host memory."
        findings.append(PlanCode.NO_PEER_ACCESS.finding(through_host))
    if 0 < len(slow) < len(pairs):
        no_nvlink = f"No NVLink between {_listed_pairs(slow)}, unlike the other pairs: a ring over it takes its rate."
        findings.append(PlanCode.MIXED_DEVICES.finding(no_nvlink))
    return findings


def _listed_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    """``GPUs 0 and 2, 1 and 2``; of many pairs the first."""
    listed = ", ".join(f"{first} and {second}" for first, second in pairs[:_LISTED_PAIRS])
    more = len(pairs) - _LISTED_PAIRS
    return f"GPUs {listed}" + (f" and {counted(more, 'more pair')}" if more > 0 else "")


def state_is_known(state: DeviceState) -> bool:
    """Whether more than a GPU's name and UUID is known."""
    return msgspec.structs.replace(state, name=None, uuid=None) != DeviceState(index=state.index)


def findings_at_moments(*moments: Sequence[DeviceState]) -> list[Finding]:
    """`device_findings` of each moment without repetition. Clocks of different moments are not
    compared.
    """
    return list(dict.fromkeys(finding for states in moments for finding in device_findings(states)))


def device_findings(states: Sequence[DeviceState]) -> list[Finding]:
    """Findings about states of devices, at one moment, that distort comparisons between them or
    with another day.
    """
    findings: list[Finding] = []
    for state in states:
        gpu = f"GPU {state.index}"
        # its links count as 0
        if msgspec.structs.replace(state, active_nvlinks=None) == DeviceState(state.index):
            silent = f"{gpu} does not answer its driver: it may have fallen off the bus."
            findings.append(PlanCode.DEVICE_LOST.finding(silent))
        if set(state.throttle_reasons or ()) - {_POWER_CAP}:
            findings.append(_throttled(state))
        if state.other_process_ids:
            listed = ", ".join(map(str, state.other_process_ids))
            shared = f"{gpu} is shared with other processes ({listed}): their work is part of the measured times."
            findings.append(PlanCode.DEVICE_SHARED.finding(shared))
    findings = list(dict.fromkeys([*findings, *power_cap_findings(states)]))
    titles = {
        "name": "GPU models differ",
        "pcie_width": "PCIe link widths differ",
        "active_nvlinks": "Numbers of active NVLinks differ",
    }
    for field, title in titles.items():
        values = {state.index: getattr(state, field) for state in states}
        findings += _mixed(
            title, {index: value for index, value in values.items() if value is not None}
        )
    return findings


def _mixed(title: str, values: Mapping[int, object]) -> Iterator[Finding]:
    """A warning where GPUs, by index, have different values of something."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    (usual, count), *others = counts.most_common()
    parts = [f"{count} x {usual}"]
    for value, number in others:
        gpus = [str(index) for index, other in values.items() if other == value]
        parts.append(f"{number} x {value} (GPU {', '.join(gpus)})")
    yield PlanCode.MIXED_DEVICES.finding(
        f"{title} ({', '.join(parts)}): every synchronous step waits for the slowest device."
    )


def power_cap_findings(states: Sequence[DeviceState]) -> list[Finding]:
    """A warning for each GPU held only at its power limit whose clock is below the others'.

    Busy GPUs are held there most of the time, so one with as high a clock as the others is no
    finding. The states are of one moment, under load.
    """
    fastest_mhz = max((state.sm_clock_mhz or 0 for state in states), default=0)
    slowest_usual_mhz = _SLOWER_CLOCK * fastest_mhz
    findings = []
    for state in states:
        clock_mhz = state.sm_clock_mhz
        if state.throttle_reasons != (_POWER_CAP,) or clock_mhz is None:
            continue
        if clock_mhz < slowest_usual_mhz:
            clocks = f" to {clock_mhz} MHz, while another GPU has {fastest_mhz}"
            findings.append(_throttled(state, clocks))
    return list(dict.fromkeys(findings))


def _throttled(state: DeviceState, clocks: str = "") -> Finding:
    by = ", ".join(state.throttle_reasons or ()) + clocks
    at = f" at {state.temperature_c} C" if state.temperature_c is not None else ""
    message = (
        f"GPU {state.index} is slowed down by {by}{at}: its times are those of a slower device."
    )
    return PlanCode.DEVICE_THROTTLED.finding(message)
