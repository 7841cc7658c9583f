"""The traces of a job's ranks as one trace for Perfetto and Chrome's viewer: one time axis, every
rank named.

The files are read twice: first for their tables, from which come the clocks and the earliest time,
then to write them. Large ones are read over the machine's cores, and memory holds the table of one
rank and a chunk of text per process, however many ranks.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dpscope.analysis.traces.merge import tracks
from dpscope.analysis.traces.merge.kineto_files import kineto_files
from dpscope.analysis.traces.merge.rewrite import (
    MergedPart,
    RankJob,
    write_merged,
    write_rank,
    writing,
)
from dpscope.analysis.traces.ranks.clock_alignment import RankClock, rank_clocks
from dpscope.analysis.traces.ranks.jobs import find_jobs, recordings_of
from dpscope.analysis.traces.ranks.matching import MatchedRanks, RankOrigin, match_recordings
from dpscope.analysis.traces.ranks.process_pool import over_cores
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary, rank_order
from dpscope.analysis.traces.ranks.readers import Paths, find_traces
from dpscope.analysis.traces.ranks.trace_analysis import require_one_job
from dpscope.analysis.traces.ranks.trace_files import named_collectives, trace_identity
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.event_columns import TableBuilder
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.nsys_database import is_export
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.ownership import check_overwritable, is_dpscope_trace


@dataclass(frozen=True)
class RankFile:
    """A rank's file after its first reading; `moved` are the events that need a separate lane."""

    path: Path
    trace: Trace  # without its events
    collectives: Table
    moved: dict[tracks.EventPlace, int]
    first_us: float  # of all its events, in the table's time
    identity: TraceSummary


def read_rank(path: Path, limits: ReadLimits) -> RankFile:
    """Read a rank's file for the first time; raises DpscopeError as `read_trace` does."""
    scan = tracks.TrackScan()
    trace = read_trace(path, limits, scan.add)
    attribution = attribute(trace)
    return RankFile(
        path=path,
        trace=replace(trace, events=TableBuilder().table()),
        collectives=named_collectives(attribution),
        identity=trace_identity(attribution),
        moved=scan.moved(),
        first_us=scan.first_us - trace.zero_us if scan.first_us < float("inf") else 0.0,
    )


@dataclass(frozen=True)
class MergedRank:
    """One rank of a merged trace; metadata events are not counted: they are written again."""

    title: str
    source: Path
    clock: RankClock
    events: int  # of the rank's file, written
    left_out: int  # not readable, or without sound times
    own_lanes: int  # events that partly overlap another of their thread and were given a lane


@dataclass(frozen=True)
class MergedTrace:
    """What was written: `path`, the ranks in order, and findings about them."""

    __repr__ = short_repr

    path: Path
    ranks: tuple[MergedRank, ...]
    findings: tuple[Finding, ...]
    cut_short: tuple[str, ...]  # the files that end too early, or cannot be read to their end


def merge_traces(
    paths: Paths, output: str | Path, limits: ReadLimits = DEFAULT_LIMITS
) -> MergedTrace:
    """Merge trace files of one job, a file per rank, or exports of Nsight Systems into `output`,
    `.json` or `.json.gz`, written whole or not at all.

    The first rank's clock is the reference. Raises DpscopeError when a file cannot be read or holds
    several ranks, or when the output is one of the files or cannot be written.
    """
    files, output = find_traces(paths), Path(output)
    _check_output(output, files)
    if not any(map(is_export, files)):
        return _merged(files, output, limits)
    with kineto_files(files, limits, output.parent) as (written, findings):
        merged = _merged(written, output, limits)
    return replace(merged, findings=(*findings, *merged.findings))


def _merged(files: list[Path], output: Path, limits: ReadLimits) -> MergedTrace:
    """The merged trace of files in torch.profiler's format."""
    read = over_cores(partial(read_rank, limits=limits), files, files)
    found = find_jobs([rank.identity for rank in read], files)
    require_one_job(found.jobs, files, "a merged trace")
    own = [read[index] for index in found.jobs[""]]
    ranks = [
        own[index]
        for index in rank_order(
            [attribution.trace.rank for attribution in own],
            [str(attribution.path) for attribution in own],
        )
    ]
    origins = [
        RankOrigin(position, rank.trace.zero_ns, rank.trace.host)
        for position, rank in enumerate(ranks)
    ]
    matched = _matched(ranks, origins)
    clocks = rank_clocks(matched.rows, origins)
    first_us = round(
        min(rank.first_us + clock.place_us for rank, clock in zip(ranks, clocks, strict=True)), 3
    )
    with writing(output), TemporaryDirectory(prefix=".tmp-merge-", dir=output.parent) as folder:
        jobs = [
            RankJob(
                path=rank.path,
                limits=limits,
                position=clock.rank,
                zero_us=rank.trace.zero_us,
                place_us=round(clock.place_us - first_us, 3),
                moved=rank.moved,
                title=title,
                spans=list(
                    tracks.collective_spans(matched.rows.take(matched.rows["rank"] == clock.rank))
                ),
                part=Path(folder) / str(clock.rank),
            )
            for rank, clock, title in zip(ranks, clocks, _titles(ranks), strict=True)
        ]
        written: list[MergedPart] = over_cores(write_rank, jobs, [rank.path for rank in ranks])
        merged = [
            MergedRank(job.title, job.path, clock, part.events, part.left_out, len(job.moved))
            for job, clock, part in zip(jobs, clocks, written, strict=True)
        ]
        write_merged(
            output, written, _fields(ranks[0].trace, first_us, merged), output.suffix == ".gz"
        )
    findings = [
        *found.of(""),
        *(finding for rank in ranks for finding in rank.trace.findings),
        *matched.findings,
    ]
    cut_short = tuple(rank.trace.source for rank in ranks if rank.trace.cut_short)
    return MergedTrace(
        output, tuple(merged), (*_without_counts(findings), *_findings(merged)), cut_short
    )


def _matched(ranks: Sequence[RankFile], origins: Sequence[RankOrigin]) -> MatchedRanks:
    """All ranks' collectives, by the ranks' positions."""
    table = joined([rank.collectives.assign(rank=position) for position, rank in enumerate(ranks)])
    trace = np.repeat(np.arange(len(ranks)), [len(rank.collectives) for rank in ranks])
    return match_recordings(table, trace, recordings_of([rank.identity for rank in ranks]), origins)


def _without_counts(findings: Sequence[Finding]) -> list[Finding]:
    """Without the warnings of damaged events, which the merged trace's own finding counts."""
    counted_here = ("warning", TraceCode.EVENTS_DAMAGED.code)
    return [finding for finding in findings if (finding.severity, finding.code) != counted_here]


def _check_output(output: Path, files: Sequence[Path]) -> None:
    if not output.name.endswith((".json", ".json.gz")):
        raise DpscopeError(
            f"{output}: a merged trace is named *.json or *.json.gz; name it so with -o"
        )
    if not output.parent.is_dir():
        raise DpscopeError(
            f"{output.parent} does not exist or is not a folder; create it, or choose another place with -o"
        )
    if output.exists() and any(file.exists() and output.samefile(file) for file in files):
        raise DpscopeError(
            f"{output} is one of the traces to merge and is not overwritten; choose another place with -o"
        )
    check_overwritable(output, is_dpscope_trace)


def _titles(ranks: Sequence[RankFile]) -> list[str]:
    """`rank 3`; with the file's name where that is no rank's alone."""
    alone = {
        number for number, count in Counter(rank.trace.rank for rank in ranks).items() if count == 1
    } - {None}
    return [
        f"rank {rank.trace.rank}" if rank.trace.rank in alone else f"{rank.path.name} ({position})"
        for position, rank in enumerate(ranks)
    ]


def _fields(reference: Trace, first_us: float, ranks: Sequence[MergedRank]) -> dict[str, Any]:
    """The merged trace's fields other than its events: Kineto's fields where it has them, the rest
    under `dpscope`.
    """
    fields: dict[str, Any] = {
        "baseTimeNanoseconds": reference.zero_ns + round(first_us * 1e3),
        "deviceProperties": [
            {"id": index, "name": name} for index, name in enumerate(reference.device_names)
        ],
    }
    if reference.world_size is not None:
        of_one = {"rank": reference.rank} if len(ranks) == 1 else {}
        fields["distributedInfo"] = {
            "backend": reference.backend,
            "world_size": reference.world_size,
            **of_one,
        }
    described = [
        {
            "title": rank.title,
            "source": rank.source.name,
            "events": rank.events,
            "left_out": rank.left_out,
            "clock_moved_us": rank.clock.moved_us,
            "matched_collectives": rank.clock.collectives,
            "residual_us": rank.clock.residual_us,
            "worst_residual_us": rank.clock.worst_us,
        }
        for rank in ranks
    ]
    return fields | {
        "dpscope": {"version": version("dpscope"), "clock_of": ranks[0].title, "ranks": described}
    }


def _findings(ranks: Sequence[MergedRank]) -> Iterator[Finding]:
    if left_out := [rank for rank in ranks if rank.left_out]:
        yield TraceCode.EVENTS_DAMAGED.finding(
            f"{counted(sum(rank.left_out for rank in left_out), 'event')} are not readable or have no sound times and were "
            f"left out ({', '.join(f'{rank.title}: {rank.left_out}' for rank in left_out)})"
        )
    if unset := [rank.title for rank in ranks[1:] if not rank.clock.collectives]:
        yield TraceCode.CLOCKS_AS_RECORDED.finding(
            f"{', '.join(unset)}: no synchronising collective that was found on all its ranks is shared with the ranks before "
            "them, so their clocks are as recorded"
        )
