"""A step of `nn.DataParallel` by its phases: what each costs on each device, in time and bytes.

From dpscope's named ranges where a trace has them; else from the names of operators and autograd nodes and from the threads
that launch: DataParallel scatters, replicates and gathers on the thread that called it, runs each replica on a thread of
its own, and reduces gradients in the backward node of its broadcast. Source: torch/nn/parallel/data_parallel.py.
"""

import re
from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.data_parallel.exposed import device_exposed_us
from dpscope.analysis.traces.data_parallel.host_phases import host_phase_rows
from dpscope.analysis.traces.data_parallel.launches import OTHER, PHASES, LaunchPhases, kinds_by_phase, launch_phases
from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, IntColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.reading.tensor_sizes import element_bytes
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import DEVICE_KINDS, Kind


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
    sizes, of_model = events.bytes[rows], _moves_the_model(attribution, rows)
    totals = np.zeros((2, len(places)), dtype=np.int64)
    np.add.at(totals[0], places.code, sizes)
    np.add.at(totals[1], places.code, np.where(of_model, sizes, 0))
    return copies.take(places.first).assign(
        rank=attribution.trace.rank, bytes=totals[0], model_bytes=totals[1], count=places.sizes
    )


def _moves_the_model(attribution: Attribution, rows: IntColumn) -> BoolColumn:
    if not len(rows) or not is_data_parallel(attribution):
        return np.zeros(len(rows), dtype=np.bool_)
    moving = [PHASES.index(name) for name in ("replicate", "gradient_reduce")]
    return np.isin(launch_phases(attribution).phase[rows], moving)


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
    if not attribution.on_device:
        rows = list(host_phase_rows(attribution))
    else:
        rows = list(_device_rows(attribution)) if is_data_parallel(attribution) else []
    return Table.from_records(rows, COLUMNS).assign(rank=attribution.trace.rank)


def is_data_parallel(attribution: Attribution) -> bool:
    """Whether one process worked on several devices the way DataParallel does, by the names it leaves."""
    events = attribution.events
    device = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    if len(np.unique(events.device[device])) < 2:
        return False
    return any(_DP_NAME.match(name) for name in events.names)


def collective_kinds(attribution: Attribution) -> dict[int, str]:
    """`kinds_by_phase` of a trace of DataParallel on devices; of any other trace nothing."""
    return kinds_by_phase(attribution) if attribution.on_device and is_data_parallel(attribution) else {}


def _device_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    events = attribution.events
    launches = launch_phases(attribution)
    own = np.flatnonzero(launches.phase >= 0)
    exposed_us = device_exposed_us(attribution, launches.phase, PHASES)
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
            "replica": None,
            "step": attribution.steps.numbers[step],
            "phase": name,
            "time_us": intervals.length(intervals.union(events.start_us[rows], events.end_us[rows])),
            "exposed_us": exposed_us.get((step, device, phase)),  # unknown of a step without a window
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
    wanted = [name for name in PHASES if name != OTHER or (phases["phase"] == OTHER).any()]
    of_rank, step = phases.group("rank"), phases.real("step")
    first, last = (found[of_rank.code] for found in (of_rank.least(step), of_rank.most(step)))
    partial = np.where(phases.known("device"), first, last)  # as in `step_table`
    whole = (step != partial) & np.isfinite(step)
    used = phases.take(whole) if whole.any() else phases
    steps = len(used.group("step"))
    places = used.group("rank", "device", "replica", in_order=True)
    table = used.take(places.first).select(("rank", "device", "replica"))
    for name in wanted:
        own = used["phase"] == name
        seen = np.bincount(places.code, weights=own, minlength=len(places)) > 0
        sums = places.sums(np.where(own, used["time_us"], 0.0))
        table = table.assign(**{f"{name}_us": np.where(seen, sums / max(steps, 1), np.nan)})
    return table
