"""Ranks of one job started as torchrun would start them, without torchrun, which takes seconds more."""

import os
import socket
import subprocess
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def one_process(command: list[str]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of the only rank."""
    return ended_ranks(command, 1)


def two_processes(command: list[str]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each of two ranks."""
    return ended_ranks(command, 2)


def run_ranks(command: list[str], count: int, cwd: Path | None = None) -> None:
    """Run a job that must succeed on every rank."""
    ended = ended_ranks(command, count, cwd)
    assert [status for status, _, _ in ended] == [0] * count, "\n".join(errors for _, _, errors in ended)


def ended_ranks(command: list[str], count: int, cwd: Path | None = None) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each rank."""
    size = str(count)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    ranks = [
        subprocess.Popen(
            command,
            cwd=cwd,
            env={
                **os.environ,
                **place,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "GROUP_RANK": "0",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    ended = [process.communicate(timeout=240) for process in ranks]
    return [(process.returncode, *texts) for process, texts in zip(ranks, ended, strict=True)]
