"""Which step each event of a trace belongs to: on a device by its launch, on the CPU by its creation."""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    EventTable,
    FloatColumn,
    IntColumn,
    Trace,
    is_among,
)
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import (
    COMMUNICATION_KINDS,
    DEVICE_KINDS,
    Kind,
    cpu_event_kinds,
    event_kinds,
    named_annotations,
)
from dpscope.analysis.traces.steps.gloo import ended_in_their_pass
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode

NO_STEP = -1
CUT_SHORT = frozenset({TraceCode.TRACE_TRUNCATED, TraceCode.GZIP_DAMAGED})  # findings of a file that ends too early
_WHOLE_FILE = "the file was cut short: read a whole copy of it, or trace again"
_STEP_NAME = re.compile(r"^ProfilerStep#(\d{1,18})$")
_COMMUNICATES = re.compile(r"^(?:c10d::|nccl:|gloo:|record_param_comms)(?!barrier)")


@dataclass(frozen=True)
class StepRanges:
    """The steps of a trace in time order; one step without a number when the trace has no ProfilerStep."""

    numbers: tuple[int | None, ...]
    start_us: FloatColumn
    end_us: FloatColumn

    def __len__(self) -> int:
        return len(self.numbers)

    def index_at(self, times: FloatColumn) -> IntColumn:
        """Index of the step each time lies in, NO_STEP outside of all; NaN lies in none."""
        index = np.searchsorted(self.start_us, times, side="right").astype(np.int64) - 1
        inside = (index >= 0) & (times < self.end_us[np.maximum(index, 0)]) if len(self) else np.zeros_like(index, bool)
        return np.where(inside & np.isfinite(times), index, NO_STEP)


@dataclass(frozen=True)
class Attribution:
    """Per row of the event table: its kind, its launch and its step (an index into `steps`)."""

    trace: Trace
    steps: StepRanges
    kind: npt.NDArray[np.uint8]
    launch_row: IntColumn  # the runtime call that launched a device event, -1 for none
    launch_us: FloatColumn  # when; NaN for none
    step: IntColumn

    @property
    def on_device(self) -> bool:
        """Whether this is a device's timeline, else the CPU's."""
        return self.trace.has_accelerator

    @property
    def events(self) -> EventTable:
        return self.trace.events

    def rows(self, *kinds: Kind) -> BoolColumn:
        """Rows of any of these kinds."""
        return is_among(self.kind, kinds)

    def by_step(self, mask: BoolColumn) -> list[IntColumn]:
        """For each step those of the marked rows that belong to it, in order: one pass, however many steps there are."""
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(self.step[rows], kind="stable")]
        bounds = np.searchsorted(self.step[rows], np.arange(len(self.steps) + 1))
        return [rows[begin:end] for begin, end in pairwise(bounds)]


def attribute(trace: Trace) -> Attribution:
    """Attribute every event of a trace.

    A device event belongs to the step in whose ProfilerStep range the runtime call of its correlation id lies; one
    without such a call in the trace belongs to none. A CPU event belongs to the step in which it starts.
    """
    events = trace.events
    steps = step_ranges(events)
    if not trace.has_accelerator:
        events = ended_in_their_pass(events)
        trace = replace(trace, events=events)
        kind = cpu_event_kinds(events)
        none = np.full(len(events), -1, dtype=np.int64)
        return Attribution(trace, steps, kind, none, np.full(len(events), np.nan), steps.index_at(events.start_us))
    kind = event_kinds(events)
    launch_row = _launch_rows(events, is_among(kind, DEVICE_KINDS))
    if trace.world_size != 1:
        kind = with_engine_copies(events, kind, launch_row)
    launch_us = np.where(launch_row >= 0, events.start_us[np.maximum(launch_row, 0)], np.nan)
    return Attribution(trace, steps, kind, launch_row, launch_us, steps.index_at(launch_us))


def step_ranges(events: EventTable) -> StepRanges:
    """The ProfilerStep ranges of the CPU side, the longest of each number (several threads may carry one)."""
    rows = np.flatnonzero(named_annotations(events, "ProfilerStep#"))
    longest: dict[int, tuple[float, float]] = {}
    for row in rows:
        match = _STEP_NAME.match(events.names[events.name[row]])
        if match is None:
            continue
        start, duration = float(events.start_us[row]), float(events.duration_us[row])
        number = int(match[1])
        if number not in longest or duration > longest[number][1] - longest[number][0]:
            longest[number] = (start, start + duration)
    if not longest:
        return StepRanges((None,), np.array([-np.inf]), np.array([np.inf]))
    ordered = sorted(longest.items(), key=lambda item: item[1])
    bounds = np.array([bound for _, bound in ordered])
    return StepRanges(tuple(number for number, _ in ordered), bounds[:, 0], bounds[:, 1])


def _launch_rows(events: EventTable, device_rows: npt.NDArray[np.bool_]) -> IntColumn:
    """For each device event the row of the runtime call with its correlation id, else -1."""
    launch = np.full(len(events), -1, dtype=np.int64)
    calls = np.flatnonzero(events.is_category(Category.RUNTIME) & (events.correlation >= 0))
    wanted = np.flatnonzero(device_rows & (events.correlation >= 0))
    if not len(calls) or not len(wanted):
        return launch
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    correlations = events.correlation[calls]
    position = np.minimum(np.searchsorted(correlations, events.correlation[wanted]), len(calls) - 1)
    found = correlations[position] == events.correlation[wanted]
    launch[wanted[found]] = calls[position[found]]
    return launch


def communication_lost(attribution: Attribution) -> bool:
    """Whether a device's trace shows operators that communicate, and not one kernel or copy that does."""
    events = attribution.events
    if not attribution.on_device or attribution.rows(*COMMUNICATION_KINDS).any():
        return False
    wanted = np.array([bool(_COMMUNICATES.match(name)) for name in events.names], dtype=bool)
    operators = events.is_category(Category.CPU_OP, Category.USER_ANNOTATION) & events.has_name(wanted)
    return bool(operators.any()) and attribution.trace.world_size != 1


def attribution_findings(attribution: Attribution) -> list[Finding]:
    """Device events that no step launched, and a device trace that shows no device work."""
    trace = attribution.trace
    if not attribution.on_device:
        return []
    # What a file that was cut short does not show may only have been lost since.
    cut = any(finding.code in CUT_SHORT for finding in trace.findings)
    source = f"what could be read of {trace.source}" if cut else trace.source
    no_kernels = not attribution.rows(Kind.COMPUTE, *COMMUNICATION_KINDS).any()
    findings = [_no_kernels(source, cut)] if no_kernels else []
    lost = attribution.rows(*DEVICE_KINDS) & (attribution.step == NO_STEP)
    if lost.any():
        findings.append(_events_of_no_step(attribution, lost))
    if communication_lost(attribution) and not (cut and no_kernels):
        findings.append(_communication_without_kernels(source, cut))
    if attribution.steps.numbers == (None,):
        findings.append(
            TraceCode.NO_STEPS.finding(
                message=f"{trace.source} marks no ProfilerStep: its whole length is taken as one step"
            )
        )
    return findings


def _no_kernels(source: str, cut: bool) -> Finding:
    return TraceCode.NO_KERNELS.finding(
        message=f"{source} holds calls of a device's runtime but no kernel: nothing can be said of the device",
        next_step=_WHOLE_FILE
        if cut
        else "another profiler may hold CUPTI, or it is not permitted: run `dpscope doctor` and trace again",
    )


def _events_of_no_step(attribution: Attribution, lost: npt.NDArray[np.bool_]) -> Finding:
    total_us = float(attribution.events.duration_us[lost].sum())
    collectives = int((lost & attribution.rows(Kind.COLLECTIVE)).sum())
    return TraceCode.EVENTS_OF_NO_STEP.finding(
        message=f"{int(lost.sum())} device events of {attribution.trace.source} ({total_us:,.1f} us, {collectives} of them "
        "collectives) were launched in no traced step and are in no step's sums"
    )


def _communication_without_kernels(source: str, cut: bool) -> Finding:
    return TraceCode.TRACE_INCOMPLETE.finding(
        message=f"{source} holds operators that communicate and no kernel of theirs: its communication is not given",
        next_step=_WHOLE_FILE
        if cut
        else "with gloo on GPU tensors nothing runs on the device to be read; else trace again, and see `dpscope doctor`",
    )


_HOST_COPY = re.compile(r"HtoD|DtoH|HtoH|Host", re.IGNORECASE)


def with_engine_copies(events: EventTable, kind: npt.NDArray[np.uint8], launch_row: IntColumn) -> npt.NDArray[np.uint8]:
    """The kinds, with the copies of collectives that copy engines carry out marked as such.

    These are the copies between device buffers launched in an `nccl:` range that launched no NCCL kernel on that device;
    beside a kernel a copy only packs or unpacks. The first copy of a range and device is the COLLECTIVE, the others are
    its COLLECTIVE_PARTs.
    """
    ranges = named_annotations(events, "nccl:")
    if not ranges.any():
        return kind
    between_devices = np.array([not _HOST_COPY.search(name) for name in events.names], dtype=bool)
    copies = np.flatnonzero(events.is_category(Category.MEMCPY) & events.has_name(between_devices) & (launch_row >= 0))
    copy_range = innermost(events, launch_row[copies], ranges)
    copies, copy_range = copies[copy_range >= 0], copy_range[copy_range >= 0]
    if not len(copies):
        return kind
    kernels = np.flatnonzero((kind == Kind.COLLECTIVE) & (launch_row >= 0))
    kernel_range = innermost(events, launch_row[kernels], ranges)
    with_kernel = set(zip(kernel_range.tolist(), events.device[kernels].tolist(), strict=True))
    marked, begun = kind.copy(), set()
    in_order = np.argsort(events.start_us[copies], kind="stable")
    for row, own_range in zip(copies[in_order].tolist(), copy_range[in_order].tolist(), strict=True):
        place = (own_range, int(events.device[row]))
        if place in with_kernel:
            continue
        marked[row] = Kind.COLLECTIVE_PART if place in begun else Kind.COLLECTIVE
        begun.add(place)
    return marked
