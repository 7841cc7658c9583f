"""What one trace does not show: devices that are not read, work of no step, communication that left no trace."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    CommunicationArgs,
    EventTable,
    IntColumn,
    Trace,
)
from dpscope.analysis.traces.reading.reader import launching_calls
from dpscope.analysis.traces.reading.tensor_sizes import group_size
from dpscope.analysis.traces.steps.attribution import NO_STEP, Attribution, empty_steps
from dpscope.analysis.traces.steps.event_kind import (
    COMMUNICATION_KINDS,
    DEVICE_KINDS,
    Kind,
    collective_kind,
    may_communicate,
)
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

_WHOLE_FILE = "the file was cut short: read a whole copy of it, or trace again"
_LEAST_SHARE = 0.01  # of device time, in events of no step: less is usual at a trace's edges
_NAMED = 3  # kernels of unknown libraries that are named
_LONGEST_NAME = 80
_NO_ARGS = CommunicationArgs()
# Operators of torch.distributed, records of what they move, and a backend's ranges (gloo:all_reduce, mpi:broadcast, ...).
_COMMUNICATES = re.compile(
    r"^(?:c10d::(?!barrier)|record_param_comms(?!barrier)|[a-z]\w*:(?!:)(?!barrier)_?(?:all|reduce|broadcast|gather|scatter|send|recv))"
)


def shows_no_device(attribution: Attribution) -> bool:
    """Whether the trace is of a device of which no work is read."""
    return attribution.on_device and not attribution.rows(*DEVICE_KINDS).any()


def communication_lost(attribution: Attribution) -> bool:
    """Whether a trace shows operators that communicate, and not one kernel, copy or range that does.

    A group of one rank moves nothing; what is recorded of groups decides, where anything is.
    """
    shown = COMMUNICATION_KINDS if attribution.on_device else (Kind.COLLECTIVE, Kind.HOST_RANGE)
    if attribution.trace.world_size == 1 or attribution.rows(*shown).any():
        return False
    return _asks_for_communication(attribution.events)


def _asks_for_communication(events: EventTable) -> bool:
    asking = events.is_category(Category.CPU_OP, Category.USER_ANNOTATION) & events.named(_COMMUNICATES.match)
    rows = np.flatnonzero(asking)
    recorded = []
    for row in rows.tolist():
        args = events.communication.get(row, _NO_ARGS)
        kind = collective_kind(args.collective_name or "")
        if kind is not None and kind != "barrier":
            recorded.append(group_size(args, kind))
    return any(size != 1 for size in recorded) if recorded else len(rows) > 0


def attribution_findings(attribution: Attribution) -> list[Finding]:
    """Findings about a trace's devices, steps and communication."""
    trace = attribution.trace
    cut = trace.cut_short  # what such a file does not show may only have been lost since
    source = f"what could be read of {trace.source}" if cut else trace.source
    if not len(trace.events) and not cut and not trace.unread:
        return [TraceCode.NO_EVENTS.finding(f"{source} holds no event with a duration")]
    findings = []
    no_kernels = attribution.on_device and not attribution.rows(Kind.COMPUTE, *COMMUNICATION_KINDS).any()
    if trace.unread:
        findings.append(_device_not_read(trace, nothing_read=no_kernels))
    elif no_kernels:
        findings.append(_no_kernels(attribution, source, cut))
    if communication_lost(attribution) and not (cut and no_kernels):
        findings.append(_communication_without_kernels(source, cut, attribution.on_device))
    findings += _step_findings(attribution)
    findings += _unknown_communication(attribution)
    return findings


def _device_not_read(trace: Trace, nothing_read: bool) -> Finding:
    categories = ", ".join(f"{count:,} {name}" for name, count in trace.unread)
    return TraceCode.DEVICE_NOT_READ.finding(
        severity="error" if nothing_read else "warning",
        message=f"{trace.source} holds events of a device in categories that dpscope does not read: {categories}"
        + ("; its compute and communication are not given" if nothing_read else "; no sum includes them"),
    )


def _no_kernels(attribution: Attribution, source: str, cut: bool) -> Finding:
    if launching_calls(attribution.events).any():
        message = f"{source} holds calls that launch work on a device but no kernel: nothing is known of the device"
        next_step = None
    else:
        message = f"{source} holds collectives of NCCL and nothing of a device: it records the CPU alone"
        next_step = "trace again with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    return TraceCode.NO_KERNELS.finding(message, _WHOLE_FILE if cut else next_step)


def _communication_without_kernels(source: str, cut: bool, on_device: bool) -> Finding:
    if on_device:
        missing = "no kernel of theirs"
        next_step = (
            "with gloo on GPU tensors nothing runs on the device to be read; else trace again, and see `dpscope doctor`"
        )
    else:
        missing = "no range of gloo and no kernel of a device that show how long they took"
        next_step = "trace the device too, where there is one; of backends on the CPU dpscope reads gloo's ranges alone"
    return TraceCode.TRACE_INCOMPLETE.finding(
        message=f"{source} holds operators that communicate and {missing}: its communication is not given",
        next_step=_WHOLE_FILE if cut else next_step,
    )


def _step_findings(attribution: Attribution) -> Iterator[Finding]:
    trace = attribution.trace
    kinds = DEVICE_KINDS if attribution.on_device else (Kind.COLLECTIVE, Kind.HOST_RANGE)
    outside = attribution.rows(*kinds) & (attribution.step == NO_STEP)
    if attribution.on_device:
        if _share_of_device_time(attribution, outside | attribution.by_time) > _LEAST_SHARE:
            yield _events_of_no_step(attribution, outside)
    elif outside.any():
        total_us = float(attribution.events.duration_us[outside].sum())
        yield TraceCode.EVENTS_OF_NO_STEP.finding(
            message=f"{int(outside.sum())} communication ranges of {trace.source} ({total_us:,.1f} µs) begin outside every "
            "traced step and are not in any step's sums",
            next_step="usual at a trace's edges; if they are many, call profiler.step() after each training step",
        )
    if attribution.on_device and not attribution.steps.marked:
        yield TraceCode.NO_STEPS.finding(
            message=f"{trace.source} marks no ProfilerStep: its whole length is taken as one step"
        )
    if len(empty := empty_steps(attribution)) and not shows_no_device(attribution):
        yield _steps_empty(attribution, empty)
    if len(attribution.windows.outlasting) or attribution.windows.hidden.any():
        yield _outlasted(attribution)


def _share_of_device_time(attribution: Attribution, rows: BoolColumn) -> float:
    """What part of the time of all device events these rows are; all of it where none of them took any."""
    durations_us = attribution.events.duration_us
    own_us, all_us = (float(durations_us[one].sum()) for one in (rows, attribution.rows(*DEVICE_KINDS)))
    return own_us / all_us if all_us > 0 else float(rows.any())


def _events_of_no_step(attribution: Attribution, outside: BoolColumn) -> Finding:
    events, collectives = attribution.events, attribution.rows(Kind.COLLECTIVE)
    parts = []
    for rows, text in (
        (attribution.by_time, "are counted in the step during which they ran (by_time_us)"),
        (outside, "are not in any step's sums"),
    ):
        if count := int(rows.sum()):
            total_us = float(events.duration_us[rows].sum())
            parts.append(f"{count} ({total_us:,.1f} µs, {int((rows & collectives).sum())} of them collectives) {text}")
    return TraceCode.EVENTS_OF_NO_STEP.finding(
        message=f"device events of {attribution.trace.source} were launched in no traced step: {'; '.join(parts)}"
    )


def _steps_empty(attribution: Attribution, empty: IntColumn) -> Finding:
    source, count = attribution.trace.source, len(attribution.steps)
    what = "work of a device" if attribution.on_device else "event"
    named = ", ".join(str(attribution.steps.numbers[index]) for index in empty[:_NAMED].tolist())
    more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
    return TraceCode.STEPS_EMPTY.finding(
        f"{len(empty)} of {counted(count, 'step')} of {source} hold no {what} (step {named}{more}): their times are not given",
        severity="error" if len(empty) == count else "warning",
    )


def _outlasted(attribution: Attribution) -> Finding:
    windows = attribution.windows
    copies, hidden = len(windows.outlasting), int(windows.hidden.sum())
    parts = [f"{copies} copies end after a later step does: they bound no step"] if copies else []
    if hidden:
        parts.append(f"{counted(hidden, 'step')} ended before an earlier one's work did: their times are unknown")
    return TraceCode.STEPS_OUTLASTED.finding(f"in {attribution.trace.source} {'; '.join(parts)}")


def _unknown_communication(attribution: Attribution) -> Iterator[Finding]:
    """Kernels of a job of several ranks that look as if they communicated, and count as compute."""
    if not attribution.on_device or attribution.trace.world_size == 1:
        return
    if attribution.trace.world_size is None and not attribution.rows(*COMMUNICATION_KINDS).any():
        return
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.COMPUTE) & events.named(may_communicate))
    if not len(rows):
        return
    counts = Counter(events.names[code] for code in events.name[rows].tolist())
    named = ", ".join(f"{name[:_LONGEST_NAME]} ({count})" for name, count in counts.most_common(_NAMED))
    more = f" and {counted(len(counts) - _NAMED, 'other name')}" if len(counts) > _NAMED else ""
    total_us = float(events.duration_us[rows].sum())
    yield TraceCode.COMMUNICATION_UNKNOWN.finding(
        f"{counted(len(rows), 'kernel')} of {attribution.trace.source} ({total_us:,.1f} µs) may communicate by name; "
        f"counted as compute: {named}{more}"
    )
