"""One row per collective per rank: kind, group, size, time. Matching across ranks is `rank_matching`'s."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

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
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.reading.tensor_sizes import buffer_bytes, group_size
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import NO_STEP, Attribution
from dpscope.analysis.traces.steps.event_kind import Kind, collective_kind, named_annotations, nccl_ranges
from dpscope.analysis.traces.steps.gloo import created_us, creators, in_flight, queue_us
from dpscope.analysis.traces.steps.intervals import innermost
from dpscope.analysis.traces.steps.readiness import compiled_share, compute_done, held_us, on_compute_stream
from dpscope.profiling.records import range_names as phases

SHARD, REPLICATE = "mesh_shard", "mesh_replicate"  # torch's names for the two dimensions of dpscope's mesh

NamedCollective = tuple[CommunicationArgs, str | None]
"""The arguments of a collective, and its kind."""


def in_mesh(named: Sequence[NamedCollective], groups: Sequence[ProcessGroup]) -> list[NamedCollective]:
    """The same, all-gathers and reduce-scatters in the group that shards, and all-reduces of a rank's shards between groups.

    Only where the process is in one group of each and in none besides but that of all ranks, and no collective names a group.
    Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: HSDP all-reduces what a reduce-scatter leaves to a rank.
    """
    shard, replicate = ([one for one in groups if one.description == name] for name in (SHARD, REPLICATE))
    if (len(shard), len(replicate), len(groups)) != (1, 1, 3) or any(args.group is not None for args, _ in named):
        return list(named)
    within, between = shard[0], replicate[0]
    gathered = [
        kind in ("all_gather", "reduce_scatter") and group_size(args, kind) == len(within.ranks) for args, kind in named
    ]
    shards = {
        min(args.input_elements or 0, args.output_elements or 0)
        for (args, kind), own in zip(named, gathered, strict=True)
        if own and kind == "reduce_scatter"
    }
    found = []
    for (args, kind), own in zip(named, gathered, strict=True):
        of_a_shard = kind == "all_reduce" and args.input_elements in shards
        group = within if own else between if of_a_shard else None
        found.append(
            (
                args
                if group is None
                else replace(args, group=group.name, group_ranks=str(list(group.ranks)), group_size=len(group.ranks)),
                kind,
            )
        )
    return found


COLUMNS = (
    "rank", "device", "step", "kind", "moved_as", "group", "group_ranks", "sequence", "order", "bytes", "group_size", "start_us",
    "duration_us", "queue_us", "ready_us", "concurrent", "compute_done", "compute_stream", "compiled_share", "held_us",
)  # fmt: skip

_ADDED = ("rank", "order", "ready_us", "concurrent", "compute_done", "compute_stream", "compiled_share", "held_us")
_NO_ARGS = CommunicationArgs()
_NO_SIZES: dict[str, None] = dict.fromkeys(("input_elements", "output_elements", "input_bytes", "output_bytes"))
_RECORD = re.compile(r"record_param_comms$")
_OPERATOR = re.compile(r"_?c10d(?:_functional)?::")


def collective_table(attribution: Attribution, kind_of_row: Mapping[int, str] = MappingProxyType({})) -> Table:
    """One row per collective of one rank, COLUMNS, in order of launch (gloo: of creation).

    `kind` is the collective that was called, `moved_as` the one that moved the data: gloo carries out a reduce-scatter as an
    all-reduce. `bytes` is the larger of the rank's input and output buffer, `order` counts the collectives of a group (a pair of
    ranks matches by it where no sequence number is recorded), `start_us` counts from the trace's start, `queue_us` is the
    time a work of gloo's waited for a worker thread, `ready_us` when its data were ready, `compute_done` which share of its
    step's computing was done then, `compiled_share` which share of it the compiled graph did that its data came out of,
    `compute_stream` whether its stream is one that computes, `held_us` how long computing that was launched stood still during
    it, `concurrent` how many others of the rank were in flight on its device at the same time (a link that they share
    gives each a part). Unknown is NA. `step` is
    NA for a collective that no traced step launched.
    `kind_of_row` is the kind of event rows whose kind neither a record nor a name shows, as RCCL's kernels in DataParallel.
    """
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    when = attribution.launch_us if attribution.on_device else attribution.events.start_us
    launched = np.where(np.isfinite(when[rows]), when[rows], attribution.events.start_us[rows])
    rows = rows[np.argsort(launched, kind="stable")]
    table = Table.from_records(_rows(attribution, rows, kind_of_row), [name for name in COLUMNS if name not in _ADDED])
    ready = ready_us(attribution, rows)
    table = table.assign(
        rank=attribution.trace.rank,
        order=table.group("group", "group_ranks").places,
        ready_us=ready,
        concurrent=concurrent(attribution, rows),
        compute_done=compute_done(attribution, rows, ready),
        compute_stream=on_compute_stream(attribution, rows),
        compiled_share=compiled_share(attribution, rows, ready),
        held_us=held_us(attribution, rows, table.words("kind").tolist()),
    )
    return table.select(COLUMNS)


def _rows(attribution: Attribution, rows: IntColumn, kind_of_row: Mapping[int, str]) -> Iterator[dict[str, object]]:
    events = attribution.events
    ends = _ends(attribution, rows)
    queued = np.full(len(rows), np.nan) if attribution.on_device else queue_us(events, rows)
    named = list(_named(attribution, rows))
    known = [(args, kind or kind_of_row.get(int(row))) for row, (args, kind) in zip(rows, named, strict=True)]
    if not attribution.on_device:
        known = in_mesh(known, attribution.trace.process_groups)
    sizes = [group_size(args, kind) for args, kind in known]
    assumed = _assumed_group_size(attribution, sizes)
    for index, row in enumerate(rows):
        args, kind = known[index]
        step = attribution.step[row]
        ranks = sizes[index] or assumed
        yield {
            "device": int(events.device[row]) if attribution.on_device and events.device[row] >= 0 else None,
            "step": None if step == NO_STEP else attribution.steps.numbers[step],
            "kind": kind,
            "moved_as": kind if attribution.on_device else collective_kind(events.names[events.name[row]]) or kind,
            "group": args.group,
            "group_ranks": args.group_ranks,
            "sequence": args.sequence,
            "bytes": buffer_bytes(args, kind, ranks),
            "group_size": ranks,
            "start_us": float(events.start_us[row]),
            "duration_us": float(ends[index] - events.start_us[row]),
            "queue_us": queued[index] if np.isfinite(queued[index]) else None,
        }


def _named(attribution: Attribution, rows: IntColumn) -> Iterator[tuple[CommunicationArgs, str | None]]:
    """What each collective's own arguments, and those of what launched it, say of it; and which collective it is."""
    events = attribution.events
    sources = _sources(attribution, rows)
    shared = [_shared(events, source, rows) for source in sources]
    for index, row in enumerate(rows):
        linked = [int(source[index]) for source in sources]
        found = [events.communication.get(source, _NO_ARGS) for source in linked]
        of_several = [several[index] for several in shared]
        found = [replace(one, **_NO_SIZES) if several else one for one, several in zip(found, of_several, strict=True)]
        args = _first_known([events.communication.get(int(row), _NO_ARGS), *found])
        names = [events.names[events.name[source]] for source in linked if source >= 0]
        yield args, _kind([args.collective_name, *names, events.names[events.name[row]]])


def _kind(names: list[str | None]) -> str | None:
    """The collective of the first name that has one: metadata, operators and ranges before the kernel's own name."""
    return next((found for name in names if name and (found := collective_kind(name))), None)


def _sources(attribution: Attribution, rows: IntColumn) -> list[IntColumn]:
    """What each collective was launched in: `record_param_comms`, the `c10d` operator, the `nccl:` range; -1 for none.

    Of gloo's collectives only the operator is known.
    """
    events = attribution.events
    if not attribution.on_device:
        return [creators(events, rows)]
    operators = events.is_category(Category.CPU_OP)
    launches = attribution.launch_row[rows]
    found = []
    for pattern in (_RECORD, _OPERATOR):
        found.append(innermost(events, launches, operators & events.named(pattern.match)))
    found.append(innermost(events, launches, nccl_ranges(events)))
    return found


def _shared(events: EventTable, source: IntColumn, rows: IntColumn) -> BoolColumn:
    """Whether the operator or range that launched a collective launched several on its device.

    Its size may then be that of them together, and is given to none of them.
    """
    places = np.stack((source, events.device[rows]), axis=1)
    _, inverse, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    return (counts[inverse.ravel()] > 1) & (source >= 0)


def _ends(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """When each collective ends; of one that copy engines carry out, when its last copy does."""
    events = attribution.events
    ends = events.end_us[rows]
    parts = np.flatnonzero(attribution.rows(Kind.COLLECTIVE_PART))
    if not len(parts):
        return ends
    ranges = nccl_ranges(events)
    part_range = innermost(events, attribution.launch_row[parts], ranges)
    own_range = innermost(events, attribution.launch_row[rows], ranges)
    last: dict[tuple[int, int], float] = {}
    for part, place in zip(parts.tolist(), part_range.tolist(), strict=True):
        key = (place, int(events.device[part]))
        last[key] = max(last.get(key, -np.inf), float(events.end_us[part]))
    by_copies = events.category[rows] == Category.MEMCPY
    for index in np.flatnonzero(by_copies):
        key = (int(own_range[index]), int(events.device[rows[index]]))
        ends[index] = max(ends[index], last.get(key, -np.inf))
    return ends


def _assumed_group_size(attribution: Attribution, sizes: list[int | None]) -> int | None:
    """Without metadata a collective is taken to span the job; not where the trace shows groups of other sizes."""
    world_size = attribution.trace.world_size
    return None if set(sizes) - {None, 1, world_size} else world_size


def _first_known(sources: list[CommunicationArgs]) -> CommunicationArgs:
    """Each field from the first source that has it."""
    return CommunicationArgs(
        *(
            next((value for source in sources if (value := getattr(source, name)) is not None), None)
            for name in CommunicationArgs.__slots__
        )
    )


def ready_us(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """For each collective (event rows) when its data were ready, microseconds after the trace's start; NaN if unknown.

    On a device the collective's stream waits for an event recorded at its launch, that is for all compute kernels launched
    before it there: ready is the latest end of those, or the launch itself if that is later. On the CPU a collective is
    created when its data are ready; its range may begin later, when a worker takes it up.
    """
    events = attribution.events
    if not attribution.on_device:
        return created_us(events, rows)
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


def concurrent(attribution: Attribution, rows: IntColumn) -> IntColumn:
    """For each collective (event rows) how many others were in flight on its device at the same time."""
    events = attribution.events
    spans = intervals.spans(events, rows) if attribution.on_device else in_flight(events, rows)
    others = np.zeros(len(rows), dtype=np.int64)
    for device in np.unique(events.device[rows]) if attribution.on_device else [None]:
        own = np.flatnonzero(events.device[rows] == device) if device is not None else np.arange(len(rows))
        begun = np.searchsorted(np.sort(spans[own, 0]), spans[own, 1], side="left")
        ended = np.searchsorted(np.sort(spans[own, 1]), spans[own, 0], side="right")
        others[own] = begun - ended - (spans[own, 1] > spans[own, 0])
    return others


def range_counts(attribution: Attribution) -> dict[str, dict[int | None, int]]:
    """How often each of dpscope's ranges occurs in each step."""
    counts: dict[str, dict[int | None, int]] = defaultdict(lambda: defaultdict(int))
    events = attribution.events
    steps = attribution.steps.index_at(events.start_us)
    for row in np.flatnonzero(named_annotations(events, phases.PREFIX)):
        step = steps[row]
        if step != NO_STEP:
            counts[events.names[events.name[row]]][attribution.steps.numbers[step]] += 1
    return {name: dict(by_step) for name, by_step in counts.items()}
