"""The machine's checks alone, in seconds: what would keep a run from starting, or make it mean
less.
"""

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from itertools import permutations
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpscope.analysis.text.terminal import Trimmed, progress
from dpscope.launch.commands.command import Help, open_console
from dpscope.launch.jobs.all_reduce_check import all_reduce_once, gloo_all_reduce
from dpscope.launch.jobs.devices import present_gpus, resolve_devices, unknown_visible_device
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.machine.environment import (
    device_findings,
    platform_version,
    state_is_known,
    usable_device_states,
)
from dpscope.profiling.machine.gpus import usable_gpu_count
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import driver_version, open_nvml
from dpscope.profiling.records.finding import counted, grouped
from dpscope.profiling.store.errors import DpscopeError, error_line

_SHARED_MEMORY_WANTED = 1_000_000_000  # bytes; data loader workers pass batches through it
_ROCM_FIX = (
    "install a ROCm build of torch, and let this user open /dev/kfd (groups render and video)"
)
_GPU_FIX = "fix what it names; nvidia-smi shows a GPU's free memory, processes and compute mode"
_GLOO_FIX = "let processes of this host connect over loopback; GLOO_SOCKET_IFNAME names the interface that gloo uses"
_DISK_WANTED = 5_000_000_000  # bytes


HELP = Help(
    exit_statuses=(
        ("0", "nothing failed"),
        ("1", "a check failed: dpscope cannot measure here as it should"),
    )
)
Format = Annotated[Literal["table", "json"], typer.Option("--format", help="what to print")]


def doctor(output_format: Format = "table") -> None:
    checks = run_doctor()
    if output_format == "json":
        typer.echo(
            json.dumps({"ready": is_ready(checks), "checks": check_records(checks)}, indent=2)
        )
    else:
        print_checks(checks, open_console())
    raise typer.Exit(0 if is_ready(checks) else 1)


@dataclass(frozen=True)
class Check:
    """How one thing stands that was looked at, and what to do where it does not."""

    status: Literal["ok", "warning", "failed", "not applicable"]
    detail: str
    next_step: str = ""


def run_doctor() -> dict[str, Check]:
    """Run every check, so that one failure does not hide another; a terminal shows which one is
    running.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not errors
    checks: dict[str, Callable[[], Check]] = {
        "torch": _torch,
        "devices": _devices,
        "driver": _driver,
        "device state": _device_state,
        "links": _links,
        "backends": _backends,
        "all-reduce": _all_reduce,
        "peer access": _peer_access,
        "shared memory": _shared_memory,
        "tracer": _tracer,
        "disk": _disk,
    }
    answers = {}
    with progress("Checking this machine") as update:
        for name, check in checks.items():
            update(name)
            answers[name] = _answer_of(check)
    return answers


def _answer_of(check: Callable[[], Check]) -> Check:
    """A check's answer; one that fails itself, as on a GPU that torch lists and cannot use, is an
    answer as well.
    """
    try:
        return check()
    except Exception as error:
        return Check("failed", error_line(error), _GPU_FIX)


def is_ready(checks: Mapping[str, Check]) -> bool:
    """Whether no check failed."""
    return all(check.status != "failed" for check in checks.values())


def check_records(checks: Mapping[str, Check]) -> list[dict[str, str]]:
    """The checks for JSON: name, status, detail, next_step."""
    return [{"name": name, **asdict(check)} for name, check in checks.items()]


def verdict(checks: Mapping[str, Check]) -> str:
    """Whether dpscope can measure here, and the names of the checks that say otherwise."""
    failed, warned = (
        [name for name, check in checks.items() if check.status == status]
        for status in ("failed", "warning")
    )
    if failed:
        return f"Not ready: {', '.join(failed)} failed."
    if warned:
        return f"Ready, with {counted(len(warned), 'warning')}: {', '.join(warned)}."
    return "Ready to measure."


def print_checks(checks: Mapping[str, Check], console: Console) -> None:
    """Print the verdict, and the checks as a table."""
    console.print(verdict(checks), highlight=False, soft_wrap=True)
    styles = {"ok": "green", "warning": "yellow", "failed": "red", "not applicable": "dim"}
    table = Table("check", "status", "found", "what to do", box=None, pad_edge=False)
    idle = {name: check for name, check in checks.items() if check.status == "not applicable"}
    for name, check in checks.items():
        if name in idle:
            continue
        table.add_row(
            name,
            Text(check.status, styles[check.status]),
            Text(check.detail),
            Text(check.next_step),
        )
    for column in table.columns:
        column.overflow = "fold"  # a path is never cut
    console.print(Trimmed(table))
    if idle:
        reasons = grouped((check.detail, name) for name, check in idle.items())
        parts = [f"{', '.join(names)} ({detail})" for detail, names in reasons.items()]
        line = f"Not applicable here: {'; '.join(parts)}"
        console.print(Trimmed(Text(line, style="dim")))


def _torch() -> Check:
    """A container's own torch is never replaced, whatever dpscope needs."""
    import torch

    (needed,) = (
        required
        for line in requires("dpscope") or ()
        if (required := re.match(r"torch>=(\d+)\.(\d+)", line))
    )
    least, (major, minor) = needed.groups(), str(torch.__version__).split(".")[:2]
    detail = f"torch {torch.__version__} on Python {platform.python_version()}; dpscope needs torch {'.'.join(least)} or newer"
    if (int(major), int(minor)) < (int(least[0]), int(least[1])):
        return Check(
            "failed", detail, f"install torch {'.'.join(least)} or newer, or a newer container"
        )
    return Check("ok", detail)


def _devices() -> Check:
    try:
        devices = resolve_devices("auto")
    except DpscopeError as error:
        return Check(
            "failed", str(error), "do what it names; --device cpu measures the CPU on purpose"
        )
    if devices.kind == "cpu":
        return Check(
            "ok",
            f"no GPU; CPU with {counted(usable_cores(), 'core')}: gloo, and dp-host for DataParallel",
        )
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(devices.count or 0)]
    detail = f"{counted(len(names), 'GPU')}: {', '.join(sorted(set(names)))}"
    if (present := present_gpus()) and (
        ignored := unknown_visible_device(present.count)
    ) is not None:
        detail += f"; CUDA ignores {ignored!r} in CUDA_VISIBLE_DEVICES and everything after it"
        return Check("warning", detail, "name each GPU once, by index or UUID (nvidia-smi -L)")
    return Check("ok", detail)


def _driver() -> Check:
    import torch

    driver = driver_version(open_nvml())
    built_for = platform_version(torch.version)
    built = f"torch {torch.__version__}, built for {built_for if torch.version.cuda is None else f'CUDA {built_for}'}"
    usable = torch.cuda.is_available()
    if torch.version.hip is not None and usable:
        return Check("ok", f"torch uses AMD's driver, NVML does not know it; {built}")
    if driver is None and usable:
        detail = "CUDA works, but NVML does not answer: clocks, throttling, links and other processes stay unknown"
        fix = "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Check("warning", f"{detail}; {built}", fix)
    present = present_gpus()
    if present is None:
        return Check("not applicable", f"no GPU; {built}")
    if present.maker == "AMD":
        return Check(
            "failed", f"AMD's driver has {counted(present.count, 'GPU')}; {built}", _ROCM_FIX
        )
    if driver is None:
        return Check(
            "failed", f"NVML does not answer; {built}", "load the NVIDIA driver: nvidia-smi"
        )
    return Check("ok", f"driver {driver}; {built}")


def _device_state() -> Check:
    states = usable_device_states(open_nvml(), (os.getpid(),))
    if not any(map(state_is_known, states)):
        return Check("not applicable", "no GPU that NVML knows")
    if findings := device_findings(states):
        worst = next((finding for finding in findings if finding.severity == "error"), findings[0])
        messages = " ".join(finding.message for finding in findings)
        return Check(
            "failed" if worst.severity == "error" else "warning", messages, worst.next_step
        )
    throttled = _denied("throttled", [state.throttle_reasons for state in states])
    shared = _denied("shared", [state.other_process_ids for state in states])
    return Check("ok", f"{throttled}, {shared}, uniform")


def _denied(what: str, answers: Sequence[object | None]) -> str:
    """That no GPU is this, unless NVML did not answer for one."""
    return f"unknown whether {what}" if None in answers else f"not {what}"


def _links() -> Check:
    links = set()
    for link in interconnect(open_nvml()).devices:
        pcie = "unknown PCIe link"
        if link.pcie_generation is not None:
            pcie = f"PCIe gen {link.pcie_generation} x{link.pcie_width or '?'}"
        links.add(f"{counted(link.active_nvlinks, 'NVLink')}, {pcie}")
    if not links:
        return Check("not applicable", "no GPU that NVML knows")
    return Check("ok" if len(links) == 1 else "warning", "; ".join(sorted(links)))


def _backends() -> Check:
    from torch import distributed

    if not distributed.is_available():
        return Check(
            "failed", "torch.distributed is not in this torch", "install a torch that has it"
        )
    available = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
    detail = ", ".join(
        f"{name} {'available' if there else 'missing'}" for name, there in available.items()
    )
    needed = "nccl" if usable_gpu_count() else "gloo"
    return (
        Check("ok", detail)
        if available[needed]
        else Check("failed", detail, f"install a torch with {needed}")
    )


def _all_reduce() -> Check:
    """The backend at work: whether it is in torch says little."""
    count = usable_gpu_count()
    try:
        if not count:
            gloo_all_reduce()
            return Check("ok", "4 MB between 2 ranks on the CPU by gloo")
        engine = all_reduce_once("cuda", count, open_console(stderr=True))
    except DpscopeError as error:
        fix = (
            f"{_GPU_FIX}; of NCCL's errors NCCL_DEBUG=INFO dpscope doctor shows more"
            if count
            else _GLOO_FIX
        )
        return Check("failed", str(error), fix)
    return Check("ok", f"4 MB over {counted(count, 'GPU')} by {engine}")


def _peer_access() -> Check:
    import torch

    if not (pairs := list(permutations(range(usable_gpu_count()), 2))):
        return Check("not applicable", "fewer than two GPUs")
    if without := sum(not torch.cuda.can_device_access_peer(*pair) for pair in pairs):
        detail = f"{without} of {len(pairs)} ordered pairs have none: copies go through host memory"
        return Check(
            "warning", detail, "check the IOMMU/ACS settings and the topology (nvidia-smi topo -m)"
        )
    return Check("ok", f"all {len(pairs)} ordered pairs")


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("not applicable", "/dev/shm is not there")
    free = shutil.disk_usage(folder).free
    if free < _SHARED_MEMORY_WANTED:
        fix = "in a container, start it with --shm-size=8g or --ipc=host"
        return Check("warning", f"/dev/shm has {free / 1e6:.0f} MB free", fix)
    return Check("ok", f"/dev/shm has {free / 1e9:.1f} GB free")


def _tracer() -> Check:
    """Whether torch.profiler yields what the analysis reads: kernels on a GPU, operators on the
    CPU.
    """
    import torch

    # torch.profiler's imports torch's compiler, which takes seconds
    from torch.autograd.profiler import profile

    cuda = bool(usable_gpu_count())
    with profile(use_device="cuda" if cuda else None, use_kineto=True) as profiler:
        matrix = torch.ones(64, 64, device="cuda" if cuda else "cpu")
        (matrix @ matrix).sum().item()
    events = profiler.function_events or []
    if not cuda:
        if any(event.name == "aten::mm" for event in events):
            return Check("ok", "operators are recorded")
        return Check(
            "failed", "torch.profiler recorded no operator", "check the installation of torch"
        )
    if kernels := sum("CUDA" in str(event.device_type) for event in events):
        return Check("ok", f"{counted(kernels, 'device event')} recorded")
    fix = "end other profilers (Nsight, DCGM profiling), or permit CUPTI: NVreg_RestrictProfilingToAdminUsers=0"
    return Check("failed", "torch.profiler recorded no kernel", fix)


def _disk() -> Check:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    detail = f"{folder} has {free / 1e9:.1f} GB free"
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return Check("warning", f"{detail}, but cannot be written", "give --out a folder that can")
    if free < _DISK_WANTED:
        return Check(
            "warning", detail, "free some, or give --out another disk; large traces take GBs"
        )
    return Check("ok", detail)
