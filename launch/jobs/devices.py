"""Selects the devices of a run, and never falls back to the CPU silently. Imports torch only if
there may be GPUs.
"""

import contextlib
import glob
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpscope.profiling.machine.environment import platform_version
from dpscope.profiling.machine.gpus import usable_gpu_count, without_kernels
from dpscope.profiling.machine.nvml import driver_version, gpu_handles, open_nvml, query
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError, error_line

DeviceType = Literal["cuda", "cpu"]

_AMD_DEVICE = Path("/dev/kfd")
# GPUs that only torch can list may be behind these: AMD's, those of Windows under WSL, and a
# Jetson's.
_DEVICE_FILES = (_AMD_DEVICE, Path("/dev/dxg"), Path("/dev/nvmap"))
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True)
class PresentGpus:
    """GPUs known to the operating system, whether or not torch can use them."""

    count: int
    seen_by: str
    driver: str | None
    maker: Literal["NVIDIA", "AMD"] = "NVIDIA"


@dataclass(frozen=True)
class Devices:
    kind: DeviceType
    # GPUs torch can use; None on the CPU, where a device is a process (or a replica)
    count: int | None

    def check_present(self, count: int, given: str) -> None:
        """Raise DpscopeError, which begins with what was `given`, for more GPUs than there are."""
        if self.count is not None and count > self.count:
            raise DpscopeError(
                f"{given}: this machine has {counted(self.count, 'GPU')} that torch can use; request {self.count} at most"
            )


def resolve_devices(requested: Literal["auto", "cuda", "cpu"]) -> Devices:
    """The devices for `--device`; raises DpscopeError if GPUs are present but unusable, or
    requested but absent.

    A GPU for which torch has no kernels is unusable, and so is one next to it that torch can use,
    until the first is hidden.
    """
    if requested == "cpu":
        return Devices(kind="cpu", count=None)
    present = present_gpus()
    if present is None and requested == "auto" and not any(path.exists() for path in _DEVICE_FILES):
        return Devices(kind="cpu", count=None)
    import torch

    if torch.cuda.is_available():
        return Devices(kind="cuda", count=_count_usable())
    if present is None and requested == "auto":
        return Devices(kind="cpu", count=None)
    raise DpscopeError(
        _unusable_message(present, torch.__version__, platform_version(torch.version))
    )


def _count_usable() -> int:
    """The number of GPUs that torch can use; raises DpscopeError if CUDA does not start, or for a
    GPU without kernels.
    """
    import torch

    try:
        count = usable_gpu_count()
        named = without_kernels(count)
    except RuntimeError as error:
        raise DpscopeError(
            f"torch lists GPUs and cannot use them: {error_line(error)}; nvidia-smi shows their state; "
            "or measure the CPU on purpose with --device cpu"
        ) from error
    if named is not None:
        raise DpscopeError(
            f"torch {torch.__version__} has no kernels for {named}: it is built for {', '.join(torch.cuda.get_arch_list())}; "
            "install a torch that is (for an old GPU, with an older CUDA), name other GPUs in CUDA_VISIBLE_DEVICES, or measure "
            "the CPU on purpose with --device cpu"
        )
    return count


def _unusable_message(
    present: PresentGpus | None, torch_version: str, built_for: str | None
) -> str:
    if present is None:
        return "--device cuda: no GPU was found (NVML, nvidia-smi, /dev/nvidia*, /sys/class/kfd); use --device cpu"
    if (name := unknown_visible_device(present.count)) is not None:
        listed = os.environ["CUDA_VISIBLE_DEVICES"]
        return (
            f"CUDA_VISIBLE_DEVICES={listed}: CUDA does not accept {name!r} on this machine, which has "
            f"{counted(present.count, 'GPU')}; use indices from 0 to {present.count - 1} or UUIDs (nvidia-smi -L), each once"
        )
    for_rocm = built_for is not None and built_for.startswith("ROCm")
    build = (
        "a CPU build"
        if built_for is None
        else f"built for {built_for if for_rocm else f'CUDA {built_for}'}"
    )
    driver = f", driver {present.driver}" if present.driver else ", a driver that does not answer"
    if present.maker == "AMD":
        driver, fix = "", "install a ROCm build of torch"
        if for_rocm:
            fix = "let this user open /dev/kfd and /dev/dri/render* (groups render and video)"
    elif built_for is None or for_rocm:
        fix = "install a CUDA build of torch"
    elif present.driver is None:
        fix = "install or load the NVIDIA driver (nvidia-smi must work)"
    else:
        fix = (
            f"install a driver new enough for CUDA {built_for}, or a torch built for an older CUDA"
        )
    return (
        f"this machine has {counted(present.count, f'{present.maker} GPU')} (seen by {present.seen_by}{driver}), but torch "
        f"{torch_version} ({build}) cannot use {'it' if present.count == 1 else 'them'}; {fix}; "
        "or measure the CPU on purpose with --device cpu"
    )


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the most.

    >>> doubling(6), doubling(1)
    ((1, 2, 4, 6), (1,))
    """
    return tuple(sorted({1 << step for step in range(most.bit_length())} | {most}))


def unknown_visible_device(count: int) -> str | None:
    """The first entry of CUDA_VISIBLE_DEVICES that CUDA does not accept; None if it accepts all of
    them.

    CUDA ignores that entry and all after it, without a message. MIG instances are not checked.
    """
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return None
    nvml = open_nvml()
    uuids = [
        query(nvml, "nvmlDeviceGetUUID", handle) or ""
        for handle in gpu_handles(nvml)
        if handle is not None
    ]
    names = [part.strip() for part in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    for position, name in enumerate(names):
        by_index = name.isdigit() and int(name) < count
        by_uuid = name.startswith("GPU-") and (
            not uuids or any(uuid.startswith(name) for uuid in uuids)
        )
        if name in names[:position] or not (by_index or by_uuid or name.startswith("MIG-")):
            return name
    return None


def present_gpus() -> PresentGpus | None:
    """GPUs by NVML, nvidia-smi, device files or AMD's driver, in that order; None if there are none
    or the user hides them.
    """
    if _hidden_by("CUDA_VISIBLE_DEVICES"):
        return None
    nvml = open_nvml()
    if count := query(nvml, "nvmlDeviceGetCount"):
        return PresentGpus(count, "NVML", driver_version(nvml))
    if count := _listed_by_nvidia_smi():
        return PresentGpus(count, "nvidia-smi", driver_version(nvml))
    if count := sum(
        path.removeprefix("/dev/nvidia").isdigit() for path in glob.glob("/dev/nvidia*")
    ):
        return PresentGpus(count, "/dev/nvidia*", driver_version(nvml))
    if count := _amd_gpus():
        return PresentGpus(count, str(_AMD_NODES.parent.parent), driver=None, maker="AMD")
    return None


def _hidden_by(variable: str) -> bool:
    return os.environ.get(variable, "all").strip() in ("", "-1", "NoDevFiles")


def _amd_gpus() -> int:
    """Number of AMD GPUs that this process may open: a container without them still sees the host's
    /sys.

    A node of the topology with SIMD units is a GPU, others are processors. Source: the kernel's
    amdkfd, kfd_topology.c.
    """
    if not _AMD_DEVICE.exists() or any(
        map(_hidden_by, ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
    ):
        return 0
    count = 0
    for properties in _AMD_NODES.glob("*/properties"):
        with contextlib.suppress(OSError):  # a GPU that the container's control group denies
            count += (
                re.search(r"^simd_count\s+[1-9]", properties.read_text(), re.MULTILINE) is not None
            )
    return count


def _listed_by_nvidia_smi() -> int:
    if (program := shutil.which("nvidia-smi")) is None:
        return 0
    try:
        listing = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
