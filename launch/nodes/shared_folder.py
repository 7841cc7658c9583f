"""The run folder as what all nodes share: a file by which they find each other and know that it is the same. Imports no torch.

Who may read the folder may take part, and nobody else: the file holds a word that both ends of a connection prove to know
(HMAC, RFC 2104), and never send.
"""

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dpscope.launch.nodes.place import Address
from dpscope.profiling.store.errors import DpscopeError

_PREFIX = ".tmp-nodes-"  # as what a command that was killed while it began leaves
SEEN_WITHIN_S = 10.0  # a network's file system shows a new file of another host's late, though seldom by so much
_POLL_S = 0.2


@dataclass(frozen=True)
class Meeting:
    """What the file says: of which start it is, where node 0 is met, and the word."""

    job: str | None
    addresses: tuple[Address, ...]
    word: str

    def proof(self, node: int, nonce: str) -> str:
        """That the node which says this knows the word; nothing that another node has said can be said again in its place."""
        return hmac.new(self.word.encode(), f"{node} {nonce}".encode(), hashlib.sha256).hexdigest()

    def proves(self, proof: str, node: int, nonce: str) -> bool:
        """Whether that node, at the other end, knows it, too."""
        return hmac.compare_digest(self.proof(node, nonce).encode(), proof.encode())


@contextmanager
def announced(out: Path, job: str | None, addresses: tuple[Address, ...]) -> Iterator[tuple[str, Meeting]]:
    """Write the file for as long as the block runs; yields its name and what it says."""
    meeting = Meeting(job, addresses, secrets.token_hex(16))
    content = {"job": job, "addresses": [[one.host, one.port] for one in addresses], "word": meeting.word}
    path = out / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{path.name}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DpscopeError(f"--out {out}: cannot write there ({error.strerror}); name another folder") from error
    try:
        yield path.name, meeting
    finally:
        path.unlink(missing_ok=True)


def meetings_of(out: Path, job: str) -> list[Meeting]:
    """What is announced in a folder for a start, the newest first."""
    with suppress(OSError):
        paths = sorted(out.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [found for path in paths if (found := _read(path)) is not None and found.job == job]
    return []


def named_meeting(out: Path, name: str, wait_s: float) -> Meeting | None:
    """The file of that name, None if it is not seen within `wait_s`."""
    if Path(name).name != name or not name.startswith(_PREFIX):
        return None
    deadline = time.monotonic() + wait_s
    while (found := _read(out / name)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _read(path: Path) -> Meeting | None:
    try:
        content = json.loads(path.read_text())
        addresses = tuple(Address(str(host), int(port)) for host, port in content["addresses"])
        return Meeting(content["job"], addresses, str(content["word"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
