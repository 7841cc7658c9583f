"""Which dumps are of one job: the one place that decides it, from what they record.

Dumps of one job agree on the members of each group, and their times lie close together. Those that
contradict the most others are left out, one after another, until no contradiction remains.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from dpscope.analysis.text.units import ranks_named
from dpscope.analysis.whole_job.records import Process
from dpscope.profiling.records.finding import Finding, listed
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

_APART_NS = 300 * 10**9  # clocks of hosts, and the ranks of a stopped job, differ by less
_NAMED_FILES = 3

_Facts = dict[str, Hashable]


@dataclass(frozen=True)
class OneJob:
    """The processes of a job, and findings on files that hold others, or a copy."""

    processes: list[Process]
    findings: list[Finding]


def one_job(processes: Sequence[Process]) -> OneJob:
    """The job of more than half of the processes, each counted once; raises DpscopeError where no
    job has that many.
    """
    kinds = {process.rank is None for process in processes}
    if len(kinds) > 1:
        raise DpscopeError(
            f"{processes[0].source} and others are of different kinds: give Flight Recorder dumps or NCCL Inspector logs alone"
        )
    originals, findings = _without_copies(processes)
    facts = _facts(originals)
    kept = list(range(len(originals)))
    left_out: list[int] = []
    while kept:
        contradictions = _contradictions([facts[index] for index in kept])
        most = max(contradictions)
        if not most:
            break
        place = contradictions.index(most)
        left_out.append(kept.pop(place))
    job = [originals[index] for index in kept]
    others = [originals[index] for index in sorted(left_out)]
    if len(others) >= len(job):
        raise DpscopeError(
            f"{_named(job)} and {_named(others)} are of different jobs: their groups, times or versions contradict each other; "
            "name the files of one job"
        )
    if others:
        message = f"{_named(others)}: of another job, by the recorded groups, times or versions"
        findings.append(TraceCode.TRACE_OF_ANOTHER_JOB.finding(message))
    return OneJob(job, findings)


def _without_copies(processes: Sequence[Process]) -> tuple[list[Process], list[Finding]]:
    """Each process once, however many files hold the same record of it; raises DpscopeError for a
    record under the names of two ranks.
    """
    originals: dict[Hashable, Process] = {}
    findings = []
    for process in processes:
        original = originals.setdefault(process.content, process)
        if original.rank != process.rank:
            raise DpscopeError(
                f"{original.source} and {process.source} are copies of one record, named as of two ranks; remove the copy"
            )
        if original is not process:
            message = f"{process.source}: the same record as {original.source}, counted once"
            findings.append(TraceCode.FILE_NOT_READ.finding(message, "remove the copy"))
    return list(originals.values()), findings


def _facts(processes: Sequence[Process]) -> list[_Facts]:
    """What each process states of its job: its groups by name, the version, and in which stretch of
    time it recorded.
    """
    facts: list[_Facts] = []
    spans_ns = []
    for process in processes:
        stated: _Facts = dict(process.groups_by_name)
        stated["version"] = process.version
        facts.append(stated)
        times_ns = process.times_ns
        if len(times_ns):
            first_ns = int(times_ns.min())
            last_ns = int(times_ns.max())
            spans_ns.append((first_ns, last_ns, stated))
    spans_ns.sort(key=itemgetter(0))
    stretch = 0
    end_ns = 0
    for first_ns, last_ns, stated in spans_ns:
        if first_ns - end_ns > _APART_NS:
            stretch += 1
        end_ns = max(end_ns, last_ns)
        stated["time"] = stretch
    return facts


def _contradictions(facts: Sequence[_Facts]) -> list[int]:
    """How often each contradicts another one, over all that they state."""
    known: Counter[str] = Counter()
    agreeing: Counter[tuple[str, Hashable]] = Counter()
    for stated in facts:
        known.update(stated.keys())
        agreeing.update(stated.items())
    counts = []
    for stated in facts:
        count = 0
        for fact in stated.items():
            name, _ = fact
            count += known[name] - agreeing[fact]
        counts.append(count)
    return counts


def _named(processes: Sequence[Process]) -> str:
    sources = [process.source for process in processes]
    ranks = {process.rank for process in processes if process.rank is not None}
    files = listed(sources, _NAMED_FILES)
    if not ranks:
        return files
    named = ranks_named(sorted(ranks))
    return f"{files} ({named})"
