"""Which devices a run uses. Never falls back to the CPU in silence. Imports torch only where GPUs may be."""

import glob
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpscope.profiling.machine.nvml import ask, driver_version, open_nvml
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

DeviceType = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class PresentGpus:
    """GPUs the operating system knows of, whatever torch can do with them."""

    count: int
    seen_by: str
    driver: str | None


@dataclass(frozen=True)
class Devices:
    """What a run will use."""

    kind: DeviceType
    count: int | None  # GPUs torch can use; None on the CPU, where a device is a process (or a replica)


def resolve_devices(requested: Literal["auto", "cuda", "cpu"]) -> Devices:
    """The devices for `--device`; raises DpscopeError for GPUs that are present and unusable, or absent."""
    if requested == "cpu":
        return Devices(kind="cpu", count=None)
    present = present_gpus()
    # /dev/kfd is AMD's: whether there is a GPU behind it, torch knows best.
    if present is None and requested == "auto" and not Path("/dev/kfd").exists():
        return Devices(kind="cpu", count=None)
    import torch

    if torch.cuda.is_available():
        return Devices(kind="cuda", count=torch.cuda.device_count())
    if present is None and requested == "auto":
        return Devices(kind="cpu", count=None)
    raise DpscopeError(_unusable_message(present, torch.__version__, torch.version.cuda))


def _unusable_message(present: PresentGpus | None, torch_version: str, cuda_version: str | None) -> str:
    if present is None:
        return "--device cuda: no GPU was found (NVML, nvidia-smi, /dev/nvidia*); use --device cpu"
    driver = f"driver {present.driver}" if present.driver else "a driver that does not answer"
    if cuda_version is None:
        fix = "install a CUDA build of torch"
    elif present.driver is None:
        fix = "install or load the NVIDIA driver (nvidia-smi must work)"
    else:
        fix = f"install a driver new enough for CUDA {cuda_version}, or a torch built for an older CUDA"
    return (
        f"this machine has {counted(present.count, 'GPU')} (seen by {present.seen_by}, {driver}), but torch {torch_version} "
        f"(built for CUDA {cuda_version or 'none: a CPU build'}) cannot use {'it' if present.count == 1 else 'them'}; {fix}; "
        "or measure the CPU on purpose with --device cpu"
    )


def present_gpus() -> PresentGpus | None:
    """GPUs by NVML, else nvidia-smi, else device files; None without any, or when the user hides them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return None
    nvml = open_nvml()
    if count := ask(nvml, "nvmlDeviceGetCount"):
        return PresentGpus(count, "NVML", driver_version(nvml))
    listed = _listed_by_nvidia_smi()
    if listed:
        return PresentGpus(listed, "nvidia-smi", driver_version(nvml))
    files = [path for path in glob.glob("/dev/nvidia*") if path.removeprefix("/dev/nvidia").isdigit()]
    return PresentGpus(len(files), "/dev/nvidia*", driver_version(nvml)) if files else None


def _listed_by_nvidia_smi() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
