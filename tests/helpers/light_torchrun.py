"""Starts the ranks of a job on this host as torchrun does, without importing torch, which takes torchrun two seconds of CPU time.

Within `light_jobs` it takes torchrun's place (by child_start): each rank has torchrun's environment, its output is printed after
`[rank0]:` once all have ended, the first rank that fails ends the others, and the status is 1 then. What only torchrun has is not
here: a store outside of the ranks, restarts, several hosts.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_AFTER_FAILURE_S = 30.0  # until a rank that does not end is killed


@contextlib.contextmanager
def light_jobs() -> Iterator[None]:
    """Jobs on one host that are started meanwhile, also by a command, run without torchrun; not those that may be restarted."""
    os.environ["DPSCOPE_TEST_LIGHT_TORCHRUN"] = "1"
    try:
        yield
    finally:
        del os.environ["DPSCOPE_TEST_LIGHT_TORCHRUN"]


def main() -> int:
    first = sys.argv.index("-m")
    (count,) = (int(part.partition("=")[2]) for part in sys.argv[:first] if part.startswith("--nproc-per-node="))
    sys.path.append(os.path.join(sys.path[0], "..", ".."))  # the repository, whatever the working folder is
    from tests.helpers.ranks import free_port

    place = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    place |= {"MASTER_PORT": (port := free_port()), "TORCHELASTIC_RUN_ID": port, "TORCHELASTIC_RESTART_COUNT": 0}
    shared = {"OMP_NUM_THREADS": "1", **os.environ, **{name: str(value) for name, value in place.items()}}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        outputs = [files.enter_context(open(Path(folder, str(rank)), "wb+")) for rank in range(count)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-u", *sys.argv[first:]],
                env={**shared, "MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank, output in enumerate(outputs)
        ]
        await_ends(ranks)
        for rank, output in enumerate(outputs):
            output.seek(0)
            lines = [*output.read().decode(errors="replace").splitlines(), f"status {ranks[rank].returncode}"]
            sys.stdout.writelines(f"[rank{rank}]:{line}\n" for line in lines)
    return int(any(rank.returncode for rank in ranks))


def await_ends(ranks: list["subprocess.Popen[bytes]"]) -> None:
    failed_at_s: float | None = None
    while running := [rank for rank in ranks if rank.poll() is None]:
        if failed_at_s is None and any(rank.returncode for rank in ranks):
            failed_at_s = time.monotonic()
            for rank in running:
                rank.send_signal(signal.SIGTERM)
        elif failed_at_s is not None and time.monotonic() - failed_at_s > _AFTER_FAILURE_S:
            running[0].kill()
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
