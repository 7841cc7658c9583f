"""NVML: the one place where it is opened and asked. Imports no torch.

Every question goes through one guard, by the function's name: bindings that are missing or older than a question, a driver
without an answer and a GPU that fell off the bus leave the answer unknown, which is None. Source of the questions and
their codes: NVML API reference, nvml.h.
"""

from typing import Any


def open_nvml() -> Any | None:
    """NVML, initialised, or None without its bindings or an NVIDIA driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def ask(nvml: Any | None, question: str, *arguments: Any) -> Any:
    """NVML's answer to a question such as ``nvmlDeviceGetName``; None where these bindings, driver or device have none."""
    if nvml is None:
        return None
    try:
        answer = getattr(nvml, question)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
    return decoded_text(answer)


def decoded_text(answer: Any) -> Any:
    """An answer as it is, or as text where older bindings answer bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer


def gpu_handles(nvml: Any | None) -> list[Any | None]:
    """A handle of each of the machine's GPUs, by NVML's index; None for one that does not answer."""
    return [ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(ask(nvml, "nvmlDeviceGetCount") or 0)]


def driver_version(nvml: Any | None) -> str | None:
    """The NVIDIA driver's version, None without one."""
    version: str | None = ask(nvml, "nvmlSystemGetDriverVersion")
    return version


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID as torch prints it, which is without NVML's prefix."""
    return uuid.removeprefix("GPU-")
