"""Which switch each host hangs on: a file of pairs, or Slurm's topology.conf."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dpscope.profiling.store.errors import DpscopeError, unreadable

_SWITCH = re.compile(r"SwitchName=(\S+)(?=\s).*?\bNodes=(\S+)", re.IGNORECASE)
_RANGE = re.compile(r"^(?P<before>[^\[]*)\[(?P<inside>[^\]]+)\](?P<after>.*)$")


def read_topology(path: Path) -> dict[str, str]:
    """Switch by host. A line names a host and its switch, with a blank or comma between, or is one of Slurm's topology.conf:
    `SwitchName=s0 Nodes=n[0000-0015]`; what `#` begins is left out.

    Raises DpscopeError for a file that cannot be read and for a line that is neither.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{path} is not a text file; name a file that lists hosts and their switches") from error
    switches: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        said = line.partition("#")[0].strip()
        if not said or re.search(r"SwitchName=\S+.*\bSwitches=", said, re.IGNORECASE):
            continue
        words = re.split(r"[\s,]+", said)
        if found := _SWITCH.match(said):
            switches |= dict.fromkeys(expand_hosts(found[2]), found[1])
        elif len(words) == 2 and "=" not in said:
            switches[words[0]] = words[1]
        else:
            raise DpscopeError(
                f"{path}, line {number}: {said[:60]!r} is not a host and its switch; write those, or SwitchName=s0 Nodes=n[0-15]"
            )
    if not switches:
        raise DpscopeError(f"{path} names no host; write a host and its switch on each line")
    return switches


def expand_hosts(text: str) -> Iterator[str]:
    """The hosts of a list as Slurm writes it.

    >>> list(expand_hosts("n[08-10,12],login"))
    ['n08', 'n09', 'n10', 'n12', 'login']
    """
    for part in re.split(r",(?![^\[]*\])", text):
        found = _RANGE.match(part)
        if found is None:
            yield part
            continue
        for piece in found["inside"].split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield from expand_hosts(f"{found['before']}{number:0{len(first)}d}{found['after']}")


def switch_of(host: str | None, switches: Mapping[str, str]) -> str | None:
    """A host's switch, by its whole name or its short one; None where it is not known."""
    if host is None:
        return None
    return switches.get(host) or switches.get(host.partition(".")[0])
