"""Opens and queries NVML; records its answers. Imports no torch.

`query` returns None, for unknown, if the bindings are missing or too old, the driver has no answer,
or a GPU fell off the bus. Any error of the bindings counts as no answer: besides NVMLError they
raise an unrelated NVMLLibraryMismatchError where the driver is older than they are, and errors of
ctypes. Source of the functions and their codes: NVML API reference, nvml.h.
"""

import functools
import json
from typing import Any


def open_nvml() -> Any | None:
    """NVML, initialised; None without its bindings or an NVIDIA driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def query(nvml: Any | None, function: str, *arguments: Any) -> Any:
    """The result of an NVML function such as ``nvmlDeviceGetName``; None if bindings, driver or
    device do not have it.
    """
    if nvml is None:
        return None
    try:
        return decoded_text(getattr(nvml, function)(*arguments))
    except Exception:
        return None


def decoded_text(answer: Any) -> Any:
    """The answer, as text if older bindings return bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer


def gpu_handles(nvml: Any | None) -> list[Any | None]:
    """Handles of the machine's GPUs, by NVML's index; None for a GPU that does not respond."""
    return [
        query(nvml, "nvmlDeviceGetHandleByIndex", index)
        for index in range(query(nvml, "nvmlDeviceGetCount") or 0)
    ]


def driver_version(nvml: Any | None) -> str | None:
    version: str | None = query(nvml, "nvmlSystemGetDriverVersion")
    return version


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID without NVML's prefix, as torch prints it."""
    return uuid.removeprefix("GPU-")


class NvmlRecorder:
    """Wraps NVML (`pynvml`, initialised) and records every call with its answer, and device handles
    by their number.

    A record is of one moment: a repeated call returns the first answer. A call that fails, or that
    these bindings do not have, is recorded as such and raises the same exception again.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        # as recorded, and the answer or the exception
        self._calls: dict[str, tuple[dict[str, Any], Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._answer, name)

    def _answer(self, name: str, *arguments: Any) -> Any:
        key = json.dumps([name, *arguments])
        if key not in self._calls:
            self._calls[key] = self._record(name, arguments)
        if isinstance(outcome := self._calls[key][1], Exception):
            raise outcome
        return outcome

    def _record(self, name: str, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], Any]:
        call = {"call": name, "arguments": list(arguments)}
        real = [
            self._handles.get(argument, argument) if isinstance(argument, str) else argument
            for argument in arguments
        ]
        try:
            value = getattr(self._nvml, name)(*real)
        except Exception as error:
            return {**call, "error": str(error)}, error
        if name == "nvmlDeviceGetHandleByIndex":
            handle = f"gpu{arguments[0]}"
            self._handles[handle] = value
            return {**call, "answer": {"handle": handle}}, handle
        return {**call, "answer": _plain(value)}, value

    def to_json(self) -> str:
        """The calls, one per line."""
        return "[\n" + ",\n".join(json.dumps(call) for call, _ in self._calls.values()) + "\n]\n"


def _plain(value: Any) -> Any:
    """An answer as JSON; of structures, only the fields that dpscope reads."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for field in ("busId", "pid"):
        if hasattr(value, field):
            return {field: _plain(getattr(value, field))}
    return decoded_text(value)
