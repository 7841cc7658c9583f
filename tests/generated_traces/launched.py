"""A DDP step on GPUs whose kernels begin when their launch, their stream and what they wait for let
them, as on a device.

Layers of equal cost, an all-reduce behind each layer's backward pass. `Launched` states what goes
wrong; the numbers that follow are worked out by hand in the tests that use it.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.generated_traces.builder import (
    CALL_US,
    ENTER_US,
    KERNEL_NAMES,
    DeviceWork,
    TraceBuilder,
    one_group,
    recorded,
)
from tests.generated_traces.model import Trace
from tests.generated_traces.writing import write_trace

MAIN, AUTOGRAD = 5100, 5150
COMPUTE, OWN, COPIES = 7, 40, 24
LAYERS, FORWARD_US, BACKWARD_US, REDUCE_US, ELEMENTS = 4, 1000.0, 2000.0, 1500.0, 2_500_000
OPTIMIZER_US = 100.0


@dataclass(frozen=True)
class Launched:
    """What differs from a job that hides all but its last all-reduce.

    `host_us`: of host time before each layer's launch. `on_compute_stream`: collectives run on the
    stream of kernels. `waits`: the compute stream waits for each all-reduce as it is launched.
    `compiled`: one compiled graph computes the whole backward pass, and all gradients come behind
    it. `copy_us`: a copy on a separate stream before each layer's kernels, which were launched long
    ago and wait for it.
    """

    host_us: float = 0.0
    on_compute_stream: bool = False
    waits: bool = False
    compiled: bool = False
    copy_us: float = 0.0
    steps: int = 4


def write_launched_job(folder: Path, options: Launched) -> list[Path]:
    """The traces of both ranks, alike but for their rank."""
    paths = [folder / f"0_{rank}.pt.trace.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        write_trace(_Program(rank, options).run(), path)
    return paths


class _Program:
    def __init__(self, rank: int, options: Launched) -> None:
        self.rank, self.options = rank, options
        self.builder = TraceBuilder(pid=MAIN)
        self.free: dict[int, float] = {}
        self.sequence = 0

    def run(self) -> Trace:
        self.builder.clock[MAIN] = 0.0
        for step in range(self.options.steps):
            with self.builder.annotation(f"ProfilerStep#{step}", MAIN):
                self._step()
                self.builder.synchronize(
                    MAIN, max(max(self.free.values()), self.builder.clock[MAIN]) + 4.0
                )
        return self.builder.trace(["NVIDIA A100-SXM4-80GB"] * 2, one_group(self.rank, 2))

    def _step(self) -> None:
        with self.builder.annotation("DistributedDataParallel.forward", MAIN):
            for _ in range(LAYERS):
                self._kernel("aten::linear", "ampere_sgemm_128x64_tn", FORWARD_US, MAIN)
        self.builder.join(MAIN, AUTOGRAD)
        graph = (
            self.builder.op("CompiledFunctionBackward", AUTOGRAD)
            if self.options.compiled
            else nullcontext()
        )
        with graph:
            for _ in range(LAYERS):
                self._kernel("aten::mm", "ampere_sgemm_64x32_nt", BACKWARD_US, AUTOGRAD)
                if not self.options.compiled:
                    self._all_reduce()
        for _ in range(LAYERS if self.options.compiled else 0):
            self._all_reduce()
        self.builder.join(MAIN, AUTOGRAD)
        self._after(max(self.free.values()))
        with self.builder.annotation("Optimizer.step#SGD.step", MAIN):
            self._launch(
                "aten::_foreach_add_", MAIN, "multi_tensor_apply_kernel", OPTIMIZER_US, COMPUTE
            )

    def _kernel(self, operator: str, name: str, duration: float, thread: int) -> None:
        self.builder.clock[thread] += self.options.host_us
        if self.options.copy_us:
            self._after(self.free.get(COMPUTE, 0.0), COPIES)
            copy = ("Memcpy HtoD (Pinned -> Device)", self.options.copy_us, COPIES)
            self._launch("aten::_to_copy", thread, *copy, category="gpu_memcpy")
            self._after(self.free[COPIES])
        self._launch(operator, thread, name, duration, COMPUTE)

    def _all_reduce(self) -> None:
        stream = COMPUTE if self.options.on_compute_stream else OWN
        self._after(self.free[COMPUTE], stream)
        self.sequence += 1
        fields = recorded("all_reduce", ELEMENTS, ELEMENTS, Seq=self.sequence)
        called = self.builder.clock[AUTOGRAD] + 3 * ENTER_US  # within operator, record and range
        work = self._work(
            called, KERNEL_NAMES["nccl_2_19"]["all_reduce"], REDUCE_US, stream, metadata=fields
        )
        self.builder.collective(AUTOGRAD, "all_reduce", work, fields=fields)
        if self.options.waits:
            self._after(self.free[stream])

    def _launch(
        self,
        operator: str,
        thread: int,
        name: str,
        duration: float,
        stream: int,
        category: str = "kernel",
    ) -> None:
        with self.builder.op(operator, thread):
            called = self.builder.clock[thread]
            self.builder.launch(
                thread, self._work(called, name, duration, stream, category=category)
            )

    def _work(
        self, called: float, name: str, duration: float, stream: int, **more: Any
    ) -> DeviceWork:
        """Begins when its launch has ended, its stream is free, and what the stream waits for is
        done.
        """
        start = max(called + ENTER_US + CALL_US, self.free.get(stream, 0.0))
        self.free[stream] = start + duration
        return DeviceWork(self.rank, stream, name, start, duration, bytes=4096, **more)

    def _after(self, moment: float, stream: int = COMPUTE) -> None:
        """Have a stream wait until then."""
        self.free[stream] = max(self.free.get(stream, 0.0), moment)
