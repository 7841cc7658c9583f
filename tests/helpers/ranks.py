"""Ranks of one job started as torchrun would start them, without torchrun, which takes seconds more."""

import contextlib
import os
import random
import socket
import subprocess
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

_LONGEST_S = 240  # of a job's first rank, and of the others after it
_AFTER_FAILURE_S = 30  # for ranks that wait for one that has failed


def free_port() -> int:
    """A free port below those that the kernel gives to others, which might take it before it is used."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


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
    with ThreadPoolExecutor(count) as waiting:
        texts = [waiting.submit(process.communicate) for process in ranks]
        wait(texts, _LONGEST_S, FIRST_COMPLETED)
        wait(texts, _LONGEST_S if all(process.returncode in (None, 0) for process in ranks) else _AFTER_FAILURE_S)
        for process in ranks:
            process.kill()  # nothing where it has ended
    return [(process.returncode, *text.result()) for process, text in zip(ranks, texts, strict=True)]
