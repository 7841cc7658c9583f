"""The GPUs that torch can use: their number as CUDA counts them, and those that this torch has no
kernels for.

Imports torch only when it counts.
"""

import re
import warnings
from collections.abc import Sequence

GPU_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""The variable with which CUDA numbers GPUs as NVML does; by default it numbers the fastest
first.
"""


def usable_gpu_count() -> int:
    """Number of GPUs that this process can use. Raises torch's RuntimeError if CUDA does not start.

    Until CUDA is started torch counts with NVML, which counts the MIG instances that a process
    cannot use.
    """
    import torch

    if not torch.cuda.is_available():
        return 0
    with warnings.catch_warnings():
        # torch's about GPUs without kernels, which `without_kernels` names
        warnings.simplefilter("ignore")
        torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch.cuda.device_count()


def without_kernels(count: int) -> str | None:
    """The GPUs among the first `count` that this torch has no kernels for, such as ``GPU 0, 1
    (Tesla V100, 7.0)``; None: no such.

    On ROCm, and where torch does not list what it was built for, that is not checked.
    """
    import torch

    built_for = [] if torch.version.hip is not None else torch.cuda.get_arch_list()
    by_model: dict[str, list[str]] = {}
    for index in range(count if built_for else 0):
        major, minor = torch.cuda.get_device_capability(index)
        if not _runs_on(built_for, major, minor):
            by_model.setdefault(f"{torch.cuda.get_device_name(index)}, {major}.{minor}", []).append(
                str(index)
            )
    return (
        ", ".join(f"GPU {', '.join(indices)} ({model})" for model, indices in by_model.items())
        or None
    )


def _runs_on(built_for: Sequence[str], major: int, minor: int) -> bool:
    """Whether code for one of these architectures runs on a GPU of this compute capability.

    `sm_86` is machine code for 8.6 and later of the same major version, `sm_90a` for 9.0 alone, and
    `compute_86` is compiled at run time for 8.6 and all later. Source: CUDA C++ Programming Guide,
    "Application Compatibility" and "Compute Capabilities".
    """
    for name in built_for:
        if (parts := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)) is None:
            continue
        kind = parts[1]
        suffix = parts[4]
        its_major = int(parts[2])
        its_minor = int(parts[3])
        if suffix == "a":
            runs = (major, minor) == (its_major, its_minor)
        elif kind == "compute" and not suffix:
            runs = (major, minor) >= (its_major, its_minor)
        else:
            runs = major == its_major and minor >= its_minor
        if runs:
            return True
    return False
