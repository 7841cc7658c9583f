"""Builds the events of one process the way Kineto records them.

The CPU side is laid out by program order: every thread has a clock, which a range or a launch moves
on. The device side is placed: each kernel and copy comes with its own start and duration. All times
given are microseconds after the trace's zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from tests.generated_traces.model import Trace

ZERO_US = 4458676416788.0
BASE_TIME_NANOSECONDS = 1711964646000000000
ENTER_US = 0.5
CALL_US = 3.0

_CALLS = {  # of CUDA, of HIP
    "kernel": ("cudaLaunchKernel", "hipLaunchKernel", 211),
    "collective": ("cudaLaunchKernelExC", "hipExtLaunchKernel", 430),
    "gpu_memcpy": ("cudaMemcpyAsync", "hipMemcpyWithStream", 41),
    "gpu_memset": ("cudaMemsetAsync", "hipMemsetAsync", 51),
}


@dataclass(frozen=True)
class DeviceWork:
    """A kernel, copy or memset: where it runs and when. `to_device` makes it a peer copy recorded
    on `device`.
    """

    device: int
    stream: int
    name: str
    start: float
    duration: float
    category: str = "kernel"
    bytes: int = 0
    to_device: int | None = None
    metadata: dict[str, object] = field(default_factory=dict)


class TraceBuilder:
    """Collects the events of one process; `trace` closes it."""

    def __init__(self, pid: int, hip: bool = False) -> None:
        self.pid = pid
        self.events: list[Trace] = []
        self.clock: dict[int, float] = {}
        self._hip = hip
        self._operators: dict[int, list[int]] = {}
        self._correlation = 19000
        self._external_id = 0

    def join(self, *threads: int) -> None:
        """Set these threads' clocks to the latest of them: they waited for one another."""
        latest = max(self.clock.get(thread, 0.0) for thread in threads)
        self.clock.update(dict.fromkeys(threads, latest))

    @contextmanager
    def annotation(self, name: str, thread: int, **args: object) -> Iterator[None]:
        """A `record_function` range."""
        with self._span("user_annotation", name, thread, args):
            yield

    @contextmanager
    def op(self, name: str, thread: int, **args: object) -> Iterator[None]:
        """An operator; work launched inside it carries its `External id`."""
        self._operators.setdefault(thread, []).append(self._external_id + 1)
        with self._span("cpu_op", name, thread, args):
            yield
        self._operators[thread].pop()

    @contextmanager
    def _span(
        self, category: str, name: str, thread: int, args: dict[str, object]
    ) -> Iterator[None]:
        self._external_id += 1
        start = self.clock.setdefault(thread, 0.0)
        index = len(self.events)
        details = {
            "External id": self._external_id,
            "Record function id": 0,
            **args,
            "Ev Idx": index,
        }
        event = _complete(category, name, self.pid, thread, start, 0.0, details)
        self.events.append(event)
        self.clock[thread] += ENTER_US
        yield
        self.clock[thread] += ENTER_US
        event["dur"] = self.clock[thread] - start

    def launch(self, thread: int, *works: DeviceWork) -> None:
        """Launch each work from the thread: the device event, the runtime call, and the flow
        between them.
        """
        for work in works:
            self.clock[thread] += ENTER_US
            self._correlation += 1
            self._device_event(work, thread)
            self._runtime_event(work, thread)
            self.clock[thread] += CALL_US

    def collective(
        self,
        thread: int,
        kind: str,
        *works: DeviceWork,
        fields: Mapping[str, object] = MappingProxyType({}),
        shapes: Mapping[str, object] = MappingProxyType({}),
        tensors: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """A collective's operator, torch's record of it, its `nccl:` range, and the launch in it;
        what each records.
        """
        operator, annotation, _ = OPERATORS[kind]
        with (
            self.op(operator, thread, **tensors),
            self.op("record_param_comms", thread, **tensors, **fields),
            self.annotation(annotation, thread, **shapes),
        ):
            self.launch(thread, *works)

    def unlaunched(self, work: DeviceWork) -> None:
        """A device event that was launched before the trace began."""
        self._correlation += 1
        self._device_event(work, None)

    def _device_event(self, work: DeviceWork, thread: int | None) -> None:
        args = self._external(thread) | _device_args(work, self._correlation) | work.metadata
        device, stream = work.device, work.stream
        self.events.append(
            _complete(work.category, work.name, device, stream, work.start, work.duration, args)
        )
        if thread is not None:
            self._flow_event("f", self._correlation, (device, stream, work.start))

    def _runtime_event(self, work: DeviceWork, thread: int) -> None:
        cuda, hip, cbid = _CALLS["collective" if "nccl" in work.name else work.category]
        args = self._external(thread) | {"cbid": cbid, "correlation": self._correlation}
        start, name = self.clock[thread], hip if self._hip else cuda
        self.events.append(_complete("cuda_runtime", name, self.pid, thread, start, CALL_US, args))
        self._flow_event("s", self._correlation, (self.pid, thread, start))

    def _external(self, thread: int | None) -> dict[str, object]:
        operators = self._operators.get(thread, []) if thread is not None else []
        return {"External id": operators[-1]} if operators else {}

    def synchronize(self, thread: int, until: float) -> None:
        """The thread waits for the devices."""
        self._correlation += 1
        start, call = (
            self.clock[thread] + ENTER_US,
            ("cuda_runtime", "cudaDeviceSynchronize", self.pid, thread),
        )
        args: dict[str, object] = {"cbid": 165, "correlation": self._correlation}
        self.events.append(_complete(*call, start, until - start, args))
        self.clock[thread] = until

    def device_annotation(
        self, name: str, device: int, stream: int, span: tuple[float, float]
    ) -> None:
        """A range as Kineto mirrors it onto the device's timeline."""
        args: dict[str, object] = {"External id": self._external_id}
        self.events.append(
            _complete("gpu_user_annotation", name, device, stream, span[0], span[1] - span[0], args)
        )

    def at(
        self, category: str, name: str, thread: int, span: tuple[float, float], **args: object
    ) -> None:
        """A CPU event at a given place, independent of the thread's clock."""
        self._external_id += 1
        details = {"External id": self._external_id, **args, "Ev Idx": len(self.events)}
        self.events.append(
            _complete(category, name, self.pid, thread, span[0], span[1] - span[0], details)
        )

    def _flow_event(self, phase: str, flow: int, place: tuple[int, int, float]) -> None:
        pid, tid, start = place
        event: Trace = {"ph": phase, "id": flow, "pid": pid, "tid": tid, "ts": ZERO_US + start}
        event |= {"cat": "ac2g", "name": "ac2g"}
        self.events.append(event | ({"bp": "e"} if phase == "f" else {}))

    def trace(self, devices: Sequence[str], distributed: Trace | None = None) -> Trace:
        """The whole trace; `devices` are the names of the machine's devices, in order."""
        starts = [event["ts"] for event in self.events]
        ends = [event["ts"] + event.get("dur", 0.0) for event in self.events]
        header: Trace = {"schemaVersion": 1, "deviceProperties": _device_properties(devices)}
        if distributed is not None:
            header["distributedInfo"] = distributed
        events = [*self.events, *self._process_names(min(starts), len(devices))]
        events += _window_events(min(starts) - 50.0, max(ends) + 50.0)
        return {
            **header,
            "traceEvents": events,
            "traceName": "/tmp/trace.json",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_TIME_NANOSECONDS,
        }

    def _process_names(self, start: float, device_count: int) -> list[Trace]:
        labels = [(self.pid, "CPU"), *((device, f"GPU {device}") for device in range(device_count))]
        events: list[Trace] = []
        for pid, label in labels:
            common: Trace = {"ph": "M", "ts": start, "pid": pid, "tid": 0}
            events.append({"name": "process_name", **common, "args": {"name": "python3"}})
            events.append({"name": "process_labels", **common, "args": {"labels": label}})
        threads = {(event["pid"], event["tid"]) for event in self.events}
        for pid, tid in sorted(threads):
            name = f"thread {tid} (python3)" if pid == self.pid else f"stream {tid} "
            place: Trace = {"ph": "M", "ts": start, "pid": pid, "tid": tid}
            events.append({"name": "thread_name", **place, "args": {"name": name}})
        return events


def one_group(rank: int, ranks: int, backend: str = "nccl") -> Trace:
    """The `distributedInfo` of a rank whose only group is that of all ranks."""
    engine = f"{'cuda' if backend == 'nccl' else 'cpu'}:{backend}"
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": engine, "pg_size": ranks}
    config = [group | {"ranks": [*range(ranks)]}]
    return {
        "backend": backend,
        "rank": rank,
        "world_size": ranks,
        "pg_count": 1,
        "pg_config": config,
    }


def _complete(
    category: str,
    name: str,
    pid: int,
    tid: int,
    start: float,
    duration: float,
    args: dict[str, object],
) -> Trace:
    place = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return {**place, "ts": ZERO_US + start, "dur": float(duration), "args": args}


def _device_args(work: DeviceWork, correlation: int) -> dict[str, object]:
    link: dict[str, object] = {"stream": work.stream, "correlation": correlation}
    if work.category == "kernel":
        where: dict[str, object] = {"queued": 0, "device": work.device, "context": 1}
        shape = {
            "registers per thread": 96,
            "shared memory": 0,
            "grid": [8, 1, 1],
            "block": [512, 1, 1],
        }
        return where | link | shape
    size = {"bytes": work.bytes, "memory bandwidth (GB/s)": work.bytes / work.duration / 1e3}
    if work.to_device is None:
        return {"device": work.device, "context": 1} | link | size
    # Kineto gives a peer copy these fields in place of "device".
    peers = {"fromDevice": work.device, "inDevice": work.device, "toDevice": work.to_device}
    return peers | {"fromContext": 1, "inContext": 1, "toContext": 2} | link | size


def _device_properties(devices: Sequence[str]) -> list[Trace]:
    limits = {"maxThreadsPerBlock": 1024, "warpSize": 32, "numSms": 108}
    return [{"id": index, "name": name, **limits} for index, name in enumerate(devices)]


def _window_events(start: float, end: float) -> list[Trace]:
    profiler = "PyTorch Profiler"
    span = _complete(
        "Trace", f"{profiler} (0)", 0, 0, start - ZERO_US, end - start, {"Op count": 0}
    )
    span |= {"pid": "Spans", "tid": profiler}
    instant: Trace = {"ph": "i", "s": "g"}
    begin = {
        "name": f"Iteration Start: {profiler}",
        **instant,
        "pid": "Traces",
        "tid": f"Trace {profiler}",
    }
    finish = {"name": "Record Window End", **instant, "pid": "", "tid": ""}
    return [span, {**begin, "ts": start}, {**finish, "ts": end}]


# From NCCL's generated device code: 2.8, 2.12, 2.19 and later, 2.27's symmetric-memory kernels, and
# RCCL's generic one.
Generation = Literal["nccl_2_8", "nccl_2_12", "nccl_2_19", "symmetric", "rccl"]

_OLD = "(ncclWorkElem)"
_WORK = "(ncclDevComm*, unsigned long, ncclWork*)"
_STORAGE = "(ncclDevKernelArgsStorage<4096ul>)"
_SYMMETRIC = "(ncclSymkDevWorkArgs4K)"
_GENERIC = "ncclDevKernel_Generic_4" + _STORAGE

_RECENT = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL" + _STORAGE,
    "broadcast": "ncclDevKernel_Broadcast_RING_LL" + _STORAGE,
    "all_gather": "ncclDevKernel_AllGather_RING_LL" + _STORAGE,
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL" + _STORAGE,
    "all_to_all": "ncclDevKernel_SendRecv" + _STORAGE,
    "send": "ncclDevKernel_SendRecv" + _STORAGE,
    "recv": "ncclDevKernel_SendRecv" + _STORAGE,
}
KERNEL_NAMES: dict[str, dict[str, str]] = {
    "nccl_2_8": {
        "all_reduce": "ncclAllReduceRingLLKernel_sum_f32" + _OLD,
        "broadcast": "ncclBroadcastRingLLKernel_copy_i8" + _OLD,
        "all_gather": "ncclAllGatherRingLLKernel_copy_i8" + _OLD,
        "reduce_scatter": "ncclReduceScatterRingLLKernel_sum_f32" + _OLD,
        "all_to_all": "ncclSendRecvKernel_copy_i8" + _OLD,
    },
    "nccl_2_12": {
        "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_float" + _WORK,
        "broadcast": "ncclKernel_Broadcast_RING_LL_Sum_int8_t" + _WORK,
        "all_gather": "ncclKernel_AllGather_RING_LL_Sum_int8_t" + _WORK,
        "reduce_scatter": "ncclKernel_ReduceScatter_RING_LL_Sum_float" + _WORK,
        "all_to_all": "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t" + _WORK,
    },
    "nccl_2_19": _RECENT,
    "symmetric": _RECENT
    | {
        "all_reduce": "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32" + _SYMMETRIC,
        "all_gather": "ncclSymkDevKernel_AllGather_ST" + _SYMMETRIC,
        "reduce_scatter": "ncclSymkDevKernel_ReduceScatter_LD_sum_f32" + _SYMMETRIC,
    },
    "rccl": dict.fromkeys(_RECENT, _GENERIC),
}

# By kind: the c10d operator, the `nccl:` range inside it, and the name in the kernel's metadata.
OPERATORS: dict[str, tuple[str, str, str]] = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce", "allreduce"),
    "broadcast": ("c10d::broadcast_", "nccl:broadcast", "broadcast"),
    "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base"),
    "reduce_scatter": (
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "_reduce_scatter_base",
    ),
    "all_to_all": ("c10d::alltoall_base_", "nccl:all_to_all", "all_to_all"),
    "send": ("c10d::send", "nccl:send", "send"),
    "recv": ("c10d::recv_", "nccl:recv", "recv"),
}


def recorded(
    kind: str,
    sent: int,
    received: int,
    dtype: str = "Float",
    group: str = "0",
    ranks: Sequence[int] = (0, 1),
    **more: object,
) -> dict[str, object]:
    """What is recorded of a collective; sizes in elements."""
    sizes = {
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": len(ranks),
        "dtype": dtype,
    }
    names = {"Process Group Name": group, "Process Group Ranks": str(list(ranks))}
    return {"Collective name": OPERATORS[kind][2], **sizes, **names, **more}
