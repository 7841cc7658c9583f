"""The records of a job's processes, read from files, and what is known of the job as a whole."""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.process_pool import over_cores
from dpscope.analysis.traces.ranks.readers import FoundFiles
from dpscope.analysis.whole_job import dumps, inspector
from dpscope.analysis.whole_job.records import UNKNOWN_NS, Group, Process
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError, unreadable

_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class Place:
    """Where a rank runs, and how far its host's clock is ahead of the others'."""

    host: str
    clock_ahead_ns: int = 0


@dataclass(frozen=True)
class RecordedJob:
    """The processes in the order of their ranks; `groups` are by key, with their ranks."""

    processes: tuple[Process, ...]
    ranks: tuple[int, ...]
    places: tuple[Place | None, ...]
    groups: Mapping[str, Group]
    source: str
    findings: tuple[Finding, ...] = ()
    world: int = 0
    clocks_stated: bool = field(default=False)

    @property
    def hosts(self) -> tuple[str | None, ...]:
        return tuple(None if place is None else place.host for place in self.places)

    @property
    def one_clock(self) -> bool:
        """Whether times of all ranks can be compared."""
        hosts = set(self.hosts)
        is_one_host = len(hosts) == 1 and None not in hosts
        return self.clocks_stated or is_one_host

    @property
    def is_gloo(self) -> bool:
        """Whether gloo ran all of its collectives."""
        return all(call.clock == "gloo" for process in self.processes for call in process.calls)

    def members(self, group: Group) -> tuple[int, ...]:
        """The ranks of a group, as far as they are known."""
        return self.groups[group.key].ranks


def read_job(found: FoundFiles, max_bytes: int, hosts: Path | None = None) -> RecordedJob:
    """The job that the files record; raises DpscopeError for files of several jobs, or if none can
    be read.

    A file that cannot be read is a finding if it is one of many, which were found in a folder.
    """
    outcomes = over_cores(partial(_read, max_bytes=max_bytes), found.files, found.files)
    processes = [one for part in outcomes if isinstance(part, list) for one in part]
    unread = [part for part in outcomes if isinstance(part, str)]
    if not processes:
        raise DpscopeError(unread[0])
    findings = [TraceCode.FILE_NOT_READ.finding(reason) for reason in unread]
    ranked = _ranked(processes)
    places = _places(hosts, ranked)
    kept = [ranked[rank] for rank in sorted(ranked)]
    groups = _groups(ranked)
    world = max(
        len(ranked), *(rank + 1 for rank in ranked), *(group.size for group in groups.values())
    )
    job = RecordedJob(
        processes=tuple(kept),
        ranks=tuple(sorted(ranked)),
        places=tuple(places.get(rank) for rank in sorted(ranked)),
        groups=groups,
        source=" and ".join(sorted({file.version.rpartition(" ")[0] for file in kept})),
        world=world,
        clocks_stated=any(place.clock_ahead_ns for place in places.values()),
    )
    return replace(job, findings=(*findings, *_findings(job)))


def _read(file: Path, max_bytes: int) -> list[Process] | str:
    """The processes of a file, or why it cannot be read."""
    try:
        content = _content(file, max_bytes)
        is_log = b'"coll_perf"' in content[:_PIECE_BYTES] or b'"p2p_perf"' in content[:_PIECE_BYTES]
        return inspector.read(file, content) if is_log else dumps.read(file, content)
    except DpscopeError as error:
        return str(error)


def _content(file: Path, max_bytes: int) -> bytes:
    """A file's bytes, decompressed; of a damaged gzip file those before the damage."""
    pieces: list[bytes] = []
    size = 0
    try:
        with open(file, "rb") as plain:
            compressed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(file) if compressed else open(file, "rb") as stream:
            read_piece = partial(stream.read1, _PIECE_BYTES)
            for piece in iter(read_piece, b""):
                pieces.append(piece)
                size += len(piece)
                if size > max_bytes:
                    raise DpscopeError(
                        f"{file}: holds more than {max_bytes:,} bytes; raise --max-bytes"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass  # what is missing shows in the last line
    except OSError as error:
        raise DpscopeError(unreadable(file, error)) from error
    return b"".join(pieces)


def _ranked(processes: Sequence[Process]) -> dict[int, Process]:
    """Each process by its rank in the job; raises DpscopeError for two of one rank."""
    if len({process.rank is None for process in processes}) > 1:
        raise DpscopeError(
            f"{processes[0].source} and others are of different kinds: give Flight Recorder dumps or NCCL Inspector logs alone"
        )
    if processes[0].rank is None:
        processes = _numbered(processes)
    by_rank = grouped((process.rank, process) for process in processes)
    ranked: dict[int, Process] = {}
    for rank, alike in by_rank.items():
        assert rank is not None
        if len(alike) > 1:
            names = listed([file.source for file in alike], 3)
            raise DpscopeError(
                f"rank {rank} is recorded in {names}: several jobs, or several records of one; name the files of one"
            )
        ranked[rank] = alike[0]
    return ranked


def _numbered(processes: Sequence[Process]) -> list[Process]:
    """The processes of logs, which know their rank in each communicator alone.

    That in a communicator which all of them belong to is the rank; raises DpscopeError if there is
    none.
    """
    twice = [
        key
        for key, count in Counter(
            (process.host, process.process_id) for process in processes
        ).items()
        if count > 1
    ]
    if twice:
        host, process_id = twice[0]
        raise DpscopeError(
            f"process {process_id} of {host} is recorded in several files; join them, or name one of them"
        )
    shared = set.intersection(*(set(process.group_ranks) for process in processes))
    sizes = {group.key: group.size for process in processes for group in process.groups}
    whole = sorted(shared, key=lambda key: (-sizes[key], key))
    if not whole:
        raise DpscopeError(
            f"{processes[0].source} and {len(processes) - 1} others share no communicator: several jobs, or logs of a part of "
            "one; name the logs of one job"
        )
    return [replace(process, rank=process.group_ranks[whole[0]]) for process in processes]


def _groups(ranked: Mapping[int, Process]) -> dict[str, Group]:
    """The job's groups, with the ranks of those that logs name by communicator alone."""
    groups: dict[str, Group] = {}
    members: dict[str, list[int]] = {}
    for rank, process in sorted(ranked.items()):
        for group in (*process.groups, *(lane.group for lane in process.lanes)):
            groups.setdefault(group.key, group)
            members.setdefault(group.key, []).append(rank)
    return {
        key: group if group.ranks else group._replace(ranks=tuple(dict.fromkeys(members[key])))
        for key, group in groups.items()
    }


def _places(hosts: Path | None, ranked: Mapping[int, Process]) -> dict[int, Place]:
    """Where each rank runs: as its records or the file of --hosts state."""
    recorded = {rank: Place(one.host) for rank, one in ranked.items() if one.host is not None}
    if hosts is None:
        return recorded
    if recorded:
        raise DpscopeError("--hosts: these records name their hosts; omit it")
    stated = read_hosts(hosts)
    missing = sorted(ranked.keys() - stated.keys())
    if missing:
        raise DpscopeError(f"--hosts {hosts}: has no line for rank {as_ranges(missing)}; add it")
    return stated


def read_hosts(path: Path) -> dict[int, Place]:
    """The place of each rank from a file of lines: rank, host, and optionally by how many seconds
    the host's clock is ahead; raises DpscopeError.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = unreadable(path, error) if isinstance(error, OSError) else f"{path} is no text"
        raise DpscopeError(f"--hosts: {why}") from error
    places: dict[int, Place] = {}
    for number, line in enumerate(lines, start=1):
        words = re.split(r"[,\s]+", line.partition("#")[0].strip())
        if words == [""] or words[0] == "rank":
            continue
        try:
            rank, host, ahead_s = int(words[0]), words[1], float(*words[2:] or (0.0,))
        except (ValueError, IndexError, TypeError) as error:
            raise DpscopeError(
                f"--hosts {path}, line {number}: {line.strip()!r} is not a rank, a host and perhaps seconds: 8, node1, 0.002"
            ) from error
        if rank in places:
            raise DpscopeError(f"--hosts {path}, line {number}: rank {rank} has a line already")
        places[rank] = Place(host, round(ahead_s * 1e9))
    if not places:
        raise DpscopeError(f"--hosts {path}: holds no line such as 8, node1")
    return places


def _findings(job: RecordedJob) -> list[Finding]:
    """What is wrong with the records."""
    of_ranks = list(zip(job.ranks, job.processes, strict=True))
    findings = []
    missing = sorted(set(range(job.world)) - set(job.ranks))
    if missing:
        findings.append(
            TraceCode.RANKS_MISSING.finding(
                f"no record of {counted(len(missing), 'rank')} of {job.world}: {as_ranges(missing)}",
                "add their records: groups with a missing rank have no transfer and no wait",
            )
        )
    damaged = [rank for rank, one in of_ranks if one.damaged]
    if damaged:
        lines = counted(sum(process.damaged for process in job.processes), "line")
        findings.append(
            TraceCode.EVENTS_DAMAGED.finding(
                f"{lines} of the records of rank {as_ranges(damaged)} cannot be read"
            )
        )
    versions = grouped((one.version, rank) for rank, one in of_ranks)
    if len(versions) > 1:
        named = "; ".join(f"{name}: rank {as_ranges(ranks)}" for name, ranks in versions.items())
        findings.append(
            TraceCode.TRACE_OF_ANOTHER_JOB.finding(
                f"the ranks' records are of unlike versions, as of different jobs: {named}",
                "check that all files are of one job",
            )
        )
    jumped = [rank for rank, one in of_ranks if one.clock_jumps]
    if jumped:
        findings.append(
            TraceCode.CLOCKS_AS_RECORDED.finding(
                f"the clock of rank {as_ranges(jumped)} was set back while it recorded: its times are uncertain",
                "durations are not affected; synchronise the clocks steadily (chrony, PTP)",
            )
        )
    return findings


def time_span_ns(job: RecordedJob) -> tuple[int, int]:
    """The first and the last time in the records; zeros where none has a time."""
    ends: list[int] = []
    for process in job.processes:
        times = process.created_ns
        known = times[times != UNKNOWN_NS]
        if len(known):
            ends.append(int(known.min()))
            ends.append(int(known.max()))
    if not ends:
        return 0, 0
    return min(ends), max(ends)
