"""Ties a process's life to its parent's, so that a killed run leaves nothing behind.

torchrun starts each worker in a separate session: a signal to torchrun's process group does not
reach them, and a killed torchrun cannot pass one on. Linux's parent-death signal does both once a
process has requested it; an earlier death of the parent is checked. Imports only the standard
library, so that a worker can request the signal before slow imports.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

JOB_TOKEN_VARIABLE = "DPSCOPE_JOB"  # same value in every process of a job, so that all can be found
RUN_TOKEN_VARIABLE = "DPSCOPE_RUN"  # same value in every process of a run folder's jobs

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_process(parent_id: int) -> None:
    """Have the kernel kill this process when its parent dies; end at once when that is no longer
    `parent_id`.

    The parent's death is that of the thread that started this process. Outside Linux only the check
    has an effect.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_id:
        os._exit(1)


def dying_with_process(parent_id: int, command: Sequence[str]) -> list[str]:
    """A command that calls `die_with_process` and then becomes `command`.

    For callers with threads, where nothing may run between fork and exec: a separate program
    requests the signal; exec keeps it.
    """
    return [sys.executable, "-I", "-S", __file__, str(parent_id), *command]


def die_with_job() -> None:
    """`die_with_process` for a process whose parent belongs to the same job; ends at once if that
    has died already.

    A process that lost its parent early is the child of another process, which lacks the job's
    token. Without a token, as in a process started by hand, only a later death is noticed.
    """
    parent_id = os.getppid()
    die_with_process(parent_id)
    value = os.environ.get(JOB_TOKEN_VARIABLE)
    if value is not None and Path("/proc/self/environ").exists():
        token = f"{JOB_TOKEN_VARIABLE}={value}"
        if not has_token(parent_id, token) or os.getppid() != parent_id:
            os.write(2, b"dpscope: the torchrun that started this process has ended\n")
            os._exit(1)


def has_token(process_id: int, token: str) -> bool:
    """Whether a live process has `token` (NAME=value) in its environment; False if that cannot be
    read.
    """
    try:
        environment = Path(f"/proc/{process_id}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return False
    return token.encode() in environment.split(b"\0")


if __name__ == "__main__":  # started by `dying_with_process`
    die_with_process(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
