"""Ranks of one job started as torchrun would start them, without torchrun, which takes seconds more."""

import os
import socket
import subprocess


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def one_process(command: list[str]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of the only rank."""
    return _ranks(command, 1)


def two_processes(command: list[str]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each of two ranks."""
    return _ranks(command, 2)


def _ranks(command: list[str], count: int) -> list[tuple[int, str, str]]:
    size = str(count)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    ranks = [
        subprocess.Popen(
            command,
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
