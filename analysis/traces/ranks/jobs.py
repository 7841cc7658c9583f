"""Which traces belong to one job: the one place that decides it, from what the traces record and where they lie.

Traces are of one job where recorded world size, process groups and times agree. Times are compared on one host's clock; hosts'
clocks may differ. Traces that agree and claim the same rank are separated by folder, host and process ids. Successive windows of
one process are one job. Whatever cannot be separated stands alone, since nothing may be averaged over jobs.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.rank_tables import Group, TraceIdentity
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.files import natural_order

_ONE_CLOCK_NS = 2 * 10**9  # traces of one job overlap in time on one clock; so much is allowed for the profiler's start
_TWO_CLOCKS_NS = 3600 * 10**9  # by which clocks of two hosts may differ
_NAMED_FILES = 4

Indices = list[int]


@dataclass(frozen=True)
class FoundJobs:
    """Indices of the traces of each job, by its name; a single job is called ``""``. `findings` by the same names."""

    jobs: dict[str, Indices]
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)

    def of(self, name: str) -> tuple[Finding, ...]:
        """The findings on a job's files."""
        return self.findings.get(name, ())


def find_jobs(traces: Sequence[TraceIdentity], places: Sequence[Path]) -> FoundJobs:
    """The jobs among traces; `places` are the files that hold them, whose folders name the jobs.

    A job of several folders is named by the folder that contains them, one whose files lie next to the others' folders ``.``. A
    single trace in a folder with a job of several, but not of that job, is left out with a finding.
    """
    kept, copies = _without_copies(traces)
    parts = _grouped(kept, lambda index: traces[index].world_size)
    parts = [piece for part in parts for piece in _by_time(traces, part)]
    parts = [piece for part in parts for piece in _by_groups(traces, part)]
    parts, apart = _with_unique_ranks(traces, places, parts)
    parts.sort(key=lambda part: (min(traces[index].start_ns or 0 for index in part), part[0]))
    jobs, strays = _without_strays(places, parts)
    names = _names(traces, places, jobs)
    found: dict[str, list[Finding]] = defaultdict(list)
    for index, original in copies:
        found[_name_of(original, names)].append(_copied(traces[index], traces[original]))
    for index, job in strays:
        found[_name_of(job[0], names)].append(_left_out(traces, index, job))
    for part in apart:
        found[_name_of(part[0], names)].append(_not_unique(traces, part))
    if len(jobs) > 1:
        for name, job in names.items():
            if _shares_folder(places, job, jobs):
                found[name].append(_several_jobs(traces, names, name))
    return FoundJobs(names, {name: tuple(findings) for name, findings in found.items()})


def windows_of(traces: Sequence[TraceIdentity]) -> list[Indices]:
    """One job's traces by profiled window, in order of time: each process once in each; one window unless one is there twice."""
    everything = list(range(len(traces)))
    if len({trace.rank for trace in traces}) == len(traces):
        return [everything]
    if all(trace.start_ns is not None for trace in traces):
        return _stretches_joined(traces, [[index] for index in everything], 0)
    by_step: dict[int, Indices] = defaultdict(list)
    for index in everything:
        by_step[traces[index].first_step or 0].append(index)
    return [by_step[step] for step in sorted(by_step)]


def _without_copies(traces: Sequence[TraceIdentity]) -> tuple[Indices, list[tuple[int, int]]]:
    """The traces with each content of a rank once, and the copies with their originals."""
    first: dict[tuple[int | None, str], int] = {}
    kept, copies = [], []
    for index, trace in enumerate(traces):
        original = index if trace.content is None else first.setdefault((trace.rank, trace.content), index)
        if original == index:
            kept.append(index)
        else:
            copies.append((index, original))
    return kept, copies


def _grouped(part: Indices, key: Callable[[int], object]) -> list[Indices]:
    """By a recorded value; traces that record none go with the others where there is one value, else by themselves."""
    by_key: dict[object, Indices] = defaultdict(list)
    for index in part:
        by_key[key(index)].append(index)
    known = [found for found in by_key if found is not None]
    return [part] if len(known) <= 1 else list(by_key.values())


def _by_groups(traces: Sequence[TraceIdentity], part: Indices) -> list[Indices]:
    """Traces that list a group of one name and a common rank with different ranks are of different jobs."""
    pieces: list[_OneGroups] = []
    for index in part:
        own = traces[index].groups
        piece = next((one for one in pieces if one.accepts(own)), None)
        if piece is None:
            pieces.append(piece := _OneGroups())
        piece.add(index, own)
    return [piece.members for piece in pieces]


@dataclass
class _OneGroups:
    """Traces whose process groups do not contradict each other."""

    members: Indices = field(default_factory=list)
    groups: set[Group] = field(default_factory=set)
    ranks_of: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def accepts(self, groups: Sequence[Group]) -> bool:
        new = (group for group in groups if group not in self.groups)
        return all(self.ranks_of.get((name, rank), ranks) == ranks for name, ranks in new for rank in ranks)

    def add(self, index: int, groups: Sequence[Group]) -> None:
        self.members.append(index)
        for name, ranks in groups:
            if (name, ranks) not in self.groups:
                self.groups.add((name, ranks))
                self.ranks_of.update(dict.fromkeys(((name, rank) for rank in ranks), ranks))


def _by_time(traces: Sequence[TraceIdentity], part: Indices) -> list[Indices]:
    """By times that overlap, host by host; hosts that each have one stretch of time are one job's, however far their clocks."""
    undated = [index for index in part if traces[index].start_ns is None]
    by_host: dict[str | None, Indices] = defaultdict(list)
    for index in part:
        if traces[index].start_ns is not None:
            by_host[traces[index].host].append(index)
    stretches: list[Indices] = []
    for own in by_host.values():
        on_one_clock = _stretches_joined(traces, [[index] for index in own], _ONE_CLOCK_NS)
        stretches += _joined_windows(traces, on_one_clock)
    if len(by_host) > 1:
        limit = _TWO_CLOCKS_NS if len(stretches) == len(by_host) else _ONE_CLOCK_NS
        stretches = _stretches_joined(traces, stretches, limit)
    if undated:
        return [*stretches, undated] if len(stretches) > 1 else [part]
    return stretches


def _span_ns(traces: Sequence[TraceIdentity], part: Iterable[int]) -> tuple[int, int]:
    starts = [traces[index].start_ns for index in part]
    ends = [traces[index].end_ns for index in part]
    return min(one for one in starts if one is not None), max(one for one in ends if one is not None)


def _stretches_joined(traces: Sequence[TraceIdentity], parts: list[Indices], limit_ns: int) -> list[Indices]:
    """Parts joined where they overlap, or lie no farther apart than the limit."""
    found: list[Indices] = []
    last_ns = 0
    for (start_ns, end_ns), part in sorted((_span_ns(traces, part), part) for part in parts):
        if found and start_ns - last_ns <= limit_ns:
            found[-1] = found[-1] + part
            last_ns = max(last_ns, end_ns)
        else:
            found.append(list(part))
            last_ns = end_ns
    return [sorted(one) for one in found]


def _joined_windows(traces: Sequence[TraceIdentity], stretches: list[Indices]) -> list[Indices]:
    """Stretches of time joined where each is a further window of the same processes, with later steps."""
    found: list[Indices] = []
    for stretch in stretches:
        for earlier in found:
            if _are_later_windows(traces, earlier, stretch):
                earlier += stretch
                break
        else:
            found.append(list(stretch))
    return [sorted(one) for one in found]


def _are_later_windows(traces: Sequence[TraceIdentity], earlier: Indices, later: Indices) -> bool:
    last_step: dict[object, int] = {}
    for index in earlier:
        step = traces[index].last_step
        if (process := _process(traces[index])) is None or step is None:
            return False
        last_step[process] = max(step, last_step.get(process, step))
    return all(
        (first := traces[index].first_step) is not None
        and (process := _process(traces[index])) in last_step
        and first > last_step[process]
        for index in later
    )


def _process(trace: TraceIdentity) -> tuple[str | None, int, int | None] | None:
    return None if trace.process_id is None else (trace.host, trace.process_id, trace.rank)


def _with_unique_ranks(
    traces: Sequence[TraceIdentity], places: Sequence[Path], parts: list[Indices]
) -> tuple[list[Indices], list[Indices]]:
    """Parts whose processes are all different, and those of them that could only be divided into single traces."""
    splits: tuple[Callable[[Indices], list[Indices]], ...] = (
        lambda part: _by_folder(traces, places, part),
        lambda part: _grouped(part, lambda index: traces[index].host),
        lambda part: _by_process_ids(traces, part),
    )
    for split in splits:
        parts = [one for part in parts for one in ([part] if _is_one_job(traces, part) else split(part))]
    apart = [part for part in parts if not _is_one_job(traces, part)]
    return [part for part in parts if part not in apart] + [[index] for part in apart for index in part], apart


def _is_one_job(traces: Sequence[TraceIdentity], part: Indices) -> bool:
    """Whether each rank is there once, or several times as windows of one process with steps of different numbers."""
    by_rank: dict[int | None, Indices] = defaultdict(list)
    for index in part:
        by_rank[traces[index].rank].append(index)
    return all(len(own) == 1 or _are_windows(traces, own) for own in by_rank.values())


def _are_windows(traces: Sequence[TraceIdentity], own: Indices) -> bool:
    ordered = sorted(own, key=lambda index: (traces[index].start_ns or 0, traces[index].first_step or 0))
    return all(_are_later_windows(traces, [one], [other]) for one, other in pairwise(ordered))


def _by_folder(traces: Sequence[TraceIdentity], places: Sequence[Path], part: Indices) -> list[Indices]:
    """By the folders that hold them, as few levels deep as make ranks differ."""
    parts = _folders(places)

    def split(own: Indices, place: tuple[str, ...]) -> list[Indices]:
        inside: dict[tuple[str, ...], Indices] = defaultdict(list)
        for index in own:
            inside[parts[index][: len(place) + 1]].append(index)
        if _is_one_job(traces, own) or set(inside) == {place}:
            return [own]
        return [
            one for folder, below in inside.items() for one in ([below] if folder == place else split(below, folder))
        ]

    return split(part, ())


def _folders(places: Sequence[Path]) -> list[tuple[str, ...]]:
    """The folder of each file, below the folder that contains all of them."""
    absolute = [Path(os.path.abspath(place)).parent for place in places]
    common = Path(os.path.commonpath(absolute))
    return [folder.relative_to(common).parts for folder in absolute]


def _by_process_ids(traces: Sequence[TraceIdentity], part: Indices) -> list[Indices]:
    """Processes of one host in the order of their ids: a launcher starts its ranks one after another."""
    ids = [traces[index].process_id for index in part]
    if any(one is None for one in ids) or len(set(ids)) < len(ids):
        return [part]
    found: list[Indices] = []
    for _, index in sorted((one or 0, index) for one, index in zip(ids, part, strict=True)):
        if not found or traces[index].rank in {traces[one].rank for one in found[-1]}:
            found.append([])
        found[-1].append(index)
    complete = len({len(one) for one in found}) == 1
    return [sorted(one) for one in found] if complete else [part]


def _without_strays(places: Sequence[Path], parts: list[Indices]) -> tuple[list[Indices], list[tuple[int, Indices]]]:
    """The jobs, and single traces that lie among the files of a job of several, each with that job."""
    folders = [os.path.dirname(os.path.abspath(place)) for place in places]
    several = sorted((part for part in parts if len(part) > 1), key=len, reverse=True)
    jobs, strays = [], []
    for part in parts:
        others = [job for job in several if any(folders[one] == folders[part[0]] for one in job)]
        if len(part) == 1 and others:
            strays.append((part[0], others[0]))
        else:
            jobs.append(part)
    return jobs, strays


def _names(traces: Sequence[TraceIdentity], places: Sequence[Path], jobs: list[Indices]) -> dict[str, Indices]:
    """Each job by its folder; jobs of one folder by their number in order of time, single traces by their file."""
    if len(jobs) == 1:
        return {"": jobs[0]}
    parts = _folders([places[index] for job in jobs for index in job])
    of_job: list[tuple[str, ...]] = []
    for job in jobs:
        own, parts = parts[: len(job)], parts[len(job) :]
        of_job.append(_common_parts(own))
    named: dict[str, Indices] = {}
    numbers: Counter[str] = Counter()
    for place, (job, folder) in enumerate(zip(jobs, of_job, strict=True)):
        others = of_job[:place] + of_job[place + 1 :]
        name = "/".join(_shortest(folder, others)) or "."
        if folder in others:
            numbers[name] += 1
            own_name = Path(traces[job[0]].source).name if len(job) == 1 else f"job {numbers[name]}"
            name = own_name if name == "." else f"{name}/{own_name}"
        named[name if name not in named else f"{name} ({len(named) + 1})"] = job
    return {name: named[name] for name in sorted(named, key=lambda name: natural_order(Path(name)))}


def _common_parts(folders: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    common: list[str] = []
    for level in zip(*folders, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return tuple(common)


def _shortest(folder: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """As many levels as distinguish the folder from the others."""
    for depth in range(1, len(folder)):
        if not any(other[:depth] == folder[:depth] for other in others):
            return folder[:depth]
    return folder


def _name_of(index: int, names: Mapping[str, Indices]) -> str:
    """The job of a trace; findings on traces of no job go to the first."""
    return next((name for name, job in names.items() if index in job), next(iter(names)))


def _shares_folder(places: Sequence[Path], job: Indices, jobs: Sequence[Indices]) -> bool:
    own = {os.path.dirname(os.path.abspath(places[index])) for index in job}
    return any(
        os.path.dirname(os.path.abspath(places[index])) in own for other in jobs if other is not job for index in other
    )


def _copied(copy: TraceIdentity, original: TraceIdentity) -> Finding:
    which = "" if original.rank is None else f" of rank {original.rank}"
    return TraceCode.TRACE_COPIED.finding(
        f"{copy.source} holds the same trace{which} as {original.source}: it is counted once"
    )


def _left_out(traces: Sequence[TraceIdentity], index: int, job: Indices) -> Finding:
    reason = (
        "; ".join(_differences(traces, [index], job, "the other traces")) or "another file of the job claims its rank"
    )
    return TraceCode.TRACE_OF_ANOTHER_JOB.finding(
        f"{traces[index].source} was left out, since it is of another job: {reason}"
    )


def _differences(traces: Sequence[TraceIdentity], part: Indices, job: Indices, others: str) -> Iterator[str]:
    """How a part of the traces differs from a job, which the text calls `others`."""
    own_sizes, sizes = ({traces[index].world_size for index in one} - {None} for one in (part, job))
    if own_sizes and sizes and own_sizes != sizes:
        yield f"a world size of {_joined(own_sizes)}, against {_joined(sizes)} of {others}"
    if all(traces[index].start_ns is not None for index in [*part, *job]):
        (start_ns, end_ns), (first_ns, last_ns) = _span_ns(traces, part), _span_ns(traces, job)
        if start_ns > last_ns:
            yield f"recorded {show_time((start_ns - last_ns) / 1e3)} after {others}"
        elif end_ns < first_ns:
            yield f"recorded {show_time((first_ns - end_ns) / 1e3)} before {others}"
    if len(_by_groups(traces, [*job, *part])) > 1:
        yield f"a process group has other ranks than in {others}"
    hosts, other_hosts = ({traces[index].host for index in one} - {None} for one in (part, job))
    if hosts and other_hosts and not hosts & other_hosts:
        yield f"recorded on {_joined(hosts)}"


def _joined(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


def _not_unique(traces: Sequence[TraceIdentity], part: Indices) -> Finding:
    ranks = Counter(traces[index].rank for index in part)
    twice = sorted(rank for rank, count in ranks.items() if rank is not None and count > 1)
    reasons = [f"several files are of rank {_joined(twice)}"] if twice else []
    reasons += [f"{counted(ranks[None], 'file')} without a rank"] if ranks[None] else []
    return TraceCode.RANKS_NOT_UNIQUE.finding(
        f"{' and '.join(reasons)}: nothing recorded shows which of them are of one job, so that each is analysed by itself "
        f"({_listed(traces, part)})"
    )


def _several_jobs(traces: Sequence[TraceIdentity], named: Mapping[str, Indices], name: str) -> Finding:
    first, job = next(iter(named)), named[name]
    message = f"{counted(len(job), 'trace')} in a folder with those of other jobs: {_listed(traces, job)}"
    if name != first:
        message = "; ".join([message, *_differences(traces, job, named[first], first)])
    return TraceCode.SEVERAL_JOBS.finding(message)


def _listed(traces: Sequence[TraceIdentity], part: Indices) -> str:
    named = [Path(traces[index].source).name for index in part[:_NAMED_FILES]]
    more = len(part) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
