"""Ranks of one job as forks of a process that has imported torch for all of them: that takes two
seconds of CPU time.

    python forked_ranks.py FOLDER COUNT [-m] PROGRAM ARGUMENTS

Each rank runs the program as Python does when it is started with it, with its own environment,
output and signals. Ranks share what imports compute, such as the seed of hashes. Output goes to
FOLDER/<rank>.out and .err, exit statuses are printed.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from dpscope.launch.jobs.parent_death import die_with_process

_AFTER_FAILURE_S = 30.0  # until a rank that does not end is killed
_POLL_S = 0.05


class InRank(BaseException):
    """Raised in a rank out of `fork_ranks`: the process is to do nothing but `run_program`."""


def import_for_ranks() -> None:
    """What every rank imports; it starts no thread, so that the process can be forked."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch._dynamo  # noqa: F401 (an optimizer's first step imports it)

    gc.freeze()  # nothing of it is visited, and thereby copied, in a rank


def _import_for(module: str) -> None:
    """What a module of the working directory imports; each rank executes the module itself."""
    sys.path[0] = os.getcwd()
    importlib.import_module(module)
    del sys.modules[module]
    gc.freeze()


def fork_ranks(
    environments: Sequence[Mapping[str, str]], outputs: Sequence[tuple[BinaryIO, BinaryIO]]
) -> list[int]:
    """Process ids of ranks with these variables in addition, which write into files; each raises
    `InRank` from here.
    """
    sys.stdout.flush()
    parent_id, ranks = os.getpid(), []
    for environment, (output, errors) in zip(environments, outputs, strict=True):
        process = os.fork()
        if process == 0:
            die_with_process(parent_id)
            os.environ.update(environment)
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # as by -u
            raise InRank
        ranks.append(process)
    return ranks


def run_program(program: Sequence[str]) -> NoReturn:
    """Run ``-m module arguments`` or ``file arguments``, and end as Python does, but without half a
    second to free objects.
    """
    status = 0
    try:
        if program[0] == "-m":
            sys.argv[:] = [program[1], *program[2:]]
            sys.path[0] = os.getcwd()
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = program
            sys.path[0] = str(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status != end.code and end.code is not None:
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # also KeyboardInterrupt
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def await_ends(ranks: Sequence[int], end_others: bool) -> list[int]:
    """Exit status of each rank, negative for a signal; with `end_others` the first failure ends the
    others, as under torchrun.
    """
    ended: dict[int, int] = {}
    failed_at_s: float | None = None
    while len(ended) < len(ranks):
        for rank in [one for one in ranks if one not in ended]:
            process, status = os.waitpid(rank, os.WNOHANG)
            if process:
                ended[rank] = os.waitstatus_to_exitcode(status)
        running = [rank for rank in ranks if rank not in ended]
        if failed_at_s is None and any(ended.values()):
            failed_at_s = time.monotonic()
            for rank in running if end_others else ():
                os.kill(rank, signal.SIGTERM)
        elif (
            running
            and failed_at_s is not None
            and time.monotonic() - failed_at_s > _AFTER_FAILURE_S
        ):
            os.kill(running[0], signal.SIGKILL)
        time.sleep(_POLL_S)
    return [ended[rank] for rank in ranks]


def main() -> None:
    folder, count, *program = sys.argv[1:]
    import_for_ranks()
    if program[0] == "-m":
        _import_for(program[1])
    outputs = [
        (open(Path(folder, f"{rank}.out"), "wb"), open(Path(folder, f"{rank}.err"), "wb"))  # noqa: SIM115 (a rank's, too)
        for rank in range(int(count))
    ]
    try:
        ranks = fork_ranks(
            [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(int(count))], outputs
        )
    except InRank:
        pass
    else:
        json.dump(await_ends(ranks, end_others=False), sys.stdout)
        return
    run_program(program)


if __name__ == "__main__":
    main()
