"""Where ranks run: hosts, local ranks and switches, and many ranks summarised by them: medians,
percentiles, who waits for whom.

The switch of each host comes from a file of pairs or Slurm's topology.conf.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpscope.analysis.text.units import as_ranges, show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import last_place
from dpscope.analysis.traces.ranks.matching import ENOUGH_RANKS
from dpscope.analysis.traces.ranks.not_split import missing_ranks
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.analysis.traces.ranks.whole_steps import whole_steps
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError, unreadable

_PAIR = re.compile(r"(\w+)=(\S+)")
_MOST_HOSTS = 1_000_000  # in one range: more is a typing error
_EXAMPLE = "write HOST SWITCH, or SwitchName=s0 Nodes=n[0-15]"


def read_topology(path: Path) -> dict[str, str]:
    """Read the switch of each host. A line holds a host and its switch, separated by a blank, or is
    a line of Slurm's topology.conf: `SwitchName=s0 Nodes=n[0000-0015]`, or for blocks
    `BlockName=b0 Nodes=...`. `#` begins a comment.

    Raises DpscopeError for a file that cannot be read, a line of neither form, and a host on two
    switches.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DpscopeError(
            f"{unreadable(path, error)}; name a file that lists hosts and their switches"
        ) from error
    except UnicodeDecodeError as error:
        raise DpscopeError(
            f"{path} is not a text file; name a file that lists hosts and their switches"
        ) from error
    switches: dict[str, str] = {}
    for line in _lines(text):
        try:
            for host, switch in _hosts_of(line):
                if switches.setdefault(host, switch) != switch:
                    raise ValueError(f"{host} is on {switches[host]} and on {switch}")
        except ValueError as error:
            raise DpscopeError(f"{path}, {line[:60]!r}: {error}; {_EXAMPLE}") from error
    if not switches:
        raise DpscopeError(f"{path} contains no host; write a host and its switch on each line")
    return switches


def _lines(text: str) -> Iterator[str]:
    """Without comments; a line that ends with a backslash goes on in the next one."""
    uncommented = re.sub(r"#.*", "", text)
    for line in re.sub(r"\\\s*\n", " ", uncommented).splitlines():
        if line := line.strip():
            yield line


def _hosts_of(line: str) -> list[tuple[str, str]]:
    """Hosts with their switch; empty for a switch of switches, and an option of Slurm. Raises
    ValueError.
    """
    options = {name.lower(): value.strip("\"'") for name, value in _PAIR.findall(line)}
    if options.keys() & {"switches", "blocksizes"}:
        return []
    words = line.split()
    if options:
        switch = options.get("switchname", options.get("blockname"))
        words = [word for word in (options.get("nodes"), switch) if word is not None]
    if len(words) != 2:
        raise ValueError("it is not a host and its switch")
    hosts, switch = words
    return [(host, switch) for host in expand_hosts(hosts)]


def expand_hosts(text: str) -> Iterator[str]:
    """Expand a host list in Slurm's notation; raises ValueError for an invalid range.

    >>> list(expand_hosts("n[08-10,12],login"))
    ['n08', 'n09', 'n10', 'n12', 'login']
    """
    for part in re.split(r",(?![^\[]*\])", text):
        before, begun, rest = part.partition("[")
        if not begun:
            yield part
            continue
        inside, closed, after = rest.partition("]")
        if not closed:
            raise ValueError(f"{part[:60]!r} has an unmatched bracket")
        for piece in inside.split(","):
            for number in _range(piece):
                yield from expand_hosts(before + number + after)


def _range(text: str) -> Iterator[str]:
    """The numbers of a range such as 08-10, with as many digits as its first."""
    first, _, last = text.partition("-")
    ends = [first, last or first]
    if not all(end.isdecimal() and len(end) < 10 for end in ends):
        raise ValueError(f"[{text[:60]}] is not a range of hosts, such as [0-15]")
    low, high = map(int, ends)
    if not low <= high < low + _MOST_HOSTS:
        raise ValueError(f"[{text[:60]}] is not a range of hosts, such as [0-15]")
    for number in range(low, high + 1):
        yield f"{number:0{len(first)}d}"


def rank_places(summaries: Sequence[TraceSummary], switches: Mapping[str, str]) -> Table:
    """A row for each known rank: `rank`, `host`, `local_rank`, `switch`; NA if unknown.

    The host is the one in the trace, else the one that reduced it locally. torchrun numbers ranks
    node by node, so the local rank is the rank modulo the ranks per node if each host holds one
    such block; else the position among its host's ranks. Raises DpscopeError if `switches` contains
    none of the hosts.
    """
    numbered = [summary for summary in summaries if summary.rank is not None]
    hosts = [place.host or place.read_on for place in numbered]
    # By its full or short name.
    switch_of_host = [
        None if host is None else switches.get(host) or switches.get(host.partition(".")[0])
        for host in hosts
    ]
    named = [host for host in hosts if host is not None]
    if switches and named and not any(switch_of_host):
        raise DpscopeError(
            f"--topology lists none of the hosts in these traces, such as {named[0]}; add them with their switches"
        )
    table = Table.of(
        rank=[place.rank for place in numbered],
        host=hosts,
        local_rank=[None] * len(numbered),
        switch=switch_of_host,
    )
    table = table.take(table.group("rank").first)
    rows = np.flatnonzero(table.known("host"))
    rows = rows[np.argsort(table["rank"][rows], kind="stable")]
    placed = table.take(rows)
    of_host = placed.group("host")
    most = int(of_host.sizes.max(initial=1))
    blocks = placed.assign(block=placed["rank"] // most)
    pairs = blocks.group("host", "block")
    aligned = len(pairs) == len(of_host) == len(blocks.group("block"))
    local_rank = table["local_rank"].copy()
    local_rank[rows] = placed["rank"] % most if aligned else of_host.places
    return table.assign(local_rank=local_rank)


QUANTITIES = {
    "step_us": "step",
    "compute_us": "compute",
    "communication_us": "communication",
    "exposed_us": "exposed",
    "wait_us": "waits, hidden too",
    "exposed_wait_us": "exposed waiting",
    "idle_us": "idle",
    "lateness_us": "others wait for it, hidden too",
}
"""Means over a rank's whole steps, and what tables call them.

`lateness_us` is how long another rank waits for it in a step, mean over the others.
"""

FOLDS = ("host", "local_rank", "switch")
_FAR = 6.0  # median absolute deviations above the median, beyond which a rank is an outlier


@dataclass(frozen=True)
class RankSpread:
    """A quantity over ranks in microseconds; `far` counts ranks more than _FAR median absolute
    deviations above the median.
    """

    quantity: str
    ranks: int
    median_us: float
    low_us: float  # 5%
    high_us: float  # 95%
    worst_us: float
    worst_rank: int
    far: int


def rank_means(analysis: Job) -> Table:
    """`rank` and QUANTITIES of each known rank: means over whole windows, or over all if none is
    whole.
    """
    steps = analysis.tables.steps
    chosen = whole_steps(steps.with_known("rank"))
    ranks = chosen.group("rank", in_order=True)
    names = [name for name in QUANTITIES if name in chosen]
    means = (
        chosen.take(ranks.first)
        .select(("rank",))
        .assign(**{name: ranks.means(chosen[name]) for name in names})
    )
    if not analysis.tables.collectives.known("wait_us").any():
        return means.assign(lateness_us=None)
    lateness_us = _of_late_ranks(analysis.waits_caused, "wait_per_step_us", means)
    return means.assign(lateness_us=lateness_us / max(len(means) - 1, 1))


def _of_late_ranks(caused: Table, column: str, ranks: Table) -> FloatColumn:
    """For each row of `ranks`, the sum of a column of `waits_by_pair` over the rows in which its
    rank is the late one.
    """
    late = caused.group("late_rank")
    late_ranks = Table.of(rank=caused["late_rank"][late.first])
    return np.append(late.sums(caused[column]), 0.0)[ranks.places_in(late_ranks, ("rank",))]


def spreads(means: Table) -> list[RankSpread]:
    """The spread of each quantity in `rank_means` that is known for any rank."""
    by_quantity = []
    for name in QUANTITIES:
        measured = means.with_known(name)
        if not len(measured):
            continue
        values = measured[name]
        median = float(np.median(values))
        far = values > median + _FAR * float(np.median(np.abs(values - median)))
        low, high = np.quantile(values, (0.05, 0.95)).tolist()
        worst, worst_rank = float(values.max()), int(measured["rank"][values.argmax()])
        by_quantity.append(
            RankSpread(name, len(values), median, low, high, worst, worst_rank, int(far.sum()))
        )
    return by_quantity


def fold(analysis: Job, means: Table, places: Table, by: str) -> Table:
    """Waiting by one of FOLDS, a row each, largest cause first: `ranks`, `wait_us`, `caused_share`;
    empty without waits.

    `wait_us` is the mean wait of its ranks in a step, `caused_share` the part of all waiting that
    its ranks cause, 0..1.
    """
    placed, caused = places.with_known(by), analysis.waits_caused
    if not len(caused):
        placed = placed.take(np.zeros(len(placed), dtype=bool))
    groups = placed.group(by, in_order=True)
    wait_us = np.append(means["wait_us"], np.nan)[placed.places_in(means, ("rank",))]
    folded = placed.take(groups.first).select((by,))
    folded = folded.assign(
        ranks=groups.sizes,
        wait_us=groups.means(wait_us),
        caused_share=groups.sums(_of_late_ranks(caused, "wait_share", placed)),
    )
    return folded.take(np.argsort(-folded["caused_share"], kind="stable"))


def with_host_findings(analysis: Job, places: Table) -> Job:
    """The analysis with findings about its hosts and missing ranks after its others."""
    return analysis.with_findings(*_missing(analysis), *_node(analysis, places))


def _missing(analysis: Job) -> Iterator[Finding]:
    world_size, summaries = analysis.world_size, analysis.summaries
    missing = missing_ranks([summary.rank for summary in summaries], world_size)
    if not missing or world_size is None or len(summaries) < 2:
        return
    read = world_size - len(missing)
    waits = (
        f"transfer and waiting of the whole group are computed from {read:,} of {counted(world_size, 'rank')}, and "
        "transfer is an upper bound"
        if read >= ENOUGH_RANKS * world_size
        else "collectives that include missing ranks have no transfer and no wait"
    )
    yield TraceCode.RANKS_MISSING.finding(
        f"{read:,} of {counted(world_size, 'rank')} were read, missing: {as_ranges(missing)}; {waits}"
    )


def _node(analysis: Job, places: Table) -> Iterator[Finding]:
    """Only for jobs on several hosts."""
    caused, placed = analysis.waits_caused, places.with_known("host")
    hosts = placed.group("host", in_order=True)
    if not len(caused) or len(hosts) < 2:
        return
    host_of = dict(zip(placed["rank"].tolist(), hosts.code.tolist(), strict=True))
    last = last_place(analysis.step_collectives, host_of)
    if last is None or not last.stands_out or last.rank == UNKNOWN:
        return
    host, shares = last.rank, _of_late_ranks(caused, "wait_share", placed)
    share = float(hosts.sums(shares)[host])
    of_host = np.where(hosts.code == host, shares, -1.0)
    (worst,) = placed.take(np.array([of_host.argmax()])).records()
    of_worst = show_share(of_host.max() / share)
    yield TraceCode.WAITING_FOR_NODE.finding(
        f"node {worst['host']} causes {show_share(share)} of all waiting; {of_worst} of that is "
        f"for its local rank {worst['local_rank']} (rank {worst['rank']}){'' if last.significant else f'; {last.doubt}'}"
    )
