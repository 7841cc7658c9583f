"""A step of `nn.DataParallel` by its phases: what each costs on each device, in time and bytes.

From dpscope's named ranges where a trace has them; else from the names of operators and autograd
nodes and from the threads that launch: DataParallel scatters, replicates and gathers on the thread
that called it, runs each replica on a thread of its own, and reduces gradients in the backward node
of its broadcast. Source: torch/nn/parallel/data_parallel.py.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    EventTable,
    FloatColumn,
    IntColumn,
)
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.reading.tensor_sizes import buffer_sizes
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import cpu_compute
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, DEVICE_KINDS, Kind
from dpscope.analysis.traces.steps.intervals import Intervals, innermost
from dpscope.profiling.records import range_names as phases
from dpscope.profiling.records.run import ParameterSizes, TensorSize

OTHER = "other"
PHASES = (
    "host_to_device", "scatter", "replicate", "parallel_apply", "gather", "loss_backward", "gradient_reduce", "optimizer",
    OTHER,
)  # fmt: skip
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


def launch_phases(attribution: Attribution) -> IntColumn:
    """Phase of every device event of a step, an index in PHASES; what has no launch is OTHER. -1
    for all other events.
    """
    phase, from_host = (
        np.full(len(attribution.events), -1),
        attribution.events.named(_FROM_HOST.search),
    )
    rows = np.flatnonzero(attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0))
    phase[rows] = PHASES.index(OTHER)
    rows = rows[attribution.launch_row[rows] >= 0]
    for name, where in _rules(attribution, attribution.launch_row[rows], from_host[rows]):
        phase[rows[where]] = PHASES.index(name)  # later rules win
    return phase


def _rules(
    attribution: Attribution, launch: IntColumn, from_host: BoolColumn
) -> list[tuple[str, BoolColumn]]:
    """Phases and the launches that belong to them, from the widest rule to the narrowest."""
    events, steps_us = attribution.events, np.sort(attribution.steps.start_us)
    times = events.start_us[launch]
    operators, annotations = (
        events.is_category(Category.CPU_OP),
        events.is_category(Category.USER_ANNOTATION),
    )

    def inside(matches: Callable[[str], object], ranges: BoolColumn) -> BoolColumn:
        """In a range of such a name on its own thread."""
        return innermost(events, launch, ranges & events.named(matches)) >= 0

    def during(name: str) -> BoolColumn:
        """In a user range of that name, with or without a replica's index, on any thread."""
        ranges = np.flatnonzero(
            annotations & events.named(lambda event_name: phases.base_name(event_name) == name)
        )
        ranges = ranges[np.argsort(events.start_us[ranges], kind="stable")]
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
    operators, annotations = (
        events.is_category(Category.CPU_OP),
        events.is_category(Category.USER_ANNOTATION),
    )
    rows = np.flatnonzero((operators | annotations) & events.named("DataParallel.forward".__eq__))
    if len(rows):
        rows = rows[np.argsort(events.start_us[rows], kind="stable")]
        return events.start_us[rows], events.end_us[rows], events.thread[rows]
    own_ranges = annotations & events.named(
        (phases.SCATTER, phases.REPLICATE, phases.GATHER).__contains__
    )
    rows = np.flatnonzero((operators & events.named(_FORWARD_OPERATOR.match)) | own_ranges)
    rows = rows[innermost(events, rows, operators & events.named(_BACKWARD_NODE.match)) < 0]
    of_step = attribution.steps.index_at(events.start_us[rows])
    calls = [rows[of_step == step] for step in np.unique(of_step[of_step >= 0])]
    starts = np.array([events.start_us[own].min() for own in calls])
    ends = np.array([events.end_us[own].max() for own in calls])
    return starts, ends, np.array([events.thread[own[0]] for own in calls], dtype=np.int64)


COPY_COLUMNS = ("rank", "device", "step", "bytes", "model_bytes", "count")


def peer_copies(attribution: Attribution) -> Table:
    """Copies between devices per (rank, device, step): COPY_COLUMNS.

    `model_bytes` is the part that DataParallel launched in replicating and in reducing gradients:
    not of inputs and outputs.
    """
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.PEER_COPY) & (attribution.step >= 0))
    steps = [attribution.steps.numbers[step] for step in attribution.step[rows]]
    copies = Table.of(rank=attribution.trace.rank, device=events.device[rows], step=steps)
    places = copies.group("device", "step", in_order=True)
    of_model = np.zeros(len(rows), dtype=bool)
    if len(rows) and is_data_parallel(attribution):
        of_model = np.isin(launch_phases(attribution)[rows], list(_OF_MODEL))
    totals = np.zeros((2, len(places)), dtype=np.int64)
    np.add.at(totals[0], places.code, events.bytes[rows])
    np.add.at(totals[1], places.code, np.where(of_model, events.bytes[rows], 0))
    return copies.take(places.first).assign(
        bytes=totals[0], model_bytes=totals[1], count=places.sizes
    )


COLUMNS = (
    "rank", "device", "replica", "step", "phase", "time_us", "exposed_us", "copied_bytes", "collective_count", "collective_bytes",
)  # fmt: skip

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
    device = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    if len(np.unique(events.device[device])) < 2:
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
    codes = launch_phases(attribution)[rows].tolist()
    return {
        row: _OF_MODEL[code]
        for row, code in zip(rows.tolist(), codes, strict=True)
        if code in _OF_MODEL
    }


def _device_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    if not is_data_parallel(attribution):
        return
    events, windows, phase = attribution.events, attribution.windows, launch_phases(attribution)
    operators = events.is_category(Category.CPU_OP) & events.named(_COALESCED.match)
    coalesced = innermost(events, attribution.launch_row, operators)
    communicates, computes = (
        attribution.rows(*COMMUNICATION_KINDS),
        (phase >= 0) & attribution.rows(Kind.COMPUTE),
    )
    devices = np.unique(events.device[phase >= 0]).tolist()
    compute = {
        device: intervals.of_events(events, computes & (events.device == device))
        for device in devices
    }
    occupied = {device: attribution.occupies(device) for device in devices}
    for step, rows in enumerate(
        attribution.by_step((phase >= 0) & ~windows.is_cut(attribution.step))
    ):
        start_us, end_us = float(windows.start_us[step]), float(windows.end_us[step])
        for device in devices:
            own = rows[occupied[device][rows]]
            of_phase = {name: own[phase[own] == code] for code, name in enumerate(PHASES)}
            exposed_us: dict[str, float] = {}
            if np.isfinite(end_us):  # else exposed time is unknown
                spans = {
                    name: intervals.of_events(events, some[communicates[some]])
                    for name, some in of_phase.items()
                }
                exposed_us = _exposed_parts(spans, compute[device], start_us, end_us)
            for name, some in of_phase.items():
                if len(some):
                    yield {
                        "device": device,
                        "step": attribution.steps.numbers[step],
                        "phase": name,
                        "time_us": intervals.length(intervals.of_events(events, some)),
                        "exposed_us": exposed_us.get(name),
                        **_traffic(attribution, device, some),
                        "collective_bytes": _collective_bytes(
                            events,
                            coalesced[some[attribution.kind[some] == Kind.COLLECTIVE]],
                            name,
                            len(devices),
                        ),
                    }


def _traffic(attribution: Attribution, device: int, rows: IntColumn) -> dict[str, object]:
    """What of these events is recorded on the device: bytes copied, None where a copy has no size,
    and collectives.
    """
    events = attribution.events
    recorded = rows[events.device[rows] == device]
    copied = events.bytes[recorded[events.category[recorded] == Category.MEMCPY]]
    return {
        "copied_bytes": int(copied.sum()) if (copied >= 0).all() else None,
        "collective_count": int((attribution.kind[rows] == Kind.COLLECTIVE).sum()),
    }


def _collective_bytes(
    events: EventTable, operators: IntColumn, phase: str, devices: int
) -> int | None:
    """Bytes of one device's collectives, from the operators that launched them all; None where some
    have none.
    """
    if not len(operators):
        return 0
    if phase not in ("replicate", "gradient_reduce") or (operators < 0).any():
        return None
    known = [events.communication.get(operator) for operator in np.unique(operators).tolist()]
    sizes = [buffer_sizes(args)[0] if args is not None else None for args in known]
    total = sum(size or 0 for size in sizes)
    # The reduction's inputs are every replica's.
    return None if None in sizes else total // devices if phase == "gradient_reduce" else total


def phase_means(phases: Table) -> Table:
    """Means over whole steps: a row per (rank, device, replica), a column `{phase}_us` per phase,
    NaN where none.
    """
    wanted = [name for name in PHASES if name != OTHER or phases.words("phase").isin(OTHER).any()]
    of_rank, step = phases.group("rank"), phases.real("step")
    partial = np.where(
        phases.known("device"), of_rank.least(step)[of_rank.code], of_rank.most(step)[of_rank.code]
    )
    whole = (step != partial) & np.isfinite(step)  # as in `step_table`
    used = phases.take(whole) if whole.any() else phases
    places = used.group("rank", "device", "replica", in_order=True)
    table = used.take(places.first).select(("rank", "device", "replica"))
    for name in wanted:
        own = used.words("phase").isin(name)
        means_us = places.sums(np.where(own, used["time_us"], 0.0)) / max(
            len(used.group("step")), 1
        )
        table = table.assign(
            **{
                f"{name}_us": np.where(
                    np.isin(range(len(places)), places.code[own]), means_us, np.nan
                )
            }
        )
    return table


def _exposed_parts(
    spans: Mapping[str, Intervals], compute: Intervals, start: float, end: float
) -> dict[str, float]:
    """Length of each phase's communication inside a window that neither compute nor an earlier
    phase covers.
    """
    taken = intervals.clip(compute, start, end)
    parts = {}
    for name, own in spans.items():
        exposed = intervals.difference(intervals.clip(own, start, end), taken)
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
    in_shown_steps = ~attribution.windows.is_cut(attribution.step)
    annotations_of_step = attribution.by_step(
        events.is_category(Category.USER_ANNOTATION) & in_shown_steps
    )
    for step, annotations in enumerate(annotations_of_step):
        by_place, copied = _host_ranges(attribution, annotations)
        passes = intervals.merge(*(by_place.pop((name, -1), intervals.EMPTY) for name in _OF_STEP))
        together: dict[str, Intervals] = {}
        common: dict[str, object] = {"step": attribution.steps.numbers[step], "collective_count": 0}
        for (name, replica), spans in sorted(
            by_place.items(), key=lambda item: (max(item[0][1], 0), item[0][0])
        ):
            together[name] = intervals.merge(together.get(name, intervals.EMPTY), spans)
            if replica >= 0:
                yield common | {
                    "phase": name,
                    "replica": replica,
                    "time_us": intervals.length(spans),
                }
        taken = intervals.merge(*(spans for name, spans in together.items() if name != _BACKWARD))
        together[_BACKWARD] = intervals.difference(passes, taken)
        bounds = float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])
        exposed_us = _exposed_parts(copied, compute, *bounds)
        for name, spans in together.items():
            exposed = exposed_us.get(name, 0.0)
            yield common | {
                "phase": name,
                "time_us": intervals.length(spans),
                "exposed_us": exposed,
            }


def _host_ranges(
    attribution: Attribution, annotations: IntColumn
) -> tuple[dict[tuple[str, int], Intervals], dict[str, Intervals]]:
    """A step's ranges by phase and replica, -1 for none, and those that copy by phase."""
    events = attribution.events
    rows_of: dict[tuple[str, int], list[int]] = defaultdict(list)
    copies_of: dict[str, list[int]] = defaultdict(list)
    for row, name in _named(events, annotations):
        replica = events.names[events.name[row]].partition("#")[2]
        rows_of[name, int(replica) if replica.isdigit() else -1].append(row)
        if attribution.kind[row] == Kind.HOST_RANGE:
            copies_of[name].append(row)
    by_place = {
        place: intervals.of_events(events, np.array(rows)) for place, rows in rows_of.items()
    }
    return by_place, {
        name: intervals.of_events(events, np.array(rows)) for name, rows in copies_of.items()
    }


def _named(events: EventTable, annotations: IntColumn) -> Iterator[tuple[int, str]]:
    """Those of a step's annotations that are of a phase, with its name: a replica's ranges in
    backward are loss_backward.
    """
    bases = [phases.base_name(events.names[code]) for code in events.name[annotations].tolist()]
    starts, ends = events.start_us[annotations], events.end_us[annotations]
    backward = np.array([base == phases.BACKWARD for base in bases], dtype=bool)
    for row, base, start in zip(annotations.tolist(), bases, starts.tolist(), strict=True):
        if base not in _NAMES and base not in _OF_STEP:
            continue
        in_backward = ((starts[backward] <= start) & (start < ends[backward])).any()
        is_replicas = base in (phases.SCATTER, phases.PARALLEL_APPLY)
        yield row, _BACKWARD if is_replicas and in_backward else _NAMES.get(base, base)


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
