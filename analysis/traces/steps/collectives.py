"""One row per collective per rank: kind, group, size, time, when it was ready, what stood still
meanwhile.

Matching across ranks is `ranks/matching`'s.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    CommunicationArgs,
    EventTable,
    FloatColumn,
    IntColumn,
    ProcessGroup,
)
from dpscope.analysis.traces.reading.table import UNKNOWN, Table
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
    of_shards = [
        collective
        for collective in named
        if collective.kind in _SHARDING and collective.size == len(within.ranks)
    ]
    shards = {_shard_elements(shard.args) for shard in of_shards if shard.kind == "reduce_scatter"}
    group_of = dict.fromkeys(of_shards, within)
    group_of |= {
        collective: between
        for collective in named
        if collective.kind == "all_reduce" and collective.args.input_elements in shards
    }
    return [_in_group(collective, group_of.get(collective)) for collective in named]


def _shard_elements(args: CommunicationArgs) -> int:
    """What a reduce-scatter leaves to a rank."""
    return min(args.input_elements or 0, args.output_elements or 0)


def _in_group(collective: NamedCollective, group: ProcessGroup | None) -> NamedCollective:
    if group is None:
        return collective
    ranks = group.ranks
    return collective._replace(
        args=replace(
            collective.args, group=group.name, group_ranks=str(list(ranks)), group_size=len(ranks)
        )
    )


COLUMNS = (
    "rank", "device", "step", "kind", "moved_as", "group", "group_ranks", "sequence", "order", "bytes", "group_size", "start_us",
    "duration_us", "queue_us", "ready_us", "concurrent", "compute_done", "compute_stream", "compiled_share", "held_us",
)  # fmt: skip

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
    events, on_device, trace = attribution.events, attribution.on_device, attribution.trace
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    when = attribution.launch_us[rows] if on_device else events.start_us[rows]
    rows = rows[np.argsort(np.where(np.isfinite(when), when, events.start_us[rows]), kind="stable")]
    named = list(_named(attribution, rows, kind_of_row))
    if not on_device:
        named = in_mesh(named, trace.process_groups)
    kinds, ranks = [collective.kind for collective in named], _group_sizes(named, trace.world_size)
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
        linked = [int(source[index]) for source in sources]
        recorded = [events.communication.get(row, _NO_ARGS)]
        for source, of_several in zip(linked, shared, strict=True):
            of_source = events.communication.get(source, _NO_ARGS)
            recorded.append(replace(of_source, **_NO_SIZES) if of_several[index] else of_source)
        args = _first_known(recorded)
        names = (
            args.collective_name or "",
            *(events.names[events.name[event]] for event in (*linked, row) if event >= 0),
        )
        yield NamedCollective(
            args, next(filter(None, map(collective_kind, names)), kind_of_row.get(row))
        )


def _launched_in(attribution: Attribution, rows: IntColumn) -> list[IntColumn]:
    """What each was launched in: `record_param_comms`, the `c10d` operator, the `nccl:` range,
    NCCL's own; -1 for none.
    """
    events = attribution.events
    if not attribution.on_device:  # only the operator is known
        return [gloo.creators(events, rows)]
    operators = events.is_category(Category.CPU_OP)
    candidates = (
        *(operators & events.named(source.match) for source in (_RECORD, _OPERATOR)),
        nccl_ranges(events),
        nccl_calls(events),
    )
    return [innermost(events, attribution.launch_row[rows], candidate) for candidate in candidates]


def _first_known(recorded: Sequence[CommunicationArgs]) -> CommunicationArgs:
    """Each argument from the first that knows it."""
    values = (
        filter(lambda value: value is not None, map(attrgetter(name), recorded))
        for name in CommunicationArgs.__slots__
    )
    return CommunicationArgs(*(next(known, None) for known in values))


def _shared(events: EventTable, source: IntColumn, rows: IntColumn) -> BoolColumn:
    """Whether the operator or range that launched a collective launched several on its device.

    Its size may then be that of them together, and is given to none of them.
    """
    places = np.stack((source, events.device[rows]), axis=1)
    _, inverse, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    return (counts[inverse.ravel()] > 1) & (source >= 0)


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
        own = np.flatnonzero(compute & (events.device == device))
        own = own[np.argsort(attribution.launch_us[own], kind="stable")]
        reach = np.concatenate(([-np.inf], np.maximum.accumulate(events.end_us[own])))
        of_device = np.flatnonzero(events.device[rows] == device)
        launch = attribution.launch_us[rows[of_device]]
        before = np.searchsorted(attribution.launch_us[own], launch, side="left")
        ready[of_device] = np.maximum(reach[before], launch)
    return ready


def _concurrent(attribution: Attribution, rows: IntColumn) -> IntColumn:
    """For each collective (event rows) how many others were in flight on its device at the same
    time.
    """
    events = attribution.events
    spans = intervals.spans(events, rows) if attribution.on_device else gloo.in_flight(events, rows)
    others, devices = np.zeros((2, len(rows)), dtype=np.int64)
    if attribution.on_device:
        devices = events.device[rows]
    for device in np.unique(devices):
        own = np.flatnonzero(devices == device)
        begun = np.searchsorted(np.sort(spans[own, 0]), spans[own, 1], side="left")
        ended = np.searchsorted(np.sort(spans[own, 1]), spans[own, 0], side="right")
        others[own] = begun - ended - (spans[own, 1] > spans[own, 0])
    return others


def range_counts(attribution: Attribution) -> dict[str, dict[int | None, int]]:
    """How often each of dpscope's ranges occurs in each step."""
    events, counts = attribution.events, dict[str, dict[int | None, int]]()
    rows = np.flatnonzero(named_annotations(events, phases.PREFIX))
    for row, step in zip(rows, attribution.steps.index_at(events.start_us[rows]), strict=True):
        if step != NO_STEP:
            own, number = (
                counts.setdefault(events.names[events.name[row]], {}),
                attribution.steps.numbers[step],
            )
            own[number] = own.get(number, 0) + 1
    return counts


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
    events, launch_us = attribution.events, attribution.launch_us
    reduces = np.array([kind in REDUCING for kind in kinds], dtype=bool) & np.isfinite(
        launch_us[rows]
    )
    computing = attribution.rows(Kind.COMPUTE) & np.isfinite(launch_us)
    for own, here in _by_step_and_device(attribution, rows, reduces, computing):
        earlier = own[launch_us[own] < launch_us[rows[here]].max()]
        waiting = intervals.union(
            events.end_us[attribution.launch_row[earlier]], events.start_us[earlier]
        )
        still = intervals.difference(waiting, intervals.of_events(events, own))
        held[here] = intervals.lengths_within(
            still, events.start_us[rows[here]], events.end_us[rows[here]]
        )
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
    graphs = np.flatnonzero(events.is_category(Category.CPU_OP) & events.named(_GRAPH.__eq__))
    graphs = graphs[np.argsort(events.end_us[graphs], kind="stable")]
    called_us = attribution.launch_us if attribution.on_device else events.start_us
    for own, here in _by_step_and_device(
        attribution, rows, np.isfinite(ready_us), _before_optimizer(attribution)
    ):
        computed = intervals.of_events(events, own)
        total_us = intervals.length(computed)
        if not total_us > 0:
            continue
        done[here] = intervals.length_before(computed, ready_us[here]) / total_us
        compiled[here] = 0.0
        begins = attribution.steps.start_us[attribution.step[rows[here[0]]]]
        when = called_us[rows[here]] if attribution.on_device else ready_us[here]
        for place, last in zip(
            here, np.searchsorted(events.end_us[graphs], when, side="right") - 1, strict=True
        ):
            if last >= 0 and events.start_us[graphs[last]] >= begins:
                graph = graphs[last]
                inside = own[
                    (called_us[own] >= events.start_us[graph])
                    & (called_us[own] < events.end_us[graph])
                ]
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
    wanted = wanted & (attribution.step[rows] >= 0)
    places = np.stack((attribution.step[rows], devices[rows]), axis=1)
    for step, device in np.unique(places[wanted], axis=0):
        own = of_step[step]
        here = np.flatnonzero(wanted & (places == (step, device)).all(axis=1))
        yield (own[devices[own] == device] if attribution.on_device else own), here


def _before_optimizer(attribution: Attribution) -> BoolColumn:
    """Rows that compute in a step, those that the optimizer launched left out."""
    events = attribution.events
    computing = attribution.rows(Kind.COMPUTE) & (attribution.step >= 0)
    ranges = np.flatnonzero(
        named_annotations(events, "Optimizer.step#") | named_annotations(events, phases.OPTIMIZER)
    )
    if not len(ranges):
        return computing
    begins = np.full(len(attribution.steps), np.inf)
    places = attribution.steps.index_at(events.start_us[ranges])
    np.minimum.at(begins, places[places >= 0], events.start_us[ranges[places >= 0]])
    called_us = attribution.launch_us if attribution.on_device else events.start_us
    return computing & ~(called_us >= begins[np.maximum(attribution.step, 0)])


def _on_compute_stream(attribution: Attribution, rows: IntColumn) -> BoolColumn:
    """For each collective (event rows) whether its stream is one on which its device computes: then
    nothing hides it.
    """
    events = attribution.events
    computing = np.flatnonzero(attribution.rows(Kind.COMPUTE))
    every, count = np.concatenate((rows, computing)), len(rows)
    table = Table.of(device=events.device[every], thread=events.thread[every])
    spent = np.append(np.zeros(count), events.duration_us[computing])
    times, totals = (
        groups.sums(spent)[groups.code[:count]]
        for groups in (table.group("device", "thread"), table.group("device"))
    )
    return (totals > 0) & (times >= _COMPUTES * totals)
