"""One dpscope command on every host, as people and launchers start it, and what became of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.hosts import Host
from tests.helpers.paths import USER_MODELS
from tests.helpers.words import words

LIMIT_S = 240
TINY = words(
    "--device cpu --model tiny_models:tiny --batch-size 2 --samples 64 --timeout 200 "
    "--steps 4 --traced-steps 1 --repeats 1 --no-calibrate"
)


class NodeCommand:
    """`dpscope` with the same arguments on each host; output goes to files next to `out`, or in
    `logs`.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        out: Path,
        *arguments: str,
        port: int = 29500,
        logs: Path | None = None,
    ) -> None:
        self.out = out
        self.logs = [(logs or out.parent) / f"{out.name}-{host.name}.txt" for host in hosts]
        command, *options = arguments
        meeting = (
            "--nodes",
            str(len(hosts)),
            "--rendezvous",
            f"{hosts[0].address}:{port}",
            "--out",
            str(out),
        )
        self.processes = []
        for index, host in enumerate(hosts):
            whole = [
                sys.executable,
                "-m",
                "dpscope.launch.cli",
                command,
                *options,
                *meeting,
                "--node-rank",
                str(index),
            ]
            environment = {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
            with open(self.logs[index], "w") as log:
                files = {"cwd": USER_MODELS, "stdout": log, "stderr": subprocess.STDOUT}
                self.processes.append(
                    host.start(whole, environment, set_gloo_interface=False, **files)
                )

    def wait(self, limit_s: float = LIMIT_S) -> list[int]:
        """The exit statuses."""
        deadline = time.monotonic() + limit_s
        return [
            process.wait(timeout=max(1.0, deadline - time.monotonic()))
            for process in self.processes
        ]

    def printed(self, node: int) -> str:
        return " ".join(self.logs[node].read_text().split())

    def everything(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)

    def agent(self, node: int) -> int:
        """The id of a node's dpscope, which `ip` and `unshare` have become."""
        return self.processes[node].pid

    def send(self, number: signal.Signals, *nodes: int) -> None:
        for node in nodes:
            os.kill(self.agent(node), number)
