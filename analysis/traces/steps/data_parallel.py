"""A step of `nn.DataParallel` by its phases: what each costs on each device, in time and bytes.

From dpscope's named ranges where a trace has them; else from the names of operators and autograd
nodes and from the threads that launch: DataParallel scatters, replicates and gathers on the thread
that called it, runs each replica on its own thread, and reduces gradients in the backward node
of its broadcast. Source: torch/nn/parallel/data_parallel.py.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    CommunicationArgs,
    EventTable,
    FloatColumn,
    IntColumn,
)
from dpscope.analysis.traces.reading.table import Groups, Table
from dpscope.analysis.traces.reading.tensor_sizes import buffer_sizes
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import cpu_compute
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, DEVICE_KINDS, Kind
from dpscope.analysis.traces.steps.intervals import Intervals, innermost
from dpscope.profiling.records import range_names as phases
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.run import ParameterSizes, TensorSize

_Key = TypeVar("_Key")

OTHER = "other"
PHASES = (
    "host_to_device",
    "scatter",
    "replicate",
    "parallel_apply",
    "gather",
    "loss_backward",
    "gradient_reduce",
    "optimizer",
    OTHER,
)
_NO_ARGS = CommunicationArgs()
# by NCCL
_OF_MODEL = {PHASES.index("replicate"): "broadcast", PHASES.index("gradient_reduce"): "reduce"}

_NODE = r"autograd::engine::evaluate_function: "
_REDUCES = re.compile(rf"^(?:{_NODE})?(?:BroadcastBackward|ReduceAddCoalesced)$")
_BACKWARD_NODE = re.compile(rf"^{_NODE}")
_COALESCED = re.compile(r"^(?:Broadcast|ReduceAddCoalesced)$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_FROM_HOST = re.compile(r"HtoD|HostToDevice", re.IGNORECASE)
_FORWARD_OPERATOR = re.compile(r"^(?:Scatter|Broadcast|Gather)$")
_FORWARD_RANGES = (phases.SCATTER, phases.REPLICATE, phases.GATHER)


def launch_phases(attribution: Attribution) -> IntColumn:
    """Phase of every device event of a step, an index in PHASES; what has no launch is OTHER. -1
    for all other events.
    """
    events = attribution.events
    phase = np.full(len(events), -1)
    in_steps = attribution.in_steps(*DEVICE_KINDS)
    phase[in_steps] = PHASES.index(OTHER)
    rows = np.flatnonzero(in_steps & (attribution.launch_row >= 0))
    launch = attribution.launch_row[rows]
    from_host = events.named(_FROM_HOST.search)[rows]
    for name, where in _rules(attribution, launch, from_host):
        phase[rows[where]] = PHASES.index(name)  # later rules win
    return phase


def _rules(
    attribution: Attribution, launch: IntColumn, from_host: BoolColumn
) -> list[tuple[str, BoolColumn]]:
    """Phases and the launches that belong to them, from the widest rule to the narrowest."""
    events = attribution.events
    steps_us = np.sort(attribution.steps.start_us)
    times = events.start_us[launch]
    operators = events.operators
    annotations = events.annotations

    def inside(matches: Callable[[str], object], ranges: BoolColumn) -> BoolColumn:
        """In a range of such a name on its own thread."""
        return innermost(events, launch, ranges & events.named(matches)) >= 0

    def during(name: str) -> BoolColumn:
        """In a user range of that name, with or without a replica's index, on any thread."""
        is_named = events.named(lambda event_name: phases.base_name(event_name) == name)
        ranges = events.in_order(np.flatnonzero(annotations & is_named))
        return intervals.index_at(events.start_us[ranges], events.end_us[ranges], times) >= 0

    starts, ends, threads = _forward_calls(attribution)
    updated_us = np.sort(events.end_us[annotations & events.named(_OPTIMIZER.match)])
    forwarded = _ended_in_step(times, steps_us, ends, starts)
    updated = _ended_in_step(times, steps_us, updated_us, updated_us)
    call = intervals.index_at(starts, ends, times)
    # there may be no call at all
    on_caller = (call >= 0) & (events.thread[launch] == np.append(threads, -1)[call])
    return [
        ("loss_backward", forwarded & ~inside(_ZERO_GRAD.match, annotations) & ~updated),
        ("loss_backward", during(phases.FORWARD)),
        ("host_to_device", from_host & (call < 0)),
        ("host_to_device", during(phases.HOST_TO_DEVICE)),
        ("parallel_apply", (call >= 0) & ~on_caller),
        ("replicate", on_caller),
        ("scatter", on_caller & inside("Scatter".__eq__, operators)),
        ("gather", on_caller & inside("Gather".__eq__, operators)),
        ("parallel_apply", during(phases.PARALLEL_APPLY)),
        ("scatter", on_caller & during(phases.SCATTER)),
        ("replicate", on_caller & during(phases.REPLICATE)),
        ("gather", on_caller & during(phases.GATHER)),
        ("loss_backward", inside(_BACKWARD_NODE.match, operators) | during(phases.BACKWARD)),
        ("optimizer", inside(_OPTIMIZER.match, annotations) | during(phases.OPTIMIZER)),
        ("gradient_reduce", inside(_REDUCES.match, operators) | during(phases.GRADIENT_REDUCE)),
    ]


def _ended_in_step(
    times: FloatColumn, steps_us: FloatColumn, ends: FloatColumn, marks: FloatColumn
) -> BoolColumn:
    """Whether a range has ended before each time, and the last one has its mark, such as its start,
    in the same step.
    """
    last = np.searchsorted(ends, times, side="right") - 1
    step = np.searchsorted(steps_us, times, side="right") - 1
    return np.append(marks, np.nan)[last] >= steps_us[np.maximum(step, 0)]


def _forward_calls(attribution: Attribution) -> tuple[FloatColumn, FloatColumn, IntColumn]:
    """Starts, ends and threads of the `DataParallel.forward` ranges, in order.

    Without such ranges, a step's forward is from its first to its last Scatter, Broadcast or Gather
    outside of backward nodes.
    """
    events = attribution.events
    operators = events.operators
    annotations = events.annotations
    forward = (operators | annotations) & events.named("DataParallel.forward".__eq__)
    if forward.any():
        rows = events.in_order(np.flatnonzero(forward))
        return events.start_us[rows], events.end_us[rows], events.thread[rows]
    phase_ranges = annotations & events.named(_FORWARD_RANGES.__contains__)
    forward_operators = operators & events.named(_FORWARD_OPERATOR.match)
    backward_nodes = operators & events.named(_BACKWARD_NODE.match)
    rows = np.flatnonzero(forward_operators | phase_ranges)
    rows = rows[innermost(events, rows, backward_nodes) < 0]
    step = attribution.steps.index_at(events.start_us[rows])
    in_steps = step >= 0
    rows = rows[in_steps]
    steps = Groups.by([step[in_steps]], len(rows), in_order=True)
    starts = steps.least(events.start_us[rows])
    ends = steps.most(events.end_us[rows])
    return starts, ends, events.thread[rows[steps.first]]


COPY_COLUMNS = ("rank", "device", "step", "bytes", "model_bytes", "count")


def peer_copies(attribution: Attribution) -> Table:
    """Copies between devices per (rank, device, step): COPY_COLUMNS.

    `model_bytes` is the part that DataParallel launched in replicating and in reducing gradients:
    not of inputs and outputs.
    """
    events = attribution.events
    rows = np.flatnonzero(attribution.in_steps(Kind.PEER_COPY))
    steps = [attribution.steps.numbers[step] for step in attribution.step[rows]]
    copies = Table.of(rank=attribution.trace.rank, device=events.device[rows], step=steps)
    places = copies.group("device", "step", in_order=True)
    of_model = np.zeros(len(rows), dtype=bool)
    if len(rows) and is_data_parallel(attribution):
        of_model = np.isin(launch_phases(attribution)[rows], list(_OF_MODEL))
    sizes = events.bytes[rows]
    # as whole numbers, which may not fit a float
    every = np.zeros(len(places), dtype=np.int64)
    model = np.zeros(len(places), dtype=np.int64)
    np.add.at(every, places.code, sizes)
    np.add.at(model, places.code, np.where(of_model, sizes, 0))
    return copies.take(places.first).assign(bytes=every, model_bytes=model, count=places.sizes)


COLUMNS = (
    "rank",
    "device",
    "replica",
    "step",
    "phase",
    "time_us",
    "exposed_us",
    "copied_bytes",
    "collective_count",
    "collective_bytes",
)

_DP_NAME = re.compile(
    r"^(?:DataParallel\.forward|dpscope::dp_.*|Broadcast|ReduceAddCoalesced|GatherBackward)$"
)


def dp_phase_table(attribution: Attribution) -> Table:
    """One row per (rank, device, step, phase), COLUMNS; no rows for a trace that is none of
    `nn.DataParallel`.

    Phases: host_to_device, scatter, replicate, parallel_apply, gather, loss_backward,
    gradient_reduce, optimizer, and other for what is none of them. `time_us` is the union of the
    whole events launched in the phase, so a phase may reach into the next step's window.
    `exposed_us` is the phase's communication that nothing hides, inside the step's window and
    disjoint over phases: they add up to the step's `exposed_us`. `copied_bytes` adds up the copies
    recorded on the device; in its time a peer copy counts at both ends. `collective_bytes` is what
    the phase's collectives moved as far as the operators that launched them record, else NA:
    buffers are broadcast outside of any operator.

    dp-host has no device: a row per phase and `replica` for that replica's own ranges, and one
    without a replica for the time in which any of them was in the phase, with `exposed_us`; bytes
    are NA.
    """
    rows = _device_rows(attribution) if attribution.on_device else _host_phase_rows(attribution)
    return Table.from_records(rows, COLUMNS).assign(rank=attribution.trace.rank)


def is_data_parallel(attribution: Attribution) -> bool:
    """Whether one process worked on several devices the way DataParallel does, by the names it
    leaves.
    """
    events = attribution.events
    devices = events.device[attribution.in_steps(*DEVICE_KINDS)]
    if len(np.unique(devices)) < 2:
        return False
    return any(map(_DP_NAME.match, events.names))


def collective_kinds(attribution: Attribution) -> dict[int, str]:
    """Which collective DataParallel's are by the phase they were launched in, by event row: it
    broadcasts and reduces.

    For kernels whose name names no collective, such as RCCL's; DataParallel calls NCCL outside of
    process groups, so that nothing else records which collective it is. Empty for any other trace.
    """
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    if not len(rows) or not attribution.on_device or not is_data_parallel(attribution):
        return {}
    phase = launch_phases(attribution)
    kinds = {}
    for row in rows.tolist():
        if phase[row] in _OF_MODEL:
            kinds[row] = _OF_MODEL[phase[row]]
    return kinds


def _device_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    if not is_data_parallel(attribution):
        return
    events = attribution.events
    windows = attribution.windows
    phase = launch_phases(attribution)
    operators = events.operators & events.named(_COALESCED.match)
    coalesced = innermost(events, attribution.launch_row, operators)
    communicates = attribution.rows(*COMMUNICATION_KINDS)
    computes = attribution.in_steps(Kind.COMPUTE)
    devices = np.unique(events.device[phase >= 0]).tolist()
    compute = {}
    occupied = {}
    for device in devices:
        compute[device] = intervals.of_events(events, computes & (events.device == device))
        occupied[device] = attribution.occupies(device)
    shown = (phase >= 0) & ~windows.is_cut(attribution.step)
    for step, of_step in enumerate(attribution.by_step(shown)):
        window = float(windows.start_us[step]), float(windows.end_us[step])
        for device in devices:
            of_device = of_step[occupied[device][of_step]]
            rows_of = {}
            spans = {}
            for code, name in enumerate(PHASES):
                rows = of_device[phase[of_device] == code]
                rows_of[name] = rows
                spans[name] = intervals.of_events(events, rows[communicates[rows]])
            exposed_us = _exposed_parts(spans, compute[device], *window)
            for name, rows in rows_of.items():
                if not len(rows):
                    continue
                collectives = rows[attribution.kind[rows] == Kind.COLLECTIVE]
                recorded_here = rows[events.device[rows] == device]
                yield {
                    "device": device,
                    "step": attribution.steps.numbers[step],
                    "phase": name,
                    "time_us": intervals.length(intervals.of_events(events, rows)),
                    "exposed_us": exposed_us.get(name),
                    "copied_bytes": _copied_bytes(events, recorded_here),
                    "collective_count": len(collectives),
                    "collective_bytes": _collective_bytes(
                        events, coalesced[collectives], name, len(devices)
                    ),
                }


def _copied_bytes(events: EventTable, rows: IntColumn) -> int | None:
    """Of the copies among these events; None where one has no size."""
    copies = rows[events.category[rows] == Category.MEMCPY]
    sizes = events.bytes[copies]
    if (sizes < 0).any():
        return None
    return int(sizes.sum())


def _collective_bytes(
    events: EventTable, operators: IntColumn, phase: str, devices: int
) -> int | None:
    """Bytes of one device's collectives, from the operators that launched them all; None where some
    have none.
    """
    if not len(operators):
        return 0
    if phase not in ("replicate", "gradient_reduce"):
        return None
    total = 0
    for operator in np.unique(operators).tolist():
        sent, _ = buffer_sizes(events.communication.get(operator, _NO_ARGS))
        if sent is None:
            return None
        total += sent
    # The reduction's inputs are every replica's.
    return total // devices if phase == "gradient_reduce" else total


def phase_means(phases: Table) -> Table:
    """Means over whole steps: a row per (rank, device, replica), a column `{phase}_us` per phase,
    NaN where none.
    """
    wanted = list(PHASES)
    if not phases.words("phase").isin(OTHER).any():
        wanted.remove(OTHER)
    ranks = phases.group("rank")
    step = phases.real("step")
    first = ranks.least(step)[ranks.code]
    last = ranks.most(step)[ranks.code]
    partial = np.where(phases.known("device"), first, last)  # as in `step_table`
    is_whole = (step != partial) & np.isfinite(step)
    whole = phases.take(is_whole)
    used = whole if len(whole) else phases
    steps = len(used.group("step"))
    places = used.group("rank", "device", "replica", in_order=True)
    table = used.take(places.first).select(("rank", "device", "replica"))
    for name in wanted:
        of_phase = used.words("phase").isin(name)
        total_us = places.sums(np.where(of_phase, used["time_us"], 0.0))
        occurs = np.isin(np.arange(len(places)), places.code[of_phase])
        mean_us = np.where(occurs, total_us / steps, np.nan)
        table = table.assign(**{f"{name}_us": mean_us})
    return table


def _exposed_parts(
    spans: Mapping[str, Intervals], compute: Intervals, start: float, end: float
) -> dict[str, float]:
    """Length of each phase's communication inside a window that neither compute nor an earlier
    phase covers; nothing is known where the window is not.
    """
    parts: dict[str, float] = {}
    if not np.isfinite(end):
        return parts
    taken = intervals.clip(compute, start, end)
    for name, communication in spans.items():
        inside = intervals.clip(communication, start, end)
        exposed = intervals.difference(inside, taken)
        parts[name] = intervals.length(exposed)
        taken = intervals.merge(taken, exposed)
    return parts


_NAMES = {
    name: name.removeprefix(phases.PREFIX).removeprefix("dp_")
    for name in (*phases.DP_PHASES, phases.OPTIMIZER, phases.HOST_TO_DEVICE)
}
_BACKWARD = "loss_backward"
_OF_STEP = (phases.FORWARD, phases.BACKWARD)


def _host_phase_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    """Rows of `dp_phases` for a CPU timeline; none without a replica's ranges.

    A replica's loss_backward is its scatter and its work in the backward pass. Without a replica it
    is what forward and backward leave when the other phases are taken out.
    """
    events = attribution.events
    if not any("#" in name and phases.base_name(name) in phases.DP_PHASES for name in events.names):
        return
    compute = cpu_compute(attribution)
    steps = attribution.steps
    shown = events.annotations & ~attribution.windows.is_cut(attribution.step)
    for step, annotations in enumerate(attribution.by_step(shown)):
        common: dict[str, object] = {"step": steps.numbers[step], "collective_count": 0}
        named = list(_named(events, annotations))
        spans_of = _unions(events, (((replica, name), row) for row, name, replica in named))
        passes = [spans_of.pop((-1, name), intervals.EMPTY) for name in _OF_STEP]
        together: dict[str, Intervals] = {}
        for replica, name in sorted(spans_of, key=lambda place: (max(place[0], 0), place[1])):
            spans = spans_of[replica, name]
            before = together.get(name, intervals.EMPTY)
            together[name] = intervals.merge(before, spans)
            if replica >= 0:
                time_us = intervals.length(spans)
                yield common | {"phase": name, "replica": replica, "time_us": time_us}
        others = [spans for name, spans in together.items() if name != _BACKWARD]
        in_passes = intervals.merge(*passes)
        in_others = intervals.merge(*others)
        together[_BACKWARD] = intervals.difference(in_passes, in_others)
        copies = []
        for row, name, _ in named:
            if attribution.kind[row] == Kind.HOST_RANGE:
                copies.append((name, row))
        bounds = float(steps.start_us[step]), float(steps.end_us[step])
        exposed_us = _exposed_parts(_unions(events, copies), compute, *bounds)
        for name, spans in together.items():
            yield common | {
                "phase": name,
                "time_us": intervals.length(spans),
                "exposed_us": exposed_us.get(name, 0.0),
            }


def _unions(events: EventTable, rows: Iterable[tuple[_Key, int]]) -> dict[_Key, Intervals]:
    """The union of the events of each key."""
    unions = {}
    for key, of_key in grouped(rows).items():
        unions[key] = intervals.of_events(events, np.array(of_key))
    return unions


def _named(events: EventTable, annotations: IntColumn) -> Iterator[tuple[int, str, int]]:
    """Those of a step's annotations that are of a phase, with its name and the replica, -1 for
    none: a replica's ranges in backward are loss_backward.
    """
    parts = [events.name_of(row).partition("#") for row in annotations.tolist()]
    bases = [phases.base_name(name) for name, _, _ in parts]
    backward = annotations[[base == phases.BACKWARD for base in bases]]
    for row, base, (_, _, replica) in zip(annotations.tolist(), bases, parts, strict=True):
        if base not in _NAMES and base not in _OF_STEP:
            continue
        start_us = events.start_us[row]
        around = (events.start_us[backward] <= start_us) & (start_us < events.end_us[backward])
        is_replicas = base in (phases.SCATTER, phases.PARALLEL_APPLY)
        name = _BACKWARD if is_replicas and around.any() else _NAMES.get(base, base)
        yield row, name, int(replica) if replica.isdigit() else -1


# torch/nn/parallel/replicate.py and comm.py: the buffer size of the coalesced calls
DP_CHUNK_BYTES = 10 << 20


def broadcast_chunks(tensors: Sequence[TensorSize]) -> list[int]:
    """Bytes of each chunk in which DataParallel broadcasts these tensors.

    Source: torch/csrc/utils/tensor_flatten.cpp, `take_tensors`: per dtype, a tensor is added first
    and the chunk closes once it holds the limit or more, so a chunk may exceed it.
    """
    open_bytes: dict[str, int] = defaultdict(int)
    chunks = []
    for tensor in tensors:
        open_bytes[tensor.dtype] += tensor.bytes
        if open_bytes[tensor.dtype] >= DP_CHUNK_BYTES:
            chunks.append(open_bytes.pop(tensor.dtype))
    return chunks + [size for size in open_bytes.values() if size > 0]


def reduce_chunks(tensors: Sequence[TensorSize]) -> list[int]:
    """Bytes of each chunk in which DataParallel reduces the gradients of these parameters.

    Source: torch/_utils.py, `_take_tensors`: per dtype, a chunk closes before a tensor that would
    make it exceed the limit.
    """
    open_bytes: dict[str, int] = defaultdict(int)
    chunks = []
    for tensor in tensors:
        if open_bytes[tensor.dtype] and open_bytes[tensor.dtype] + tensor.bytes > DP_CHUNK_BYTES:
            chunks.append(open_bytes.pop(tensor.dtype))
        open_bytes[tensor.dtype] += tensor.bytes
    return chunks + [size for size in open_bytes.values() if size > 0]


def dp_chunks(sizes: ParameterSizes) -> tuple[list[int], list[int]]:
    """Bytes of the chunks that DataParallel broadcasts in a forward pass and reduces in a backward
    pass.
    """
    sent = broadcast_chunks(sizes.parameter_tensors) + broadcast_chunks(sizes.buffer_tensors)
    return sent, reduce_chunks(sizes.parameter_tensors)
