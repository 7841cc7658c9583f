"""A step of `nn.DataParallel` by its phases: what each costs on each device, in time and bytes.

From dpscope's named ranges where a trace has them; else from the names of operators and autograd nodes and from the threads
that launch: DataParallel scatters, replicates and gathers on the thread that called it, runs each replica on a thread of
its own, and reduces gradients in the backward node of its broadcast. Source: torch/nn/parallel/data_parallel.py.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dpscope.analysis.traces.data_parallel.launches import OTHER, PHASES, LaunchPhases, launch_phases
from dpscope.analysis.traces.reading.event_table import Category, EventTable, IntColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.reading.tensor_sizes import element_bytes
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import cpu_compute
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, DEVICE_KINDS, Kind
from dpscope.analysis.traces.steps.intervals import Intervals
from dpscope.profiling.records import range_names as phases
from dpscope.profiling.records.run import TensorSize


def peer_copies(attribution: Attribution) -> Table:
    """Copies between devices per (rank, device, step): columns rank, device, step, bytes, model_bytes, count.

    `model_bytes` is the part that DataParallel launched in replicating and in reducing gradients: not of inputs and outputs.
    """
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.PEER_COPY) & (attribution.step >= 0))
    copies = Table.of(
        rank=np.zeros(len(rows), dtype=np.int64),
        device=events.device[rows],
        step=[attribution.steps.numbers[step] for step in attribution.step[rows]],
    )
    places = copies.group("device", "step", in_order=True)
    sizes, of_model = events.bytes[rows], np.zeros(len(rows), dtype=bool)
    if len(rows) and is_data_parallel(attribution):
        moving = [PHASES.index(name) for name in ("replicate", "gradient_reduce")]
        of_model = np.isin(launch_phases(attribution).phase[rows], moving)
    totals = np.zeros((2, len(places)), dtype=np.int64)
    np.add.at(totals[0], places.code, sizes)
    np.add.at(totals[1], places.code, np.where(of_model, sizes, 0))
    return copies.take(places.first).assign(
        rank=attribution.trace.rank, bytes=totals[0], model_bytes=totals[1], count=places.sizes
    )


COLUMNS = (
    "rank", "device", "replica", "step", "phase", "time_us", "exposed_us", "copied_bytes", "collective_count", "collective_bytes",
)  # fmt: skip

_DP_NAME = re.compile(r"^(?:DataParallel\.forward|dpscope::dp_.*|Broadcast|ReduceAddCoalesced|GatherBackward)$")


def dp_phase_table(attribution: Attribution) -> Table:
    """One row per (rank, device, step, phase), COLUMNS; no rows for a trace that is none of `nn.DataParallel`.

    Phases: host_to_device, scatter, replicate, parallel_apply, gather, loss_backward, gradient_reduce, optimizer, and
    other for what is none of them. `time_us` is the union of the whole events launched in the phase, so a phase may
    reach into the next step's window. `exposed_us` is the phase's communication that nothing hides, inside the step's window
    and disjoint over phases: they add up to the step's `exposed_us`. `copied_bytes` adds up the copies recorded on the
    device (a peer copy is recorded at its source). `collective_bytes` is what the phase's collectives moved as far as the
    operators that launched them record, else NA: buffers are broadcast outside of any operator.

    dp-host has no device: a row per phase and `replica` for that replica's own ranges, and one without a replica for the
    time in which any of them was in the phase, with `exposed_us`; bytes are NA.
    """
    rows = _device_rows(attribution) if attribution.on_device else _host_phase_rows(attribution)
    return Table.from_records(rows, COLUMNS).assign(rank=attribution.trace.rank)


def is_data_parallel(attribution: Attribution) -> bool:
    """Whether one process worked on several devices the way DataParallel does, by the names it leaves."""
    events = attribution.events
    device = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    if len(np.unique(events.device[device])) < 2:
        return False
    return any(_DP_NAME.match(name) for name in events.names)


def collective_kinds(attribution: Attribution) -> dict[int, str]:
    """Which collective DataParallel's are by the phase they were launched in, by event row: it broadcasts and reduces.

    For kernels whose name names no collective, such as RCCL's; DataParallel calls NCCL outside of process groups, so that nothing
    else records which collective it is. Empty for any other trace.
    """
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    if not len(rows) or not attribution.on_device or not is_data_parallel(attribution):
        return {}
    kinds = {PHASES.index("replicate"): "broadcast", PHASES.index("gradient_reduce"): "reduce"}
    codes = launch_phases(attribution).phase[rows].tolist()
    return {row: kinds[code] for row, code in zip(rows.tolist(), codes, strict=True) if code in kinds}


def _device_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    if not is_data_parallel(attribution):
        return
    events = attribution.events
    launches = launch_phases(attribution)
    own = np.flatnonzero(launches.phase >= 0)
    exposed_us = _device_exposed_us(attribution, launches.phase)
    keys = np.stack((attribution.step[own], events.device[own], launches.phase[own]), axis=1)
    places, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    rows_of_place = np.split(own[np.argsort(inverse.ravel(), kind="stable")], np.cumsum(counts)[:-1])
    devices = len(np.unique(events.device[own]))
    for (step, device, phase), rows in zip(places.tolist(), rows_of_place, strict=True):
        copies = rows[events.category[rows] == Category.MEMCPY]
        collectives = rows[attribution.kind[rows] == Kind.COLLECTIVE]
        name = PHASES[phase]
        yield {
            "device": device,
            "step": attribution.steps.numbers[step],
            "phase": name,
            "time_us": intervals.length(intervals.of_events(events, rows)),
            "exposed_us": exposed_us.get((step, device, name)),  # unknown of a step without a window
            "copied_bytes": int(events.bytes[copies].sum()) if (events.bytes[copies] >= 0).all() else None,
            "collective_count": len(collectives),
            "collective_bytes": _collective_bytes(attribution, launches, collectives, name, devices),
        }


def _collective_bytes(
    attribution: Attribution, launches: LaunchPhases, collectives: "np.ndarray", phase: str, devices: int
) -> int | None:
    """Bytes of one device's collectives, from the operators that launched them all; None where some have none."""
    if not len(collectives):
        return 0
    operators = np.unique(launches.coalesced[collectives])
    if phase not in ("replicate", "gradient_reduce") or (operators < 0).any():
        return None
    total = 0
    for operator in operators.tolist():
        args = attribution.events.communication.get(operator)
        size = element_bytes(args.dtype) if args is not None else None
        if args is None or (args.input_bytes is None and (args.input_elements is None or size is None)):
            return None
        total += args.input_bytes if args.input_bytes is not None else (args.input_elements or 0) * (size or 0)
    return total // devices if phase == "gradient_reduce" else total  # the reduction's inputs are every replica's


def phase_means(phases: Table) -> Table:
    """Means over whole steps: a row per (rank, device, replica), a column `{phase}_us` per phase, NaN where none."""
    wanted = [name for name in PHASES if name != OTHER or phases.words("phase").isin(OTHER).any()]
    of_rank, step = phases.group("rank"), phases.real("step")
    first, last = (found[of_rank.code] for found in (of_rank.least(step), of_rank.most(step)))
    partial = np.where(phases.known("device"), first, last)  # as in `step_table`
    whole = (step != partial) & np.isfinite(step)
    used = phases.take(whole) if whole.any() else phases
    steps = len(used.group("step"))
    places = used.group("rank", "device", "replica", in_order=True)
    table = used.take(places.first).select(("rank", "device", "replica"))
    for name in wanted:
        own = used.words("phase").isin(name)
        seen = np.bincount(places.code, weights=own, minlength=len(places)) > 0
        sums = places.sums(np.where(own, used["time_us"], 0.0))
        table = table.assign(**{f"{name}_us": np.where(seen, sums / max(steps, 1), np.nan)})
    return table


def _exposed_parts(spans: Mapping[str, Intervals], compute: Intervals, start: float, end: float) -> dict[str, float]:
    """Length of each phase's communication inside a window that neither compute nor an earlier phase covers."""
    taken = intervals.clip(compute, start, end)
    parts = {}
    for name, own in spans.items():
        exposed = intervals.difference(intervals.clip(own, start, end), taken)
        parts[name] = intervals.length(exposed)
        taken = intervals.merge(taken, exposed)
    return parts


def _device_exposed_us(attribution: Attribution, phase: IntColumn) -> dict[tuple[int, int, str], float]:
    """Exposed microseconds by step's index, device and phase; `phase` holds an index into PHASES per event, -1 for none."""
    events, windows = attribution.events, attribution.windows
    launched = phase >= 0
    found: dict[tuple[int, int, str], float] = {}
    for device in np.unique(events.device[launched]).tolist():
        own = launched & (events.device == device)
        compute = intervals.of_events(events, own & attribution.rows(Kind.COMPUTE))
        own_of_step = attribution.by_step(own & attribution.rows(*COMMUNICATION_KINDS))
        for step in np.flatnonzero(np.isfinite(windows.end_us)).tolist():
            rows = own_of_step[step]
            spans = {name: intervals.of_events(events, rows[phase[rows] == code]) for code, name in enumerate(PHASES)}
            parts = _exposed_parts(spans, compute, float(windows.start_us[step]), float(windows.end_us[step]))
            found |= {(step, device, name): length_us for name, length_us in parts.items()}
    return found


_NAMES = {
    phases.SCATTER: "scatter",
    phases.REPLICATE: "replicate",
    phases.PARALLEL_APPLY: "parallel_apply",
    phases.GATHER: "gather",
    phases.GRADIENT_REDUCE: "gradient_reduce",
    phases.OPTIMIZER: "optimizer",
    phases.HOST_TO_DEVICE: "host_to_device",
}
_BACKWARD = "loss_backward"
_OF_STEP = (phases.FORWARD, phases.BACKWARD)


def _host_phase_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    """Rows of `dp_phases` for a CPU timeline; none without a replica's ranges.

    A replica's loss_backward is its scatter and its work in the backward pass. Without a replica it is what forward and
    backward leave when the other phases are taken out.
    """
    events = attribution.events
    if not any("#" in name and phases.base_name(name) in phases.DP_PHASES for name in events.names):
        return
    compute = cpu_compute(attribution)
    annotations_of_step = attribution.by_step(events.is_category(Category.USER_ANNOTATION))
    for step, annotations in enumerate(annotations_of_step):
        rows_of: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        copies_of: dict[str, list[int]] = defaultdict(list)
        for row, name in _named(events, annotations):
            replica = events.names[events.name[row]].partition("#")[2]
            rows_of[name, int(replica) if replica.isdigit() else None].append(row)
            if attribution.kind[row] == Kind.HOST_RANGE:
                copies_of[name].append(row)
        by_place = {place: intervals.of_events(events, np.array(rows)) for place, rows in rows_of.items()}
        passes = intervals.merge(*(by_place.pop((name, None), intervals.EMPTY) for name in _OF_STEP))
        together: dict[str, Intervals] = {}
        common: dict[str, object] = {"step": attribution.steps.numbers[step], "collective_count": 0}
        for (name, index), spans in sorted(by_place.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
            together[name] = intervals.merge(together.get(name, intervals.EMPTY), spans)
            if index is not None:
                yield common | {"phase": name, "replica": index, "time_us": intervals.length(spans)}
        taken = intervals.merge(*(spans for name, spans in together.items() if name != _BACKWARD))
        together[_BACKWARD] = intervals.difference(passes, taken)
        copied = {name: intervals.of_events(events, np.array(rows)) for name, rows in copies_of.items()}
        bounds = float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])
        exposed_us = _exposed_parts(copied, compute, *bounds)
        for name, spans in together.items():
            exposed = exposed_us.get(name, 0.0)
            yield common | {"phase": name, "time_us": intervals.length(spans), "exposed_us": exposed}


def _named(events: EventTable, annotations: IntColumn) -> Iterator[tuple[int, str]]:
    """Those of a step's annotations that are of a phase, with its name: a replica's ranges in backward are loss_backward."""
    bases = [phases.base_name(events.names[code]) for code in events.name[annotations].tolist()]
    starts, ends = events.start_us[annotations], events.end_us[annotations]
    backward = np.array([base == phases.BACKWARD for base in bases], dtype=bool)
    for row, base, start in zip(annotations.tolist(), bases, starts.tolist(), strict=True):
        if base not in _NAMES and base not in _OF_STEP:
            continue
        in_backward = ((starts[backward] <= start) & (start < ends[backward])).any()
        is_replicas = base in (phases.SCATTER, phases.PARALLEL_APPLY)
        yield row, _BACKWARD if is_replicas and in_backward else _NAMES.get(base, base)


DP_CHUNK_BYTES = 10 << 20  # torch/nn/parallel/replicate.py and comm.py: the buffer size of the coalesced calls


def broadcast_chunks(tensors: Sequence[TensorSize]) -> list[int]:
    """Bytes of each chunk in which DataParallel broadcasts these tensors.

    Source: torch/csrc/utils/tensor_flatten.cpp, `take_tensors`: per dtype, a tensor is added first and the chunk closes once
    it holds the limit or more, so a chunk may exceed it.
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

    Source: torch/_utils.py, `_take_tensors`: per dtype, a chunk closes before a tensor that would make it exceed the limit.
    """
    open_bytes: dict[str, int] = defaultdict(int)
    chunks = []
    for tensor in tensors:
        if open_bytes[tensor.dtype] and open_bytes[tensor.dtype] + tensor.bytes > DP_CHUNK_BYTES:
            chunks.append(open_bytes.pop(tensor.dtype))
        open_bytes[tensor.dtype] += tensor.bytes
    return chunks + [size for size in open_bytes.values() if size > 0]
