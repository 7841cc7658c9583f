"""The profiles of a job: every whole step of every rank whose trace was read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dpscope.analysis.traces.ranks.jobs import find_jobs, recordings_of
from dpscope.analysis.traces.ranks.kept_tables import made_once
from dpscope.analysis.traces.ranks.matching import RankOrigin, match_recordings
from dpscope.analysis.traces.ranks.origin import code_digest
from dpscope.analysis.traces.ranks.trace_analysis import require_one_job
from dpscope.analysis.traces.ranks.trace_files import read_attributed, trace_identity
from dpscope.analysis.traces.ranks.whole_steps import far_longer
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, RUN_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.event_table import Header
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import step_table
from dpscope.analysis.traces.steps.collectives import collective_table
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.analysis.traces.steps.gloo import created_us, in_flight
from dpscope.analysis.what_if.step_profile import INTERPOLATED, StepProfile
from dpscope.analysis.what_if.step_works import step_profile
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

_CODE = (Path(__file__).parent, Path(__file__).parents[1] / "costs")  # besides what reads traces


@dataclass(frozen=True)
class JobProfile:
    """`profiles` of one job; `kinds` of collectives it ran; `devices` None where no trace has the
    world size.
    """

    profiles: tuple[StepProfile, ...]
    devices: int | None
    kinds: frozenset[str]
    lacks: tuple[str, ...]


def job_profile(
    paths: Sequence[Path], parameter_bytes: Sequence[int] = (), limits: ReadLimits = DEFAULT_LIMITS
) -> JobProfile:
    """Read the traces of one job. Raises DpscopeError where none shows a whole step, or a file
    cannot be read.
    """
    read: list[Attribution] = []
    # the file of each: one may hold several ranks
    holders: list[Path] = []
    for path in paths:
        held = list(read_attributed(path, limits))
        read += held
        holders += [path] * len(held)
    found = find_jobs([trace_identity(rank) for rank in read], holders)
    require_one_job(found.jobs, holders, "a prediction")
    attributions = [read[index] for index in found.jobs[""]]
    tables = [_with_times(timed) for timed in attributions]
    trace_of_row = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    matched = _matched(attributions, joined(tables), trace_of_row)
    profiles = [
        profile
        for place, attribution in enumerate(attributions)
        for profile in _of_rank(attribution, matched.take(trace_of_row == place), parameter_bytes)
    ]
    if not profiles:
        advice = _how_to_mark_steps(attributions)
        raise DpscopeError(f"{paths[0]}: no whole step to replay; {advice}")
    devices = _devices(attributions, matched)
    kinds = frozenset(matched.words("kind").counts) if len(matched) else frozenset[str]()
    findings = [finding.message for finding in found.of("")]
    lacks = [*findings, *_lacks(profiles, devices, len(attributions))]
    return JobProfile(tuple(profiles), devices, kinds, tuple(lacks))


def _how_to_mark_steps(attributions: Sequence[Attribution]) -> str:
    """By the program that recorded these traces."""
    recorded_by_torch = attributions[0].trace.format == Header.format
    if recorded_by_torch:
        return "trace two steps or more with profiler.step()"
    return TraceCode.NO_STEPS.value.export_action


def _devices(attributions: Sequence[Attribution], matched: Table) -> int | None:
    """The world size that a trace states, else the size of the largest group."""
    stated = [
        attribution.trace.world_size for attribution in attributions if attribution.trace.world_size
    ]
    if stated or not len(matched):
        return stated[0] if stated else None
    sizes = matched["group_size"][matched.known("group_size")]
    return int(sizes.max()) if len(sizes) else None


def _lacks(profiles: Sequence[StepProfile], devices: int | None, ranks: int) -> Iterator[str]:
    """What the traces of so many ranks do not show, in words."""
    if devices is None:
        yield "the number of devices; give --base-devices"
    elif devices > ranks:
        yield f"{devices - ranks} of {counted(devices, 'rank')}; transfers are upper bounds that include waiting"
    if any(profile.buckets and profile.gradients.known == INTERPOLATED for profile in profiles):
        yield "sizes of gradients (record_shapes=True records them); assumed: spread evenly within each bucket"


def run_profile(paths: Sequence[Path], parameter_bytes: Sequence[int]) -> JobProfile:
    """`job_profile` of a run's traces, which are read for it once: the profile is kept in the
    user's cache folder.
    """
    what = f"job_profile {code_digest(_CODE)} {list(parameter_bytes)}"
    content = made_once(
        paths,
        what,
        lambda: msgspec.msgpack.encode(
            job_profile(paths, parameter_bytes, limits=RUN_LIMITS), enc_hook=_plain
        ),
    )
    return msgspec.msgpack.decode(
        content, type=JobProfile, dec_hook=lambda _, stored: np.frombuffer(stored[1], stored[0])
    )


def _plain(value: Any) -> object:
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value.item()


def _with_times(attribution: Attribution) -> Table:
    """The collectives of one rank with `launch_us` (on the CPU: when created) and `begin_us`, when
    a server took them up.
    """
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    when = attribution.launch_us if attribution.on_device else events.start_us
    launched = np.where(np.isfinite(when[rows]), when[rows], events.start_us[rows])
    rows = rows[np.argsort(launched, kind="stable")]  # as `collectives` orders them
    if attribution.on_device:
        launch, begin = np.sort(launched, kind="stable"), events.start_us[rows]
    else:
        launch, begin = created_us(events, rows), in_flight(events, rows)[:, 0]
        launch = np.where(np.isfinite(launch), launch, begin)
    return collective_table(attribution).assign(launch_us=launch, begin_us=begin)


def _matched(attributions: Sequence[Attribution], table: Table, trace_of_row: np.ndarray) -> Table:
    """All ranks' collectives with what the others show of each: waiting, transfer, size of the
    group.
    """
    traces = [attribution.trace for attribution in attributions]
    origins = [
        RankOrigin(trace.rank if trace.rank is not None else -1, trace.zero_ns, trace.host)
        for trace in traces
    ]
    recordings = recordings_of([trace_identity(attribution) for attribution in attributions])
    return match_recordings(table, trace_of_row, recordings, origins).rows


def _of_rank(
    attribution: Attribution, rows: Table, parameter_bytes: Sequence[int]
) -> list[StepProfile]:
    """The rank's whole steps; a step of which a trace shows the window in part counts only where it
    is the only one.
    """
    every = step_table(attribution)
    steps = every.take(~far_longer(every))
    usable = steps.known("step") & steps.known("step_us")
    if len(steps) > 1:
        usable &= ~steps.truths("partial_window")
    return [
        step_profile(
            attribution,
            attribution.steps.numbers.index(number),
            rows.take(rows["step"] == number),
            parameter_bytes,
        )
        for number in steps["step"][usable].tolist()
    ]
