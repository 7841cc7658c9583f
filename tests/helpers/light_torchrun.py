"""Starts the ranks of a job on this host as torchrun does, as forks of itself
(tests/helpers/forked_ranks.py).

Within `light_jobs` it takes torchrun's place (by child_start): each rank has torchrun's
environment, its output is printed after `[rank0]:` once all have ended, the first rank that fails
ends the others, and the status is 1 then. What only torchrun has is not here: a store outside of
the ranks, restarts, several hosts. torch is imported once for a job instead of once for torchrun
and once for each rank, which is half of the CPU time of a small job.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from tests.helpers.forked_ranks import InRank, await_ends, fork_ranks, run_program
from tests.helpers.ranks import free_port


@contextlib.contextmanager
def light_jobs() -> Iterator[None]:
    """Jobs on one host that are started meanwhile, also by a command, run without torchrun; not
    those that may be restarted.
    """
    os.environ["DPSCOPE_TEST_LIGHT_TORCHRUN"] = "1"
    try:
        yield
    finally:
        del os.environ["DPSCOPE_TEST_LIGHT_TORCHRUN"]


def main() -> int:
    first = next(
        place
        for place, argument in enumerate(sys.argv)
        if place and (argument == "-m" or not argument.startswith("-"))
    )
    (count,) = (
        int(part.partition("=")[2])
        for part in sys.argv[:first]
        if part.startswith("--nproc-per-node=")
    )
    place = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    place |= {
        "MASTER_PORT": (port := free_port()),
        "TORCHELASTIC_RUN_ID": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
    }
    shared = {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
    outputs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115 (no rank may close them by an exception)
    try:
        ranks = fork_ranks(
            [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)],
            [(output, output) for output in outputs],
        )
    except InRank:
        pass
    else:
        statuses = await_ends(ranks, end_others=True)
        for rank, (output, status) in enumerate(zip(outputs, statuses, strict=True)):
            output.seek(0)
            lines = [*output.read().decode(errors="replace").splitlines(), f"status {status}"]
            sys.stdout.writelines(f"[rank{rank}]:{line}\n" for line in lines)
        return int(any(statuses))
    run_program(sys.argv[first:])


if __name__ == "__main__":
    sys.exit(main())
