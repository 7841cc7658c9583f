"""One rank of a merged trace: what the first reading of its file leaves, and how the second writes its events.

Each can run in a separate process: what goes in and comes out is small, whatever the size of the file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from dpscope.analysis.traces.merge.lanes import EventPlace, TrackScan
from dpscope.analysis.traces.merge.names import RankTracks, RawEvent
from dpscope.analysis.traces.merge.rewrite import RAW_EVENTS, RankPlacement, RankRewriter
from dpscope.analysis.traces.merge.tracks import Span, other_transfers, track_events
from dpscope.analysis.traces.merge.writing import MergedPart, PartWriter, writing
from dpscope.analysis.traces.ranks.rank_tables import TraceIdentity, named_collectives, trace_identity
from dpscope.analysis.traces.reading.chunk_decoding import DecodedChunk
from dpscope.analysis.traces.reading.event_columns import TableBuilder
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.limits import ReadLimits
from dpscope.analysis.traces.reading.reader import read_events, read_traces
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError


@dataclass(frozen=True)
class RankFile:
    """A rank's file after its first reading; `moved` are the events that need a separate lane."""

    path: Path
    trace: Trace  # without its events
    collectives: Table
    others: list[Span]
    moved: dict[EventPlace, int]
    first_us: float  # of all its events, in the table's time
    identity: TraceIdentity

    @property
    def order(self) -> tuple[bool, int, str]:
        """Ranks by number, then files of unknown ranks by name."""
        rank = self.trace.rank
        return rank is None, rank or 0, str(self.path)


@dataclass(frozen=True)
class RankJob:
    """What is to be written of a rank: its events after `place_us`, its added tracks, its names."""

    path: Path
    limits: ReadLimits
    placement: RankPlacement
    title: str
    spans: list[Span]
    part: Path
    compressed: bool


@dataclass(frozen=True)
class WrittenRank:
    """A rank's part, and how many of its events are in it and left out."""

    part: MergedPart
    events: int
    left_out: int


def read_rank(path: Path, limits: ReadLimits) -> RankFile:
    """Read a rank's file for the first time; raises DpscopeError as `read_trace` does."""
    scan = TrackScan()
    traces = read_traces(path, limits, scan.add)
    if len(traces) > 1:
        raise DpscopeError(
            f"{path} holds {counted(len(traces), 'rank')} already; merge the ranks' own files, or open it as it is"
        )
    trace = traces[0]
    attribution = attribute(trace)
    return RankFile(
        path=path,
        trace=replace(trace, events=TableBuilder().table()),
        collectives=named_collectives(attribution),
        others=other_transfers(attribution),
        identity=trace_identity(attribution),
        moved=scan.moved(),
        first_us=scan.first_us - trace.zero_us if scan.first_us < float("inf") else 0.0,
    )


def write_rank(job: RankJob) -> WrittenRank:
    """Read a rank's file again and write its part."""
    tracks = RankTracks(job.placement.position)
    rewriter = RankRewriter(job.placement, tracks)
    with writing(job.part), open(job.part, "wb") as file:
        part = PartWriter(job.part, file, job.compressed)

        def use(decoded: DecodedChunk[RawEvent]) -> None:
            part.write(rewriter.rewritten(decoded.events))
            rewriter.left_out += decoded.skipped

        read_events(job.path, job.limits, RAW_EVENTS, use)
        part.write(track_events(job.spans, job.placement.place_us, tracks))
        part.write(tracks.metadata(job.title))
        return WrittenRank(part.close(), rewriter.kept, rewriter.left_out)
