"""Names of hosts, users and networks in what is given to strangers, replaced by numbers. Imports no torch.

Host names go wherever they stand as a word of their own; a user's name only where it is part of a path, since words such as
`root` mean something else everywhere. The same name always gets the same number, so that two hosts stay two hosts.
"""

import getpass
import ipaddress
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from dpscope.profiling.records.strategies import STRATEGIES

_HOME = re.compile(r"(?P<homes>/(?:home|Users|users|u|scratch|work)/)(?P<user>[^/\s\"':,;]+)")
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){3,7}(?![\w.:]))"
)
_LOCAL = frozenset({"localhost", "localhost.localdomain"})
_HOST_KEYS = ("hostname", "host", "host_name")
# A host of such a name is replaced where a field tells the host, and stays where the word may mean what it says.
_USUAL_WORDS = frozenset(
    (
        *STRATEGIES,
        *(
            "cpu",
            "gpu",
            "cuda",
            "nccl",
            "gloo",
            "train",
            "test",
            "node",
            "model",
            "data",
            "linux",
        ),
        *("host", "none", "on", "off", "weak", "strong", "default", "ok", "failed"),
    )
)


class Anonymizer:
    """Replaces the names of these hosts, and what else tells who and where: homes, network addresses, folders."""

    def __init__(self, hosts: Iterable[str], folders: Iterable[Path] = ()) -> None:
        """`hosts` as they were recorded, the machine's own not among them; `folders` are told as their last name alone."""
        self._hosts: dict[str, str] = {}
        for host in (*hosts, socket.gethostname()):
            self._add(host)
        self._addresses: dict[str, str] = {}
        self._user = _user()
        self._users = {} if self._user is None else {self._user: "user0"}
        self._folders = sorted({str(folder.absolute()) for folder in folders}, key=len, reverse=True)
        names = sorted(
            self._hosts.keys() - _USUAL_WORDS, key=len, reverse=True
        )  # a long name before one that begins it
        self._any_host = re.compile("|".join(map(_as_word, names))) if names else None

    def _add(self, host: str) -> None:
        short = host.partition(".")[0]
        if not host or host in _LOCAL:
            return
        number = self._hosts.setdefault(short, f"host{len(set(self._hosts.values()))}")
        self._hosts.setdefault(host, number)

    @property
    def names(self) -> list[str]:
        """The hosts that are replaced."""
        return list(self._hosts)

    def text(self, text: str) -> str:
        """The text without these names."""
        for folder in self._folders:
            text = text.replace(folder, Path(folder).name)
        text = _HOME.sub(self._home, text)
        if self._user is not None:
            text = re.sub(rf"/{re.escape(self._user)}(?=[/\s\"',]|$)", "/user0", text)
        text = _ADDRESS.sub(self._address, text)
        return text if self._any_host is None else self._any_host.sub(lambda found: self._hosts[found[0]], text)

    def value(self, value: object) -> object:
        """Plain data with every string replaced so; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                key: self._hosts.get(one, one) if key in _HOST_KEYS and isinstance(one, str) else self.value(one)
                for key, one in value.items()
            }
        return [self.value(one) for one in value] if isinstance(value, list) else value

    def _home(self, found: re.Match[str]) -> str:
        number = self._users.setdefault(found["user"], f"user{len(self._users)}")
        return f"{found['homes']}{number}"

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:  # a version, a time
            return found[0]
        if address.is_loopback or address.is_unspecified:
            return found[0]
        return self._addresses.setdefault(str(address), f"address{len(self._addresses)}")


def _as_word(host: str) -> str:
    """The expression for a host's name that stands alone, or in a file's name as tracers write it: gpu07_4711.pt.trace.json.

    A name with a digit in it is hardly part of another word, so that an underscore ends it; one without may be.
    """
    if any(map(str.isdigit, host)):
        return rf"(?<![A-Za-z0-9.-]){re.escape(host)}(?![A-Za-z0-9-])"
    return rf"(?<![\w.-]){re.escape(host)}(?![A-Za-z0-9-]|_(?!\d+\.))"


def _user() -> str | None:
    """The user's name, None where it is not known or tells nobody."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user without an entry, as in containers
        return None
    return None if name in ("root", "user", "ubuntu", "nobody") else name
