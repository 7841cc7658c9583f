"""A process group's recorder: `init_process_group` records its arguments and makes torch's fake
group of that size.

Collectives take the scripted time on a separate stream, as NCCL's do; their data stay as they are.
DistributedDataParallel and DataParallel are doubles that note which devices they are given: torch's
own need devices.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.helpers.recording_device import DoubleStream, RecordingDevices


class RecordedGroup:
    """`script` returns how long a collective of so many bytes takes; `failing` is raised by the
    next one.

    The host takes `queueing_us` for each.
    """

    def __init__(
        self, double: RecordingDevices, rank: int, world_size: int, script: Callable[[int], float]
    ) -> None:
        self.rank, self.world_size, self.script = rank, world_size, script
        self.failing: Exception | None = None
        self.queueing_us = 0.0  # of the host, for each collective
        self._double = double
        self._links = [DoubleStream(double, index, "nccl") for index in range(double.count)]
        names = ("init_process_group", "new_group", "destroy_process_group")
        self._real = {name: getattr(distributed, name) for name in names}

    def install(self) -> None:
        """Put the recorder in the place of torch.distributed's functions, for good."""
        doubles: dict[str, Any] = {
            "init_process_group": self._init,
            "new_group": self._new_group,
            "set_timeout": lambda timeout, group: self._double.note(
                "set_timeout", None, timeout.total_seconds()
            ),
            "barrier": lambda group=None: self._double.note("barrier"),
            "all_reduce": self._collective("all_reduce"),
            "broadcast": self._collective("broadcast"),
            "destroy_process_group": self._destroy,
        }
        for name, double in doubles.items():
            setattr(distributed, name, double)

    def _init(self, backend: str, timeout: Any = None, device_id: Any = None, **_: Any) -> None:
        seconds = None if timeout is None else timeout.total_seconds()
        self._double.note(
            "init_process_group", None if device_id is None else device_id.index, backend, seconds
        )
        self._real["init_process_group"](
            "fake", rank=self.rank, world_size=self.world_size, store=FakeStore()
        )

    def _new_group(self, ranks: list[int], timeout: Any = None) -> Any:
        self._double.note(
            "new_group", None, ranks, None if timeout is None else timeout.total_seconds()
        )
        return self._real["new_group"](ranks)

    def _destroy(self) -> None:
        self._double.note("destroy_process_group")
        self._real["destroy_process_group"]()

    def _collective(self, name: str) -> Callable[..., Any]:
        def run(
            tensor: torch.Tensor,
            *args: Any,
            group: Any = None,
            async_op: bool = False,
            **kwargs: Any,
        ) -> Any:
            if self.failing is not None:
                error, self.failing = self.failing, None
                raise error
            size_bytes = tensor.numel() * tensor.element_size()
            index = self._double.current
            self._double.note(name, index, size_bytes)
            self._double.host_us += self.queueing_us
            link = self._links[index]
            link.wait_until(self._double.stream_of().done_us)
            done_us = link.queue(self.script(size_bytes))

            # makes the current stream wait, as NCCL's works do; the host goes on
            def wait() -> None:
                self._double.stream_of(index).wait_until(done_us)

            return SimpleNamespace(wait=wait) if async_op else wait()

        return run


class DoubleDdp(DistributedDataParallel):
    """torch's own over the fake group, without a device, its buckets reduced by a hook that records
    their bytes.
    """

    double: Any  # the RecordingDevices

    @functools.wraps(DistributedDataParallel.__init__)  # type: ignore[misc]  # whose arguments dpscope looks up
    def __init__(
        self, module: nn.Module, device_ids: list[int] | None = None, **kwargs: Any
    ) -> None:
        self.double.note("ddp", None if device_ids is None else device_ids[0])
        super().__init__(module, **kwargs)
        self.register_comm_hook(None, self._reduced)

    def _reduced(
        self,
        state: Any,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        self.double.note("bucket", None, buffer.numel() * buffer.element_size())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


class DoubleDataParallel(nn.Module):
    """Notes its devices and runs the module once."""

    double: Any  # the RecordingDevices

    def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
        super().__init__()
        self.module = module
        self.double.note("dp", None, device_ids)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Of the module."""
        return self.module(*inputs)
