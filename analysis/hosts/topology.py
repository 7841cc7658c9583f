"""The switch of each host, from a file of pairs or Slurm's topology.conf."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.store.errors import DpscopeError, unreadable

_PAIR = re.compile(r"(\w+)=(\S+)")
_RANGE = re.compile(r"^(?P<before>[^\[\]]*)\[(?P<inside>[^\[\]]+)\](?P<after>.*)$")
_PIECE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_HOSTS = 1_000_000  # in one range: more is a typing error
_HEADING = ["host", "switch"]
_EXAMPLE = "write HOST SWITCH, or SwitchName=s0 Nodes=n[0-15]"


def read_topology(path: Path) -> dict[str, str]:
    """Read the switch of each host. A line holds a host and its switch, separated by a blank, comma or colon, or is a line of
    Slurm's topology.conf: `SwitchName=s0 Nodes=n[0000-0015]`, or for blocks `BlockName=b0 Nodes=...`. `#` begins a comment.

    Raises DpscopeError for a file that cannot be read, a line of neither form, and a host on two switches.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{path} is not a text file; name a file that lists hosts and their switches") from error
    switches: dict[str, str] = {}
    begun = ""  # of a line that ends with a backslash, which is joined with the next one
    for number, one in enumerate(text.splitlines(), 1):
        line = f"{begun} {one.partition('#')[0].strip()}".strip()
        begun = line.removesuffix("\\").strip() if line.endswith("\\") else ""
        if line.endswith("\\") or not line:
            continue
        try:
            for host, switch in _hosts_of(line):
                if switches.setdefault(host, switch) != switch:
                    raise DpscopeError(
                        f"{path}, line {number}: {host} is on {switches[host]} and on {switch}; remove one of them"
                    )
        except ValueError as error:
            raise DpscopeError(f"{path}, line {number}: {error}; {_EXAMPLE}") from error
    if not switches:
        raise DpscopeError(f"{path} contains no host; write a host and its switch on each line")
    return switches


def _hosts_of(line: str) -> list[tuple[str, str]]:
    """Hosts with their switch; empty for a switch of switches, an option of Slurm, a heading. Raises ValueError."""
    given = {name.lower(): value.strip("\"'") for name, value in _PAIR.findall(line)}
    switch = given.get("switchname") or given.get("blockname")
    if "nodes" in given and switch is not None:
        return [(host, switch) for host in expand_hosts(given["nodes"])]
    if (switch is not None and "switches" in given) or "blocksizes" in given:
        return []
    words = [word for word in re.split(r"[\s,]+|:\s+", line) if word]
    if len(words) != 2 or given:
        raise ValueError(f"{line[:60]!r} is not a host and its switch")
    named = [] if [word.lower() for word in words] == _HEADING else expand_hosts(words[0])
    return [(host, words[1]) for host in named]


def expand_hosts(text: str) -> Iterator[str]:
    """Expand a host list in Slurm's notation; raises ValueError for an invalid range.

    >>> list(expand_hosts("n[08-10,12],login"))
    ['n08', 'n09', 'n10', 'n12', 'login']
    """
    for part in re.split(r",(?![^\[]*\])", text):
        found = _RANGE.match(part)
        if found is None:
            if "[" in part or "]" in part:
                raise ValueError(f"{part[:60]!r} has an unmatched bracket")
            yield part
            continue
        for piece in found["inside"].split(","):
            ends = _PIECE.fullmatch(piece)
            first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
            if ends is None or not first <= last < first + _MOST_HOSTS:
                raise ValueError(f"[{piece[:60]}] is not a range of hosts, such as [0-15]")
            for number in range(first, last + 1):
                yield from expand_hosts(f"{found['before']}{number:0{len(ends[1])}d}{found['after']}")


_NONE: Mapping[str, str] = MappingProxyType({})


def rank_places(summaries: Sequence[TraceSummary], switches: Mapping[str, str] = _NONE) -> Table:
    """A row for each known rank: `rank`, `host`, `local_rank`, `switch`; NA if unknown.

    The host is the one in the trace, else the one that reduced it locally. torchrun numbers ranks node by node, so the local
    rank is the rank modulo the ranks per node if each host holds one such block; else the position among its host's ranks.
    Raises DpscopeError if `switches` contains none of the hosts.
    """
    known = [one for one in summaries if one.rank is not None]
    hosts = [one.host or one.read_on for one in known]
    # By its full or short name.
    found = [None if host is None else switches.get(host) or switches.get(host.partition(".")[0]) for host in hosts]
    named = [host for host in hosts if host is not None]
    if switches and named and not any(found):
        raise DpscopeError(
            f"--topology lists none of the hosts in these traces, such as {named[0]}; add them with their switches"
        )
    table = Table.of(rank=[one.rank for one in known], host=hosts, local_rank=[None] * len(known), switch=found)
    table = table.take(table.group("rank").first)
    rows = np.flatnonzero(table.known("host"))
    rows = rows[np.argsort(table["rank"][rows], kind="stable")]
    local_rank = table["local_rank"].copy()
    if len(rows):
        placed = table.take(rows)
        of_host = placed.group("host")
        most = int(of_host.sizes.max())
        blocks = placed.assign(block=placed["rank"] // most)
        pairs = blocks.take(blocks.group("host", "block").first)
        aligned = len(pairs) == len(of_host) == len(pairs.group("block"))
        local_rank[rows] = placed["rank"] % most if aligned else of_host.places
    return table.assign(local_rank=local_rank)
