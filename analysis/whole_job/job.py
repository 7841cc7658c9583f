"""The records of a job's processes, read from files, and what is known of the job as a whole."""

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.process_pool import over_cores
from dpscope.analysis.traces.ranks.readers import FoundFiles
from dpscope.analysis.whole_job import dumps, inspector
from dpscope.analysis.whole_job.one_job import one_job
from dpscope.analysis.whole_job.records import Group, Process
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError, unreadable

_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class RecordedJob:
    """The processes in the order of their ranks, their hosts as far as they are known, and the ranks
    of their groups.
    """

    processes: tuple[Process, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str | None, ...]
    members: Mapping[Group, tuple[int, ...]]
    findings: tuple[Finding, ...] = ()
    unread: frozenset[int | None] = (
        frozenset()
    )  # ranks that files which cannot be read are named by

    @property
    def world(self) -> int:
        """How many ranks the job has at least."""
        largest = max((group.size for group in self.members), default=0)
        return max(self.ranks[-1] + 1, largest)

    @property
    def missing(self) -> list[int]:
        """The ranks without a record, or with one that could not be read."""
        every = set(range(self.world))
        return sorted(every - set(self.ranks))

    @property
    def absent(self) -> list[int]:
        """The ranks without a record."""
        return [rank for rank in self.missing if rank not in self.unread]

    @property
    def source(self) -> str:
        """What recorded it, without the version."""
        return self.processes[0].version.rpartition(" ")[0]

    @property
    def by_rank(self) -> list[tuple[int, Process]]:
        return list(zip(self.ranks, self.processes, strict=True))

    @property
    def records(self) -> int:
        return sum(map(len, self.processes))

    @property
    def damaged(self) -> dict[int, int]:
        """How many records of a rank cannot be read; without ranks that have none."""
        return {rank: process.damaged for rank, process in self.by_rank if process.damaged}

    @property
    def is_gloo(self) -> bool:
        """Whether gloo ran all of its collectives; False if it has none."""
        clocks: set[str] = set()
        for process in self.processes:
            clocks.update(call.clock for call in process.calls)
        return clocks == {"gloo"}


def read_job(found: FoundFiles, max_bytes: int, hosts: Path | None = None) -> RecordedJob:
    """The job that the files record; raises DpscopeError for files of several jobs, or if none can
    be read.

    A file that cannot be read is a finding if it is one of many, which were found in a folder.
    """
    outcomes = over_cores(partial(_read, max_bytes=max_bytes), found.files, found.files)
    processes: list[Process] = []
    findings: list[Finding] = []
    unread: set[int | None] = set()
    for file, outcome in zip(found.files, outcomes, strict=True):
        if isinstance(outcome, str):
            findings.append(TraceCode.FILE_NOT_READ.finding(outcome))
            unread.add(dumps.rank_in_name(file))
        else:
            processes += outcome

    if not processes:
        raise DpscopeError(findings[0].message)
    of_job = one_job(processes)
    findings += of_job.findings
    ranked = _ranked(of_job.processes)
    job = RecordedJob(
        processes=tuple(ranked.values()),
        ranks=tuple(ranked),
        hosts=tuple(_hosts(hosts, ranked)),
        members=_members(ranked),
        unread=frozenset(unread),
    )
    return replace(job, findings=(*findings, *_findings(job)))


def _read(file: Path, max_bytes: int) -> list[Process] | str:
    """The processes of a file, or why it cannot be read."""
    try:
        content = _content(file, max_bytes)
        if not content:
            raise DpscopeError(f"{file}: is empty; copy it again, or analyse the other ranks")
        head = content[:_PIECE_BYTES]
        if b'"coll_perf"' in head or b'"p2p_perf"' in head:
            return inspector.read(file, content)
        return dumps.read(file, content)
    except DpscopeError as error:
        return str(error)


def _content(file: Path, max_bytes: int) -> bytes:
    """A file's bytes, decompressed; of a damaged gzip file those before the damage."""
    content = bytearray()
    try:
        with open(file, "rb") as plain:
            compressed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(file) if compressed else open(file, "rb") as stream:
            while piece := stream.read1(_PIECE_BYTES):
                content += piece
                if len(content) > max_bytes:
                    raise DpscopeError(
                        f"{file}: holds more than {max_bytes:,} bytes; raise --max-bytes"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass  # what is missing shows in the last line
    except OSError as error:
        raise DpscopeError(unreadable(file, error)) from error
    return bytes(content)


def _ranked(processes: Sequence[Process]) -> dict[int, Process]:
    """Each process by its rank in the job, in order; raises DpscopeError for two of one rank."""
    ranks = [process.rank for process in processes if process.rank is not None]
    if not ranks:
        ranks = _ranks_in_common_group(processes)
    by_rank = grouped(zip(ranks, processes, strict=True))
    for rank, alike in by_rank.items():
        if len(alike) > 1:
            names = listed([process.source for process in alike], 3)
            raise DpscopeError(
                f"rank {rank} is recorded in {names}: several jobs, or several records of one; name the files of one"
            )
    return {rank: by_rank[rank][0] for rank in sorted(by_rank)}


def _ranks_in_common_group(processes: Sequence[Process]) -> list[int]:
    """The ranks of logs, which know a process's rank in each communicator alone: those in the
    largest one that all of them belong to. Raises DpscopeError if there is none.
    """
    common = set(processes[0].group_ranks)
    for process in processes:
        common &= set(process.group_ranks)
    if not common:
        raise DpscopeError(
            f"{processes[0].source} and {len(processes) - 1} others share no communicator: several jobs, or logs of a part of "
            "one; name the logs of one job"
        )
    largest = min(common, key=lambda group: (-group.size, group.key))
    return [process.group_ranks[largest] for process in processes]


def _members(ranked: Mapping[int, Process]) -> dict[Group, tuple[int, ...]]:
    """The ranks of the job's groups: as recorded, or those whose records name the group."""
    ranks_of: dict[Group, list[int]] = {}
    for rank, process in ranked.items():
        called = [call.group for call in process.calls]
        for group in dict.fromkeys([*process.groups, *called]):
            ranks = ranks_of.setdefault(group, list(group.ranks))
            if not group.ranks:
                ranks.append(rank)
    return {group: tuple(ranks) for group, ranks in ranks_of.items()}


def _hosts(path: Path | None, ranked: Mapping[int, Process]) -> list[str | None]:
    """The host of each rank: as its records or the file of --hosts state."""
    recorded = [process.host for process in ranked.values()]
    if path is None:
        return recorded
    if set(recorded) != {None}:
        raise DpscopeError("--hosts: these records name their hosts; omit it")
    stated = read_hosts(path)
    missing = [rank for rank in ranked if rank not in stated]
    if missing:
        raise DpscopeError(f"--hosts {path}: has no line for rank {as_ranges(missing)}; add it")
    return [stated[rank] for rank in ranked]


def read_hosts(path: Path) -> dict[int, str]:
    """The host of each rank from a file of lines, each with a rank and its host; raises
    DpscopeError.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise DpscopeError(f"--hosts: {unreadable(path, error)}") from error
    hosts: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        words = re.split(r"[,\s]+", line.partition("#")[0].strip())
        if words[0] in ("", "rank"):
            continue
        where = f"--hosts {path}, line {number}"
        if len(words) != 2 or not words[0].isdecimal():
            raise DpscopeError(f"{where}: {line.strip()!r} is not a rank and a host: 8, node1")
        rank = int(words[0])
        if rank in hosts:
            raise DpscopeError(f"{where}: rank {rank} has a line already")
        hosts[rank] = words[1]
    if not hosts:
        raise DpscopeError(f"--hosts {path}: holds no line such as 8, node1")
    return hosts


def _findings(job: RecordedJob) -> Iterator[Finding]:
    """What is wrong with the records."""
    if job.absent:
        ranks_text = counted(len(job.absent), "rank")
        absent = as_ranges(job.absent)
        yield TraceCode.RANKS_MISSING.finding(
            f"no record of {ranks_text} of {job.world}: {absent}",
            "add their records: groups with a missing rank have no transfer and no wait",
        )
    if job.damaged:
        lines = counted(sum(job.damaged.values()), "line")
        damaged = as_ranges([*job.damaged])
        yield TraceCode.EVENTS_DAMAGED.finding(
            f"{lines} of the records of rank {damaged} cannot be read"
        )
    jumped = [rank for rank, process in job.by_rank if process.clock_jumps]
    if jumped:
        set_back = as_ranges(jumped)
        yield TraceCode.CLOCKS_AS_RECORDED.finding(
            f"the clock of rank {set_back} was set back while it recorded: its times are uncertain",
            "durations are not affected; synchronise the clocks steadily (chrony, PTP)",
        )
