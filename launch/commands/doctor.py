"""The machine's checks alone, in seconds: what would keep a run from starting, or make it mean less."""

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpscope.analysis.text.terminal import progress
from dpscope.launch.jobs.all_reduce_check import all_reduce_once
from dpscope.launch.jobs.devices import present_gpus, resolve_devices, unknown_visible_device
from dpscope.profiling.machine.environment import (
    device_findings,
    platform_version,
    state_is_known,
    usable_cores,
    usable_device_states,
)
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import driver_version, open_nvml
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

_SHARED_MEMORY_WANTED = 1_000_000_000  # bytes; data loader workers pass batches through it
_ROCM_FIX = "install a ROCm build of torch, and let this user open /dev/kfd (groups render and video)"
_DISK_WANTED = 5_000_000_000  # bytes


def doctor() -> None:
    raise typer.Exit(0 if print_checks(run_doctor(), Console(markup=False)) else 1)


@dataclass(frozen=True)
class Check:
    """One check: what was looked at, how it stands, and what to do where it does not."""

    name: str
    status: Literal["ok", "warning", "failed", "not applicable"]
    detail: str
    next_step: str = ""


def run_doctor() -> list[Check]:
    """Run every check, so that one failure does not hide another; a terminal shows which one is running."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not errors
    checks: list[Callable[[], Check]] = [
        _torch,
        _devices,
        _driver,
        _device_health,
        _links,
        _backends,
        _all_reduce,
        _peer_access,
        _shared_memory,
        _tracer,
        _disk,
    ]
    with progress("Checking this machine") as update:
        found = []
        for check in checks:
            update(check.__name__.strip("_").replace("_", " "))
            found.append(check())
    return found


def print_checks(checks: list[Check], console: Console) -> bool:
    """Print the checks as a table; returns whether none failed."""
    styles = {"ok": "green", "warning": "yellow", "failed": "red", "not applicable": "dim"}
    table = Table("check", "status", "found", "what to do")
    for check in checks:
        table.add_row(check.name, Text(check.status, styles[check.status]), Text(check.detail), Text(check.next_step))
    for column in table.columns:
        column.overflow = "fold"  # a path is never cut
    console.print(table)
    return all(check.status != "failed" for check in checks)


def _cuda_usable() -> bool:
    import torch

    return torch.cuda.is_available()


def _torch() -> Check:
    """A container's own torch is never replaced, whatever dpscope needs."""
    import torch

    (needed,) = (found for line in requires("dpscope") or () if (found := re.match(r"torch>=(\d+)\.(\d+)", line)))
    least, (major, minor) = needed.groups(), str(torch.__version__).split(".")[:2]
    detail = f"torch {torch.__version__} on Python {platform.python_version()}; dpscope needs torch {'.'.join(least)} or newer"
    if (int(major), int(minor)) < (int(least[0]), int(least[1])):
        return Check("torch", "failed", detail, f"install torch {'.'.join(least)} or newer, or a newer container")
    return Check("torch", "ok", detail)


def _devices() -> Check:
    try:
        devices = resolve_devices("auto")
    except DpscopeError as error:
        return Check(
            "devices", "failed", str(error), "see above what was found; --device cpu measures the CPU on purpose"
        )
    if devices.kind == "cpu":
        return Check(
            "devices", "ok", f"no GPU; CPU with {counted(usable_cores(), 'core')}: gloo, and dp-host for DataParallel"
        )
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    detail = f"{counted(len(names), 'GPU')}: {', '.join(sorted(set(names)))}"
    present = present_gpus()
    ignored = None if present is None else unknown_visible_device(present.count)
    if ignored is not None:
        detail += f"; CUDA ignores {ignored!r} in CUDA_VISIBLE_DEVICES and everything after it"
        return Check("devices", "warning", detail, "name each GPU once, by index or UUID (nvidia-smi -L)")
    return Check("devices", "ok", detail)


def _driver() -> Check:
    import torch

    driver = driver_version(open_nvml())
    built_for = platform_version(torch.version)
    built = f"torch {torch.__version__}, built for {built_for if torch.version.cuda is None else f'CUDA {built_for}'}"
    if torch.version.hip is not None and _cuda_usable():
        return Check("driver", "ok", f"torch uses AMD's driver, NVML does not know it; {built}")
    if driver is None and _cuda_usable():
        return Check(
            "driver",
            "warning",
            f"CUDA works, but NVML does not answer: clocks, throttling, links and other processes stay unknown; {built}",
            "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    present = present_gpus()
    if present is None:
        return Check("driver", "not applicable", f"no GPU; {built}")
    if present.maker == "AMD":
        return Check("driver", "failed", f"AMD's driver has {counted(present.count, 'GPU')}; {built}", _ROCM_FIX)
    if driver is None:
        return Check("driver", "failed", f"NVML does not answer; {built}", "load the NVIDIA driver: nvidia-smi")
    return Check("driver", "ok", f"driver {driver}; {built}")


def _device_health() -> Check:
    states = usable_device_states(open_nvml(), (os.getpid(),))
    if not any(map(state_is_known, states)):
        return Check("device state", "not applicable", "no GPU that NVML knows")
    findings = device_findings(states)
    if findings:
        details = " ".join(finding.message for finding in findings)
        return Check("device state", "warning", details, findings[0].next_step)
    return Check("device state", "ok", "not throttled, not shared, uniform")


def _links() -> Check:
    links = interconnect(open_nvml()).devices
    if not links:
        return Check("links", "not applicable", "no GPU that NVML knows")
    described = {
        f"{counted(link.active_nvlinks, 'NVLink')}, PCIe gen {link.pcie_generation} x{link.pcie_width}"
        for link in links
    }
    return Check("links", "ok" if len(described) == 1 else "warning", "; ".join(sorted(described)))


def _backends() -> Check:
    from torch import distributed

    if not distributed.is_available():
        return Check("backends", "failed", "torch.distributed is not in this torch", "install a torch that has it")
    available = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
    detail = ", ".join(f"{name} {'available' if there else 'missing'}" for name, there in available.items())
    needed = "nccl" if _cuda_usable() else "gloo"
    if not available[needed]:
        return Check("backends", "failed", detail, f"install a torch with {needed}")
    return Check("backends", "ok", detail)


def _all_reduce() -> Check:
    """NCCL at work, over all GPUs: whether it is in torch says little."""
    import torch

    count = torch.cuda.device_count() if _cuda_usable() else 0
    if not count:
        return Check("all-reduce", "not applicable", "no GPU")
    try:
        engine = all_reduce_once("cuda", count, Console(markup=False, stderr=True))
    except DpscopeError as error:
        return Check("all-reduce", "failed", str(error), "set NCCL_DEBUG=INFO and run dpscope doctor again to see why")
    return Check("all-reduce", "ok", f"4 MB over {counted(count, 'GPU')} by {engine}")


def _peer_access() -> Check:
    import torch

    count = torch.cuda.device_count() if _cuda_usable() else 0
    if count < 2:
        return Check("peer access", "not applicable", "fewer than two GPUs")
    pairs = [(first, second) for first in range(count) for second in range(count) if first != second]
    without = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if without:
        return Check(
            "peer access",
            "warning",
            f"{len(without)} of {len(pairs)} ordered pairs have none: copies go through host memory",
            "check the IOMMU/ACS settings and the topology (nvidia-smi topo -m)",
        )
    return Check("peer access", "ok", f"all {len(pairs)} ordered pairs")


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", "not applicable", "/dev/shm is not there")
    free = shutil.disk_usage(folder).free
    if free < _SHARED_MEMORY_WANTED:
        return Check(
            "shared memory",
            "warning",
            f"/dev/shm has {free / 1e6:.0f} MB free",
            "in a container, start it with --shm-size=8g or --ipc=host",
        )
    return Check("shared memory", "ok", f"/dev/shm has {free / 1e9:.1f} GB free")


def _tracer() -> Check:
    """Whether torch.profiler yields what the analysis reads: kernels on a GPU, operators on the CPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = _cuda_usable()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    device = "cuda" if cuda else "cpu"
    with profile(activities=activities) as profiler:
        matrix = torch.ones(64, 64, device=device)
        (matrix @ matrix).sum().item()
    events = profiler.events() or []
    if cuda:
        kernels = [event for event in events if "CUDA" in str(event.device_type)]
        if not kernels:
            return Check(
                "tracer",
                "failed",
                "torch.profiler recorded no kernel",
                "end other profilers (Nsight, DCGM profiling), or permit CUPTI: NVreg_RestrictProfilingToAdminUsers=0",
            )
        return Check("tracer", "ok", f"{counted(len(kernels), 'device event')} recorded")
    if not any(event.name == "aten::mm" for event in events):
        return Check("tracer", "failed", "torch.profiler recorded no operator", "check the installation of torch")
    return Check("tracer", "ok", "operators are recorded")


def _disk() -> Check:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    try:
        with tempfile.TemporaryFile(dir=folder):
            writable = True
    except OSError:
        writable = False
    detail = f"{folder} has {free / 1e9:.1f} GB free"
    if not writable:
        return Check("disk", "warning", f"{detail}, but cannot be written", "give --out a folder that can")
    if free < _DISK_WANTED:
        return Check("disk", "warning", detail, "free some, or give --out another disk; large traces take GBs")
    return Check("disk", "ok", detail)
