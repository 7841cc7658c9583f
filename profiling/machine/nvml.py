"""Opens and queries NVML. Imports no torch.

`query` returns None, for unknown, if the bindings are missing or too old, the driver has no answer, or a GPU fell off the bus.
Source of the functions and their codes: NVML API reference, nvml.h.
"""

from typing import Any


def open_nvml() -> Any | None:
    """NVML, initialised; None without its bindings or an NVIDIA driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def query(nvml: Any | None, function: str, *arguments: Any) -> Any:
    """The result of an NVML function such as ``nvmlDeviceGetName``; None if bindings, driver or device do not have it."""
    if nvml is None:
        return None
    try:
        answer = getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
    return decoded_text(answer)


def decoded_text(answer: Any) -> Any:
    """The answer, as text if older bindings return bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer


def gpu_handles(nvml: Any | None) -> list[Any | None]:
    """Handles of the machine's GPUs, by NVML's index; None for a GPU that does not respond."""
    return [query(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(query(nvml, "nvmlDeviceGetCount") or 0)]


def driver_version(nvml: Any | None) -> str | None:
    version: str | None = query(nvml, "nvmlSystemGetDriverVersion")
    return version


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID without NVML's prefix, as torch prints it."""
    return uuid.removeprefix("GPU-")
