"""Files by which a job's processes report their current pass and their failures. Imports no torch.

They are in the repeat's folder while the job runs and are removed when it is recorded.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json

STARTED_AT_VARIABLE = "DPSCOPE_STARTED_AT"  # Unix time at which torchrun was started
PROGRESS_NAME = "progress.txt"
JOB_NAME = "job.txt"  # which job measures here

_OUT_OF_MEMORY_SIGNS = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory"),
    *("cudaerrormemoryallocation", "status_alloc_failed"),
)
# Messages of libraries that got no memory, and in other cases too.
_LIBRARY_FAILURE_SIGNS = (
    *("cublas_status_not_initialized", "cublas_status_internal_error", "cublas_status_execution_failed"),
    *("cudnn_status_not_initialized", "cudnn_status_internal_error", "cudnn_status_execution_failed"),
    *("cudnn_status_not_supported", "unable to find a valid cudnn algorithm", "unable to find an engine"),
    *("unhandled cuda error", "ncclunhandledcudaerror"),
)
_FULL = 0.9  # of a device's memory: above it such a failure counts as out of memory
_PEER_LOST_SIGNS = (
    *("connection closed by peer", "connection reset by peer", "broken pipe", "socket", "remote process exited"),
    *("timed out waiting", "communicator was aborted", "ncclremoteerror", "ncclsystemerror"),
)


class FailureNote(Stored, frozen=True, kw_only=True):
    """Why one process failed, with its message."""

    rank: int
    at_ns: int  # Unix time
    kind: Literal["out_of_memory", "crashed"]
    message: str
    peer_lost: bool  # a consequence of another rank's failure rather than a cause


def looks_like_out_of_memory(text: str) -> bool:
    """Whether an error's text is that of a memory allocator, on a GPU or the host."""
    lowered = text.lower()
    return any(sign in lowered for sign in _OUT_OF_MEMORY_SIGNS)


def _fullest_memory() -> float:
    """Largest used share of memory (0 to 1) among the GPUs that this process uses; 0 if torch uses none or fails."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    shares = [0.0]
    for index in range(torch.cuda.device_count()):
        with contextlib.suppress(RuntimeError):  # after some failures a device does not respond
            if torch.cuda.memory_reserved(index) > 0:
                free_bytes, total_bytes = torch.cuda.mem_get_info(index)
                shares.append(1 - free_bytes / total_bytes)
    return max(shares)


def write_failure(folder: Path, node: int, rank: int, error: BaseException) -> None:
    """Write a note about the failure of this process."""
    text = str(error) if isinstance(error, DpscopeError) else f"{type(error).__name__}: {error}"
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), text)
    lowered = text.lower()
    lacked = isinstance(error, MemoryError) or looks_like_out_of_memory(text)
    if any(sign in lowered for sign in _LIBRARY_FAILURE_SIGNS) and _fullest_memory() > _FULL:
        lacked, first_line = True, f"GPU memory over {_FULL:.0%} full: {first_line}"
    note = FailureNote(
        rank=rank,
        at_ns=time.time_ns(),
        kind="out_of_memory" if lacked else "crashed",
        message=first_line[:400],
        peer_lost=any(sign in lowered for sign in _PEER_LOST_SIGNS),
    )
    write_json(folder / f"failure_{node}_{rank}.json", note)


def read_failures(folder: Path) -> list[FailureNote]:
    """The notes of a job, in the order of the failures."""
    notes = [msgspec.json.decode(path.read_bytes(), type=FailureNote) for path in folder.glob("failure_*.json")]
    return sorted(notes, key=lambda note: note.at_ns)


def read_progress(folder: Path) -> str | None:
    """The job's current pass; None before its first and after its last."""
    try:
        return (folder / PROGRESS_NAME).read_text()
    except FileNotFoundError:  # a job that ends removes it at any moment
        return None


def remove_job_files(folder: Path) -> None:
    """Remove the notes and the progress of a finished job."""
    for path in [*folder.glob("failure_*.json"), folder / PROGRESS_NAME, folder / JOB_NAME]:
        path.unlink(missing_ok=True)
