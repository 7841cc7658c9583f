"""What one trace does not show: devices that are not read, work of no step, communication that left
no trace.
"""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    GRAPH_ROW,
    BoolColumn,
    Category,
    CommunicationArgs,
    IntColumn,
)
from dpscope.analysis.traces.reading.reader import launching_calls
from dpscope.analysis.traces.reading.tensor_sizes import group_size
from dpscope.analysis.traces.steps import event_kind
from dpscope.analysis.traces.steps.attribution import NO_STEP, Attribution, empty_steps
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, DEVICE_KINDS, Kind
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.trace_codes import TraceCode

_WHOLE_FILE = "the file was cut short: read a whole copy of it, or trace again"
_LEAST_SHARE = 0.01  # of device time, in events of no step: less is usual at a trace's edges
_NAMED = 3  # kernels of unknown libraries that are named
_LONGEST_NAME = 80
# Operators of torch.distributed, records of what they move, and a backend's ranges
# (gloo:all_reduce, mpi:broadcast, ...).
_COMMUNICATES = re.compile(
    r"^(?:c10d::(?!barrier)|record_param_comms(?!barrier)|[a-z]\w*:(?!:)(?!barrier)_?(?:all|reduce|broadcast|gather|scatter|send|recv))"
)


def shows_no_device(attribution: Attribution) -> bool:
    """Whether the trace is of a device of which no work is read."""
    return attribution.on_device and not attribution.rows(*DEVICE_KINDS).any()


def communication_lost(attribution: Attribution) -> bool:
    """Whether a trace shows operators that communicate, and not one kernel, copy or range that
    does.

    A group of one rank moves nothing; what is recorded of groups decides, where anything is. What
    a graph communicates is not shown where it was recorded as one row.
    """
    if graph_rows(attribution).any() and _is_of_several(attribution):
        return True
    shown = COMMUNICATION_KINDS if attribution.on_device else (Kind.COLLECTIVE, Kind.HOST_RANGE)
    if attribution.trace.world_size == 1 or attribution.rows(*shown).any():
        return False
    events = attribution.events
    asking = events.is_category(Category.CPU_OP, Category.USER_ANNOTATION) & events.named(
        _COMMUNICATES.match
    )
    records = [
        events.communication.get(row, CommunicationArgs())
        for row in np.flatnonzero(asking).tolist()
    ]
    named = [(args, event_kind.collective_kind(args.collective_name or "")) for args in records]
    sizes = [group_size(args, kind) for args, kind in named if kind not in (None, "barrier")]
    return any(size != 1 for size in sizes) if sizes else len(records) > 0


def graph_rows(attribution: Attribution) -> BoolColumn:
    """Kernels that stand for all of a CUDA graph's."""
    return attribution.events.named(GRAPH_ROW.__eq__)


def _is_of_several(attribution: Attribution) -> bool:
    """Whether a trace shows that its job has several ranks."""
    if attribution.trace.world_size is not None:
        return attribution.trace.world_size > 1
    calls = event_kind.nccl_ranges(attribution.events)
    return bool(calls.any() or attribution.rows(Kind.COLLECTIVE).any())


def attribution_findings(attribution: Attribution) -> list[Finding]:
    """Findings about a trace's devices, steps and communication."""
    parts = (
        _device_findings,
        _whole_graphs,
        _events_of_no_step,
        _step_findings,
        _unknown_communication,
    )
    findings: list[Finding] = []
    for part in parts:
        findings += part(attribution)
    return findings


def _device_findings(attribution: Attribution) -> Iterator[Finding]:
    """What is lacking of the device's work, and of communication."""
    trace = attribution.trace
    no_kernels = (
        attribution.on_device and not attribution.rows(Kind.COMPUTE, *COMMUNICATION_KINDS).any()
    )
    if trace.unread:
        categories = ", ".join(f"{count:,} {name}" for name, count in trace.unread)
        what_lacks = "no sum includes them"
        if no_kernels:
            what_lacks = "its compute and communication are not given"
        message = f"{trace.source} holds events of a device in categories that dpscope does not read: {categories}; {what_lacks}"
        yield TraceCode.DEVICE_NOT_READ.finding(
            message, severity="error" if no_kernels else "warning"
        )
    elif no_kernels:
        yield _no_kernels(attribution)
    if graph_rows(attribution).any():
        return  # which have a finding
    if communication_lost(attribution) and not (trace.cut_short and no_kernels):
        yield _communication_not_shown(attribution)


def _no_kernels(attribution: Attribution) -> Finding:
    source = attribution.trace.source
    if attribution.trace.cut_short:  # what such a file does not show may only have been lost since
        text = f"what could be read of {source} holds no kernel: nothing is known of the device"
        return TraceCode.NO_KERNELS.finding(text, _WHOLE_FILE)
    if launching_calls(attribution.events).any():
        return TraceCode.NO_KERNELS.finding(
            f"{source} holds calls that launch work on a device but no kernel: nothing is known of the device"
        )
    return TraceCode.NO_KERNELS.finding(
        f"{source} holds collectives of NCCL and nothing of a device: it records the CPU alone",
        "trace again with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    )


def _communication_not_shown(attribution: Attribution) -> Finding:
    source = attribution.trace.source
    none_shown = (
        "holds operators that communicate and nothing that shows how long they took: "
        "its communication is not given"
    )
    if attribution.trace.cut_short:
        text = f"what could be read of {source} {none_shown}"
        return TraceCode.TRACE_INCOMPLETE.finding(text, _WHOLE_FILE)
    action = "trace the device too, where there is one; of backends on the CPU dpscope reads gloo's ranges alone"
    if attribution.on_device:
        action = "with gloo on GPU tensors, use nccl or time gloo's calls on the host; else trace again, and see `dpscope doctor`"
    return TraceCode.TRACE_INCOMPLETE.finding(f"{source} {none_shown}", action)


def _whole_graphs(attribution: Attribution) -> Iterator[Finding]:
    rows = graph_rows(attribution)
    if not rows.any():
        return
    launches = counted(int(rows.sum()), "launch")
    total_us = float(attribution.events.duration_us[rows].sum())
    message = (
        f"{launches} of CUDA graphs in {attribution.trace.source} recorded as one row each "
        f"({total_us:,.1f} µs), which count as compute"
    )
    several = communication_lost(attribution)
    if several:
        message += "; collectives may be among them: its communication is not given"
    yield TraceCode.CUDA_GRAPHS.finding(message, severity="error" if several else "warning")


def _step_findings(attribution: Attribution) -> Iterator[Finding]:
    trace, steps, windows = attribution.trace, attribution.steps, attribution.windows
    if attribution.on_device and not steps.marked:
        yield TraceCode.NO_STEPS.finding(
            "no steps are marked: the whole length is taken as one step", about=str(trace.source)
        )
    if not shows_no_device(attribution):
        what = "work of a device" if attribution.on_device else "event"
        empty = empty_steps(attribution)
        cut = np.flatnonzero(windows.cut)
        yield from _not_timed(attribution, empty, f"no {what} in them")
        yield from _not_timed(attribution, cut, "events may be missing after the file's end")
    hidden = np.flatnonzero(windows.hidden)
    yield from _not_timed(attribution, hidden, "ended before an earlier step's work did")


def _not_timed(attribution: Attribution, indices: IntColumn, why: str) -> Iterator[Finding]:
    """One finding about the steps at these indices, if there are any."""
    steps = attribution.steps
    if not len(indices):
        return
    numbers = listed([steps.numbers[index] for index in indices.tolist()], _NAMED)
    named = f" (step {numbers})" if steps.marked else ""
    yield TraceCode.STEPS_NOT_TIMED.finding(
        f"no time for {len(indices)} of {counted(len(steps), 'step')} of {attribution.trace.source}{named}: {why}",
        severity="error" if len(indices) == len(steps) else "warning",
    )


def _events_of_no_step(attribution: Attribution) -> Iterator[Finding]:
    """Events that no traced step launched: of a device, or the communication of a CPU. Without
    marks the steps are the whole trace.
    """
    if attribution.on_device and not attribution.steps.marked:
        return

    durations_us = attribution.events.duration_us
    on_device = attribution.on_device
    own = attribution.rows(*(DEVICE_KINDS if on_device else (Kind.COLLECTIVE, Kind.HOST_RANGE)))
    outside = own & (attribution.step == NO_STEP)
    either = outside | attribution.by_time
    own_us = float(durations_us[either].sum())
    all_us = float(durations_us[own].sum())
    if not either.any() or (on_device and all_us > 0 and own_us / all_us <= _LEAST_SHARE):
        return
    during = int(attribution.by_time.sum())
    counts = "not counted"
    if during:
        counts = f"{during:,} count in the step in which they ran"
    noun = "GPU event"
    collectives = int((either & attribution.rows(Kind.COLLECTIVE)).sum())
    if not on_device:
        noun = "communication range"
    elif collectives:
        counts += f"; {counted(collectives, 'collective')} among them"
    which = counted(int(either.sum()), noun)
    total = f"{own_us / 1e3:,.3f} ms"
    yield TraceCode.EVENTS_OF_NO_STEP.finding(
        f"{which} ({total}) launched in no traced step: {counts}",
        about=str(attribution.trace.source),
    )


def _unknown_communication(attribution: Attribution) -> Iterator[Finding]:
    """Kernels of a job of several ranks that look as if they communicated, and count as compute."""
    world_size, events = attribution.trace.world_size, attribution.events
    if not attribution.on_device or world_size == 1:
        return
    if world_size is None and not attribution.rows(*COMMUNICATION_KINDS).any():
        return
    rows = np.flatnonzero(attribution.rows(Kind.COMPUTE) & events.named(event_kind.may_communicate))
    if not len(rows):
        return
    counts = Counter(events.names[code] for code in events.name[rows].tolist())
    named = ", ".join(
        f"{name[:_LONGEST_NAME]} ({count})" for name, count in counts.most_common(_NAMED)
    )
    more = ""
    if len(counts) > _NAMED:
        more = f" and {counted(len(counts) - _NAMED, 'other name')}"
    total_us = float(events.duration_us[rows].sum())
    yield TraceCode.COMMUNICATION_UNKNOWN.finding(
        f"{counted(len(rows), 'kernel')} of {attribution.trace.source} ({total_us:,.1f} µs) may communicate by name; "
        f"counted as compute: {named}{more}"
    )
