"""Ranks of one job started as torchrun would start them, without torchrun, which takes seconds
more.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.helpers.paths import ROOT

_LONGEST_S = 240


def free_port() -> int:
    """A free port below those that the kernel gives to others, which might take it before it is
    used.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def run_ranks(command: list[str], count: int, cwd: Path | None = None) -> None:
    """Run a job that must succeed on every rank."""
    ended = ended_ranks(command, count, cwd)
    assert [status for status, _, _ in ended] == [0] * count, "\n".join(
        errors for _, _, errors in ended
    )


def ended_ranks(
    command: list[str], count: int, cwd: Path | None = None
) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each rank of a Python command; torch is imported once for
    all of them.
    """
    size = str(count)
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
    }
    python, *program = command
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [python, str(ROOT / "tests" / "helpers" / "forked_ranks.py"), folder, size, *program],
            cwd=cwd,
            env={**os.environ, **place, "GROUP_RANK": "0"},
            stdout=subprocess.PIPE,
            timeout=_LONGEST_S,
            check=True,
        )
        texts = [
            [Path(folder, f"{rank}.{end}").read_text() for end in ("out", "err")]
            for rank in range(count)
        ]
    return [
        (status, output, errors)
        for status, (output, errors) in zip(json.loads(ended.stdout), texts, strict=True)
    ]
