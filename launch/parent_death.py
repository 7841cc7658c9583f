"""Ties a process's life to its parent's, so that a killed run leaves nothing behind. Imports no torch.

torchrun starts its workers in sessions of their own: a signal to torchrun's process group does not reach them,
and a torchrun killed outright cannot pass one on. Linux's parent-death signal does both.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; no effect outside Linux."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die_with_process(parent_id: int) -> None:
    """As `die_with_parent`, and end at once when `parent_id` has already died."""
    die_with_parent()
    if os.getppid() != parent_id:
        os._exit(1)
