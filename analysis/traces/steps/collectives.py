"""One row per collective per rank: kind, group, size, time, when it was ready, what stood still
meanwhile.

Matching across ranks is `ranks/matching`'s.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    CommunicationArgs,
    EventTable,
    FloatColumn,
    IntColumn,
    ProcessGroup,
)
from dpscope.analysis.traces.reading.table import UNKNOWN, Groups, Table
from dpscope.analysis.traces.reading.tensor_sizes import buffer_bytes, group_size
from dpscope.analysis.traces.steps import gloo, intervals
from dpscope.analysis.traces.steps.attribution import NO_STEP, Attribution
from dpscope.analysis.traces.steps.event_kind import (
    Kind,
    collective_kind,
    named_annotations,
    nccl_calls,
    nccl_ranges,
)
from dpscope.analysis.traces.steps.intervals import innermost
from dpscope.profiling.records import range_names as phases

# torch's names for the two dimensions of dpscope's mesh
SHARD, REPLICATE = "mesh_shard", "mesh_replicate"

_SHARDING = ("all_gather", "reduce_scatter")


class NamedCollective(NamedTuple):
    """The arguments of a collective, and which it is."""

    args: CommunicationArgs
    kind: str | None

    @property
    def size(self) -> int | None:
        """Ranks of its group, as far as its own arguments show it."""
        return group_size(self.args, self.kind)


def in_mesh(
    named: Sequence[NamedCollective], groups: Sequence[ProcessGroup]
) -> list[NamedCollective]:
    """The same, all-gathers and reduce-scatters in the group that shards, and all-reduces of a
    rank's shards between groups.

    Only where the process is in one group of each and in none besides but that of all ranks, and no
    collective names a group. Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: HSDP
    all-reduces what a reduce-scatter leaves to a rank.
    """
    described = {group.description: group for group in groups}
    is_mesh = len(groups) == 3 and described.keys() >= {SHARD, REPLICATE}
    if not is_mesh or any(collective.args.group is not None for collective in named):
        return list(named)
    within, between = described[SHARD], described[REPLICATE]
    of_shards = [collective for collective in named if _is_of_shards(collective, within)]
    reduced = [collective.args for collective in of_shards if collective.kind == "reduce_scatter"]
    elements = set(map(_shard_elements, reduced))
    in_groups = []
    for collective in named:
        group = None
        if _is_of_shards(collective, within):
            group = within
        elif collective.kind == "all_reduce" and collective.args.input_elements in elements:
            group = between
        in_groups.append(collective if group is None else _in_group(collective, group))
    return in_groups


def _is_of_shards(collective: NamedCollective, group: ProcessGroup) -> bool:
    return collective.kind in _SHARDING and collective.size == len(group.ranks)


def _shard_elements(args: CommunicationArgs) -> int:
    """What a reduce-scatter leaves to a rank."""
    return min(args.input_elements or 0, args.output_elements or 0)


def _in_group(collective: NamedCollective, group: ProcessGroup) -> NamedCollective:
    ranks = list(group.ranks)
    args = replace(collective.args, group=group.name, group_ranks=str(ranks), group_size=len(ranks))
    return collective._replace(args=args)


COLUMNS = (
    "rank",
    "device",
    "step",
    "kind",
    "moved_as",
    "group",
    "group_ranks",
    "sequence",
    "order",
    "bytes",
    "group_size",
    "start_us",
    "duration_us",
    "queue_us",
    "ready_us",
    "concurrent",
    "compute_done",
    "compute_stream",
    "compiled_share",
    "held_us",
)

_NO_ARGS = CommunicationArgs()
_NO_SIZES: dict[str, None] = dict.fromkeys(
    ("input_elements", "output_elements", "input_bytes", "output_bytes")
)
_RECORD = re.compile(r"record_param_comms$")
_OPERATOR = re.compile(r"_?c10d(?:_functional)?::")


def collective_table(
    attribution: Attribution, kind_of_row: Mapping[int, str] = MappingProxyType({})
) -> Table:
    """One row per collective of one rank, COLUMNS, in order of launch (gloo: of creation).

    `kind` is the collective that was called, `moved_as` the one that moved the data: gloo carries
    out a reduce-scatter as an all-reduce. `bytes` is the larger of the rank's input and output
    buffer, `order` counts the collectives of a group (a pair of ranks matches by it where no
    sequence number is recorded), `start_us` counts from the trace's start, `queue_us` is the time a
    work of gloo's waited for a worker thread, `ready_us` when its data were ready, `compute_done`
    which share of its step's computing was done then, `compiled_share` which share of it the
    compiled graph did that its data came out of, `compute_stream` whether its stream is one that
    computes, `held_us` how long computing that was launched stood still during it, `concurrent` how
    many others of the rank were in flight on its device at the same time (a link that they share
    gives each a part). Unknown is NA. `step` is NA for a collective that no traced step launched.
    `kind_of_row` is the kind of event rows whose kind neither a record nor a name shows, as RCCL's
    kernels in DataParallel.
    """
    events = attribution.events
    on_device = attribution.on_device
    trace = attribution.trace
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    requested_us = attribution.requested_us[rows]
    when_us = np.where(np.isfinite(requested_us), requested_us, events.start_us[rows])
    rows = rows[np.argsort(when_us, kind="stable")]
    named = list(_named(attribution, rows, kind_of_row))
    if not on_device:
        named = in_mesh(named, trace.process_groups)
    kinds = [collective.kind for collective in named]
    ranks = _group_sizes(named, trace.world_size)
    numbers = (*attribution.steps.numbers, None)  # NO_STEP is the last
    ready = _ready_us(attribution, rows)
    done, compiled = _compute_shares(attribution, rows, ready)
    table = Table.of(
        rank=trace.rank,
        device=np.where((events.device[rows] >= 0) & on_device, events.device[rows], UNKNOWN),
        step=[numbers[step] for step in attribution.step[rows].tolist()],
        kind=kinds,
        moved_as=kinds if on_device else _moved_as(events, rows, kinds),
        group=[collective.args.group for collective in named],
        group_ranks=[collective.args.group_ranks for collective in named],
        sequence=[collective.args.sequence for collective in named],
        bytes=[
            buffer_bytes(collective.args, collective.kind, size)
            for collective, size in zip(named, ranks, strict=True)
        ],
        group_size=ranks,
        start_us=events.start_us[rows],
        duration_us=events.duration_us[rows],
        queue_us=None if on_device else gloo.queue_us(events, rows),
        ready_us=ready,
        concurrent=_concurrent(attribution, rows),
        compute_done=done,
        compute_stream=_on_compute_stream(attribution, rows),
        compiled_share=compiled,
        held_us=_held_us(attribution, rows, kinds),
    )
    return table.assign(order=table.group("group", "group_ranks").places).select(COLUMNS)


def _group_sizes(named: Sequence[NamedCollective], world_size: int | None) -> list[int | None]:
    """Ranks of each one's group: where nothing shows it, those of the job, unless the trace shows
    another size.
    """
    sizes = [collective.size for collective in named]
    shows_another = bool(set(sizes) - {None, 1, world_size})
    return sizes if shows_another else [size or world_size for size in sizes]


def _moved_as(events: EventTable, rows: IntColumn, kinds: Sequence[str | None]) -> list[str | None]:
    """What gloo's ranges say that they carry out."""
    performed = [collective_kind(events.names[code]) for code in events.name[rows].tolist()]
    return [moved or kind for moved, kind in zip(performed, kinds, strict=True)]


def _named(
    attribution: Attribution, rows: IntColumn, kind_of_row: Mapping[int, str]
) -> Iterator[NamedCollective]:
    """What each collective's own arguments, and those of what launched it, say of it; and which
    collective it is.

    Each argument is the first that is known; the kind is that of the first name that has one:
    metadata, operators and ranges before the kernel's own name.
    """
    events = attribution.events
    sources = _launched_in(attribution, rows)
    shared = [_shared(events, source, rows) for source in sources]
    for index, row in enumerate(rows.tolist()):
        recorded = [events.communication.get(row, _NO_ARGS)]
        names = []
        for source, is_shared in zip(sources, shared, strict=True):
            launcher = int(source[index])
            if launcher < 0:
                continue
            args = events.communication.get(launcher, _NO_ARGS)
            recorded.append(replace(args, **_NO_SIZES) if is_shared[index] else args)
            names.append(events.name_of(launcher))
        args = _first_known(recorded)
        names = [args.collective_name or "", *names, events.name_of(row)]
        kinds = filter(None, map(collective_kind, names))
        yield NamedCollective(args, next(kinds, kind_of_row.get(row)))


def _launched_in(attribution: Attribution, rows: IntColumn) -> list[IntColumn]:
    """What each was launched in: `record_param_comms`, the `c10d` operator, the `nccl:` range,
    NCCL's own; -1 for none.
    """
    events = attribution.events
    if not attribution.on_device:  # only the operator is known
        return [gloo.creators(events, rows)]
    candidates = (
        events.operators & events.named(_RECORD.match),
        events.operators & events.named(_OPERATOR.match),
        nccl_ranges(events),
        nccl_calls(events),
    )
    launches = attribution.launch_row[rows]
    return [innermost(events, launches, candidate) for candidate in candidates]


def _first_known(recorded: Sequence[CommunicationArgs]) -> CommunicationArgs:
    """Each argument from the first that knows it."""
    first = recorded[0]
    for args in recorded[1:]:
        lacking = [name for name in CommunicationArgs.__slots__ if getattr(first, name) is None]
        first = replace(first, **{name: getattr(args, name) for name in lacking})
    return first


def _shared(events: EventTable, source: IntColumn, rows: IntColumn) -> BoolColumn:
    """Whether the operator or range that launched a collective launched several on its device.

    Its size may then be that of them together, and is given to none of them.
    """
    # those that nothing launched (-1) are asked for none of its arguments
    launches = Groups.by([source, events.device[rows]], len(rows))
    return launches.sizes[launches.code] > 1


def _ready_us(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """For each collective (event rows) when its data were ready, microseconds after the trace's
    start; NaN if unknown.

    On a device the collective's stream waits for an event recorded at its launch, that is for all
    compute kernels launched before it there: ready is the latest end of those, or the launch itself
    if that is later. On the CPU a collective is created when its data are ready; its range may
    begin later, when a worker takes it up.
    """
    events = attribution.events
    if not attribution.on_device:
        return gloo.created_us(events, rows)
    ready = np.full(len(rows), np.nan)
    compute = attribution.rows(Kind.COMPUTE) & np.isfinite(attribution.launch_us)
    for device in np.unique(events.device[rows]):
        kernels = np.flatnonzero(compute & (events.device == device))
        kernels = kernels[np.argsort(attribution.launch_us[kernels], kind="stable")]
        reach = np.maximum.accumulate(np.append(-np.inf, events.end_us[kernels]))
        here = events.device[rows] == device
        launch_us = attribution.launch_us[rows[here]]
        before = np.searchsorted(attribution.launch_us[kernels], launch_us)
        ready[here] = np.maximum(reach[before], launch_us)
    return ready


def _concurrent(attribution: Attribution, rows: IntColumn) -> IntColumn:
    """For each collective (event rows) how many others were in flight on its device at the same
    time.
    """
    events = attribution.events
    devices = events.device[rows]
    spans = intervals.spans(events, rows)
    if not attribution.on_device:
        devices = np.zeros_like(devices)
        spans = gloo.in_flight(events, rows)
    others = np.zeros_like(devices)
    for device in np.unique(devices):
        here = devices == device
        starts, ends = spans[here].T
        begun = np.searchsorted(np.sort(starts), ends)
        ended = np.searchsorted(np.sort(ends), starts, side="right")
        others[here] = begun - ended - (ends > starts)
    return others


def range_counts(attribution: Attribution) -> dict[str, dict[int | None, int]]:
    """How often each of dpscope's ranges occurs in each step."""
    events = attribution.events
    counts: dict[str, dict[int | None, int]] = defaultdict(Counter)
    rows = np.flatnonzero(named_annotations(events, phases.PREFIX))
    steps = attribution.steps.index_at(events.start_us[rows])
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        if step != NO_STEP:
            counts[events.name_of(row)][attribution.steps.numbers[step]] += 1
    return dict(counts)


REDUCING = frozenset({"all_reduce", "reduce_scatter"})


def _held_us(attribution: Attribution, rows: IntColumn, kinds: list[str | None]) -> FloatColumn:
    """For each reduction (event rows) how long during it the device computed nothing although
    computing had been launched.

    Counted are kernels that were launched before the last reduction of the step was: nothing that
    waits for a gradient is among them, and if nothing held them they would run during the
    reduction. A kernel counts from the end of its launch. NaN for other collectives, for those of
    no step, and on the CPU.
    """
    held = np.full(len(rows), np.nan)
    if not attribution.on_device:
        return held
    events = attribution.events
    launch_us = attribution.launch_us
    launched = np.isfinite(launch_us)
    reduces = np.array([kind in REDUCING for kind in kinds], dtype=bool) & launched[rows]
    computing = attribution.rows(Kind.COMPUTE) & launched
    for kernels, here in _by_step_and_device(attribution, rows, reduces, computing):
        reductions = rows[here]
        # what was launched later may wait for a gradient that is being reduced
        earlier = kernels[launch_us[kernels] < launch_us[reductions].max()]
        launches = attribution.launch_row[earlier]
        waiting = intervals.union(events.end_us[launches], events.start_us[earlier])
        still = intervals.difference(waiting, intervals.of_events(events, kernels))
        starts, ends = intervals.spans(events, reductions).T
        held[here] = intervals.lengths_within(still, starts, ends)
    return held


# of a device's computing, from which on a stream is one that computes: copies around collectives
# are less
_COMPUTES = 0.1
# autograd's node of what AOTAutograd compiled (torch 2.0 and later)
_GRAPH = "CompiledFunctionBackward"


def _compute_shares(
    attribution: Attribution, rows: IntColumn, ready_us: FloatColumn
) -> tuple[FloatColumn, FloatColumn]:
    """For each collective (event rows) two shares, 0..1, of its step's computing: done when it was
    ready, and by its graph.

    On its device, without the optimizer's work, which waits for the last gradient. What remains
    could hide it. The second is what the last compiled backward graph computed that ended before
    the collective was requested: what comes out of a graph is ready when all of it has run; 0 where
    none ended before it in its step. NaN where the step, the moment or all computing is unknown.
    """
    events = attribution.events
    done, compiled = np.full((2, len(rows)), np.nan)
    graphs = np.flatnonzero(events.operators & events.named(_GRAPH.__eq__))
    graphs = graphs[np.argsort(events.end_us[graphs], kind="stable")]
    requested_us = attribution.requested_us
    when_us = requested_us[rows] if attribution.on_device else ready_us
    last_graph = np.searchsorted(events.end_us[graphs], when_us, side="right") - 1
    before_optimizer = _before_optimizer(attribution)
    known = np.isfinite(ready_us)
    for kernels, here in _by_step_and_device(attribution, rows, known, before_optimizer):
        computed = intervals.of_events(events, kernels)
        total_us = intervals.length(computed)
        if not total_us > 0:
            continue
        done[here] = intervals.length_before(computed, ready_us[here]) / total_us
        compiled[here] = 0.0
        begins_us = attribution.steps.start_us[attribution.step[rows[here[0]]]]
        for place in here[last_graph[here] >= 0].tolist():
            graph = graphs[last_graph[place]]
            if events.start_us[graph] >= begins_us:
                since_us = requested_us[kernels] - events.start_us[graph]
                inside = kernels[(since_us >= 0) & (requested_us[kernels] < events.end_us[graph])]
                compiled[place] = intervals.length(intervals.of_events(events, inside)) / total_us
    return done, compiled


def _by_step_and_device(
    attribution: Attribution, rows: IntColumn, wanted: BoolColumn, computing: BoolColumn
) -> Iterator[tuple[IntColumn, IntColumn]]:
    """For each step and device its marked events of `computing`, and the places of its collectives
    that are `wanted`.
    """
    devices = attribution.events.device
    of_step = attribution.by_step(computing)
    places = np.flatnonzero(wanted & (attribution.step[rows] >= 0))
    for of_place in Groups.by(
        [attribution.step[rows[places]], devices[rows[places]]], len(places)
    ).rows():
        here = places[of_place]
        first = rows[here[0]]
        kernels = of_step[attribution.step[first]]
        if attribution.on_device:
            kernels = kernels[devices[kernels] == devices[first]]
        yield kernels, here


def _before_optimizer(attribution: Attribution) -> BoolColumn:
    """Rows that compute in a step, those that the optimizer launched left out."""
    events = attribution.events
    computing = attribution.in_steps(Kind.COMPUTE)
    by_torch = named_annotations(events, "Optimizer.step#")
    starts = events.start_us[by_torch | named_annotations(events, phases.OPTIMIZER)]
    step = attribution.steps.index_at(starts)
    begins_us = np.full(len(attribution.steps) + 1, np.inf)  # NO_STEP is the last
    np.minimum.at(begins_us, step[step >= 0], starts[step >= 0])
    return computing & ~(attribution.requested_us >= begins_us[attribution.step])


def _on_compute_stream(attribution: Attribution, rows: IntColumn) -> BoolColumn:
    """For each collective (event rows) whether its stream is one on which its device computes: then
    nothing hides it.
    """
    events = attribution.events
    every = np.append(rows, np.flatnonzero(attribution.rows(Kind.COMPUTE)))
    spent_us = events.duration_us[every]
    spent_us[: len(rows)] = 0.0
    streams = Groups.by([events.device[every], events.thread[every]], len(every))
    devices = Groups.by([events.device[every]], len(every))
    of_stream_us = streams.sums(spent_us)[streams.code]
    of_device_us = devices.sums(spent_us)[devices.code]
    computes = (of_device_us > 0) & (of_stream_us >= _COMPUTES * of_device_us)
    return computes[: len(rows)]
