"""A double of torch.cuda: devices with a scripted clock, which record every call with its device.
For a separate process.

Tensors on a device lie in host memory; work takes the scripted time. `install` puts the double in
place before anything of dpscope is imported; what it does not define is torch's own, which fails
without a driver.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

TOTAL_BYTES = 40 << 30
CYCLES_A_US = 1000  # of torch.cuda._sleep


class DoubleStream:
    """A queue of a device: `done_us` is when all that is in it will have run."""

    def __init__(self, owner: "RecordingDevices", index: int, name: str) -> None:
        self.owner, self.index, self.name = owner, index, name
        self.done_us = 0.0

    def queue(self, duration_us: float) -> float:
        """Work behind what is queued already; returns when it will be done."""
        self.done_us = max(self.done_us, self.owner.host_us) + duration_us
        return self.done_us

    def wait_until(self, done_us: float) -> None:
        self.done_us = max(self.done_us, done_us)


class RecordingDevices:
    """The double: its devices, its clock, and `calls`, each (what, device index or None, further
    things).
    """

    def __init__(
        self, count: int = 2, uuids: tuple[str, ...] = (), name: str = "NVIDIA A100-SXM4-40GB"
    ) -> None:
        self.count, self.name = count, name
        self.uuids = uuids or tuple(f"0000{index}" for index in range(count))
        self.host_us = 0.0
        self.current = 0
        self.calls: list[tuple[Any, ...]] = []
        self.used_bytes = [0] * count  # of each device's memory, by any process
        self.deaf: set[int] = set()  # devices that answer nothing
        # by the name of a torch function, on the current device's current stream
        self.work_us: dict[str, float] = {}
        self.streams = [DoubleStream(self, index, "default") for index in range(count)]
        self._chosen = list(self.streams)
        self.peers: set[tuple[int, int]] = set()  # pairs without access
        self.built_for = ["sm_70"]  # architectures for which torch has kernels

    def note(self, what: str, device: int | None = None, *more: Any) -> None:
        self.calls.append((what, device, *more))

    def taken(self) -> list[tuple[Any, ...]]:
        """The calls so far, which are then forgotten."""
        taken, self.calls = self.calls, []
        return taken

    def index_of(self, device: Any = None) -> int:
        if device is None:
            return self.current
        index = device if isinstance(device, int) else device.index
        return self.current if index is None else int(index)

    def stream_of(self, device: Any = None) -> DoubleStream:
        return self._chosen[self.index_of(device)]

    @contextmanager
    def on_stream(self, stream: DoubleStream) -> Iterator[None]:
        before = self._chosen[stream.index]
        self._chosen[stream.index] = stream
        try:
            yield
        finally:
            self._chosen[stream.index] = before

    def synchronise(self, device: Any = None) -> None:
        index = self.index_of(device)
        self.note("synchronize", index)
        self.host_us = max(self.host_us, self.streams[index].done_us, self._chosen[index].done_us)

    def new_stream(self, device: Any = None) -> DoubleStream:
        index = self.index_of(device)
        self.note("stream", index)
        return DoubleStream(self, index, "aside")


def install(double: RecordingDevices) -> None:
    """Put the double in the place of torch.cuda's functions, for good."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing, "elapsed_time needs events made with enable_timing"
            self.at_us: float | None = None

        def record(self, stream: DoubleStream | None = None) -> None:
            stream = stream or double.stream_of()
            double.note("record", stream.index, stream.name)
            self.at_us = max(double.host_us, stream.done_us)

        def query(self) -> bool:
            assert self.at_us is not None
            return self.at_us <= double.host_us

        def elapsed_time(self, later: "Event") -> float:
            assert self.at_us is not None
            assert later.at_us is not None
            assert later.at_us <= double.host_us, "read before the device was waited for"
            return (later.at_us - self.at_us) / 1000

    replaced: dict[str, Any] = {
        **_about_devices(double),
        **_about_memory(double),
        "Event": Event,
        "Stream": double.new_stream,
        "stream": double.on_stream,
        "current_stream": double.stream_of,
        "synchronize": double.synchronise,
        "_sleep": lambda cycles: double.stream_of().queue(cycles / CYCLES_A_US),
    }
    for name, one in replaced.items():
        setattr(torch.cuda, name, one)


def _about_devices(double: RecordingDevices) -> dict[str, Callable[..., Any]]:
    def set_device(device: Any) -> None:
        double.current = double.index_of(device)
        double.note("set_device", double.current)

    def properties(device: Any) -> SimpleNamespace:
        uuid = double.uuids[double.index_of(device)]
        return SimpleNamespace(name=double.name, uuid=uuid, total_memory=TOTAL_BYTES)

    return {
        "init": lambda: None,
        "get_arch_list": lambda: double.built_for,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: double.count,
        "current_device": lambda: double.current,
        "set_device": set_device,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: double.name,
        "get_device_capability": lambda device=None: (7, 0),
        "can_device_access_peer": lambda first, second: (first, second) not in double.peers,
    }


def _about_memory(double: RecordingDevices) -> dict[str, Callable[..., Any]]:
    def noted(what: str, answer: Callable[[int], Any]) -> Callable[..., Any]:
        def noting(device: Any = None) -> Any:
            double.note(what, index := double.index_of(device))
            return answer(index)

        return noting

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        index = double.index_of(device)
        if index in double.deaf:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return TOTAL_BYTES - double.used_bytes[index], TOTAL_BYTES

    return {
        "mem_get_info": mem_get_info,
        "max_memory_allocated": noted(
            "max_memory_allocated", lambda index: double.used_bytes[index] // 2
        ),
        "max_memory_reserved": noted("max_memory_reserved", lambda index: double.used_bytes[index]),
        "memory_reserved": noted("memory_reserved", lambda index: double.used_bytes[index]),
        "reset_peak_memory_stats": noted("reset_peak", lambda index: None),
        "get_rng_state": noted(
            "get_rng_state", lambda index: torch.tensor([index], dtype=torch.uint8)
        ),
        "set_rng_state": lambda state, device: double.note(
            "set_rng_state", double.index_of(device), state.tolist()
        ),
    }


class OnRecordingDevices(TorchFunctionMode):
    """Within it tensors for a device lie in host memory, moves are noted, and functions take the
    time they were given.
    """

    def __init__(self, double: RecordingDevices) -> None:
        super().__init__()
        self._double = double

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        shapes_alone = any(isinstance(one, torch.Tensor) and one.is_meta for one in args)
        if name in self._double.work_us and not shapes_alone:
            self._double.stream_of().queue(self._double.work_us[name])
            if kwargs and "out" in kwargs:
                return kwargs["out"]  # the script has its time; its values are not used

        def hosted(value: Any) -> Any:
            if isinstance(value, torch.device) and value.type == "cuda":
                self._double.note(name, self._double.index_of(value))
                return torch.device("cpu")
            return value

        return func(
            *map(hosted, args), **{key: hosted(value) for key, value in (kwargs or {}).items()}
        )
