"""Which switch each host hangs on: a file of pairs, or Slurm's topology.conf."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dpscope.profiling.store.errors import DpscopeError, unreadable

_PAIR = re.compile(r"(\w+)=(\S+)")
_RANGE = re.compile(r"^(?P<before>[^\[\]]*)\[(?P<inside>[^\[\]]+)\](?P<after>.*)$")
_PIECE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_HOSTS = 1_000_000  # of one range: more is a slip of the pen
_HEADING = ["host", "switch"]
_EXAMPLE = "write those, or SwitchName=s0 Nodes=n[0-15]"


def read_topology(path: Path) -> dict[str, str]:
    """Switch by host. A line names a host and its switch, with a blank, comma or colon between, or is one of Slurm's
    topology.conf: `SwitchName=s0 Nodes=n[0000-0015]`, of block topologies `BlockName=b0 Nodes=...`; what `#` begins is left out.

    Raises DpscopeError for a file that cannot be read, a line that is neither, and a host on two switches.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{path} is not a text file; name a file that lists hosts and their switches") from error
    switches: dict[str, str] = {}
    for number, said in _lines(text):
        try:
            found = _told(said)
        except ValueError as error:
            raise DpscopeError(f"{path}, line {number}: {error}; {_EXAMPLE}") from error
        for host, switch in found:
            if switches.setdefault(host, switch) != switch:
                raise DpscopeError(
                    f"{path}, line {number}: {host} is on {switches[host]} already, and on {switch}; leave one"
                )
    if not switches:
        raise DpscopeError(f"{path} names no host; write a host and its switch on each line")
    return switches


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """What lines say, without comments, with the number of the first one of those that a backslash joins."""
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        said = f"{begun} {line.partition('#')[0].strip()}".strip()
        if said.endswith("\\"):
            begun = said[:-1].strip()
            continue
        begun = ""
        if said:
            yield number, said


def _told(said: str) -> list[tuple[str, str]]:
    """Hosts and their switch; none for a switch of switches, an option of Slurm's, a heading. Raises ValueError."""
    given = {name.lower(): value.strip("\"'") for name, value in _PAIR.findall(said)}
    switch = given.get("switchname") or given.get("blockname")
    if "nodes" in given and switch is not None:
        return [(host, switch) for host in expand_hosts(given["nodes"])]
    if (switch is not None and "switches" in given) or "blocksizes" in given:
        return []
    words = [word for word in re.split(r"[\s,]+|:\s+", said) if word]
    if len(words) != 2 or given:
        raise ValueError(f"{said[:60]!r} is not a host and its switch")
    named = [] if [word.lower() for word in words] == _HEADING else expand_hosts(words[0])
    return [(host, words[1]) for host in named]


def expand_hosts(text: str) -> Iterator[str]:
    """The hosts of a list as Slurm writes it; raises ValueError for a range that is none.

    >>> list(expand_hosts("n[08-10,12],login"))
    ['n08', 'n09', 'n10', 'n12', 'login']
    """
    for part in re.split(r",(?![^\[]*\])", text):
        found = _RANGE.match(part)
        if found is None:
            if "[" in part or "]" in part:
                raise ValueError(f"{part[:60]!r} has a bracket without its other one")
            yield part
            continue
        for piece in found["inside"].split(","):
            ends = _PIECE.fullmatch(piece)
            first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
            if ends is None or not first <= last < first + _MOST_HOSTS:
                raise ValueError(f"[{piece[:60]}] is no range of hosts, such as [0-15]")
            for number in range(first, last + 1):
                yield from expand_hosts(f"{found['before']}{number:0{len(ends[1])}d}{found['after']}")


def switch_of(host: str | None, switches: Mapping[str, str]) -> str | None:
    """A host's switch, by its whole name or its short one; None where it is not known."""
    if host is None:
        return None
    return switches.get(host) or switches.get(host.partition(".")[0])
