"""Replaces names of hosts, users and networks by numbers in files that are given to others.

Host names are replaced wherever they occur as separate words; user names only in paths, since words
such as `root` have other meanings elsewhere. A name always gets the same number, so that different
hosts remain distinguishable.
"""

import getpass
import ipaddress
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from dpscope.profiling.records.redaction import options_of, variables_without_secrets
from dpscope.profiling.records.strategies import STRATEGIES

_HOME = re.compile(r"(?P<homes>/(?:home|Users|users|u|scratch|work)/)(?P<user>[^/\s\"':,;]+)")
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){3,7}(?![\w.:]))"
)
_HOST_KEYS = ("hostname", "host", "host_name")
_SCRIPT_KEY, _VARIABLES_KEY = "script", "settings"
# Hosts with these names are replaced only in fields for host names, since elsewhere the words may
# have their usual meaning.
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
            "host",
        ),
        *("none", "on", "off", "weak", "strong", "default", "ok", "failed"),
    )
)


class Anonymizer:
    """Replaces the names of these hosts, home folders, network addresses and the paths of
    folders.
    """

    def __init__(
        self, hosts: Iterable[str], folders: Iterable[Path] = (), scripts: Iterable[str] = ()
    ) -> None:
        """`hosts` are recorded host names (this machine's is added); paths of `folders` become
        numbers, too.

        Of the commands of attached `scripts` only the names of their options are kept.
        """
        self._scripts = {script: options_of(script) for script in scripts}
        self._hosts: dict[str, str] = {}
        for host in (*hosts, socket.gethostname()):
            if host and host not in ("localhost", "localhost.localdomain"):
                number = self._hosts.setdefault(
                    host.partition(".")[0], f"host{len(set(self._hosts.values()))}"
                )
                self._hosts.setdefault(host, number)
        self._addresses: dict[str, str] = {}
        self._user = _user()
        self._users = {} if self._user is None else {self._user: "user0"}
        paths = sorted({str(folder.absolute()) for folder in folders}, key=len, reverse=True)
        # a folder within another one comes before it
        self._folders = {path: f"folder{number}" for number, path in enumerate(paths)}
        # a name before the beginning of it
        names = sorted(self._hosts.keys() - _USUAL_WORDS, key=len, reverse=True)
        self._any_host = re.compile("|".join(map(_as_word, names))) if names else None

    def text(self, text: str) -> str:
        """The text with these names replaced."""
        for script, options in self._scripts.items():
            text = text.replace(script, options)
        for folder, number in self._folders.items():
            text = text.replace(folder, number)
        text = _HOME.sub(
            lambda at: at["homes"] + self._users.setdefault(at["user"], f"user{len(self._users)}"),
            text,
        )
        if self._user is not None:
            text = re.sub(rf"/{re.escape(self._user)}(?=[/\s\"',]|$)", "/user0", text)
        text = _ADDRESS.sub(self._address, text)
        return (
            text
            if self._any_host is None
            else self._any_host.sub(lambda found: self._hosts[found[0]], text)
        )

    def value(self, value: object) -> object:
        """Plain data with names replaced in every string except keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self._field(key, one) for key, one in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list) else value

    def _field(self, key: str, value: object) -> object:
        if key in _HOST_KEYS and isinstance(value, str):
            return self._hosts.get(value, value)
        if key == _SCRIPT_KEY and isinstance(value, str):
            return self.text(options_of(value))
        if key == _VARIABLES_KEY and isinstance(value, dict):
            texts = {name: one for name, one in value.items() if isinstance(one, str)}
            value = value | variables_without_secrets(texts)
        return self.value(value)

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:  # a version, a time
            return found[0]
        if address.is_loopback or address.is_unspecified:
            return found[0]
        return self._addresses.setdefault(str(address), f"address{len(self._addresses)}")


def _as_word(host: str) -> str:
    """A pattern for a host's name as a separate word, or in a tracer's file name such as
    gpu07_4711.pt.trace.json.

    An underscore ends a name that contains a digit, since it is unlikely to be part of another
    word.
    """
    if any(map(str.isdigit, host)):
        return rf"(?<![A-Za-z0-9.-]){re.escape(host)}(?![A-Za-z0-9-])"
    return rf"(?<![\w.-]){re.escape(host)}(?![A-Za-z0-9-]|_(?!\d+\.))"


def _user() -> str | None:
    """The user's name; None if it is unknown or does not identify a person."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user without an entry in the database, as in containers
        return None
    return None if name in ("root", "user", "ubuntu", "nobody") else name
