"""Files by which a job's processes report their current pass and their failures. Imports no torch.

They are in the repeat's folder while the job runs and are removed when it is recorded.
"""

import os
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json, write_text

STARTED_AT_VARIABLE = "DPSCOPE_STARTED_AT"  # Unix time at which torchrun was started
PROGRESS_NAME = "progress.txt"
JOB_NAME = "job.txt"  # which job measures here

_OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "cudaerrormemoryallocation",
    "status_alloc_failed",
    "not enough memory",
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
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket",
    "remote process exited",
    "timed out waiting",
    "communicator was aborted",
    "ncclremoteerror",
    "ncclsystemerror",
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


def fullest_memory() -> float | None:
    """Largest used share of memory (0 to 1) among the GPUs that this process uses; None if torch uses none or fails."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    shares = []
    for index in range(torch.cuda.device_count()):
        try:
            if torch.cuda.memory_reserved(index) > 0:
                free_bytes, total_bytes = torch.cuda.mem_get_info(index)
                shares.append(1 - free_bytes / total_bytes)
        except RuntimeError:  # after some failures a device does not respond
            continue
    return max(shares, default=None)


def _library_lacked_memory(text: str) -> bool:
    """Whether cuBLAS, cuDNN or NCCL failed as they do without memory, on a GPU that was nearly full."""
    lowered = text.lower()
    if not any(sign in lowered for sign in _LIBRARY_FAILURE_SIGNS):
        return False
    share = fullest_memory()
    return share is not None and share > _FULL


def write_failure(folder: Path, node: int, rank: int, error: BaseException) -> None:
    """Write a note about the failure of this process."""
    text = str(error) if isinstance(error, DpscopeError) else f"{type(error).__name__}: {error}"
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), text)
    lowered = text.lower()
    if lacked := _library_lacked_memory(text):
        first_line = f"GPU memory over {_FULL:.0%} full: {first_line}"
    lacked = lacked or isinstance(error, MemoryError) or looks_like_out_of_memory(text)
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


def write_progress(folder: Path, state: str) -> None:
    """Report the job's current pass."""
    write_text(folder / PROGRESS_NAME, state)


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


def started_at() -> float:
    """Unix time at which this job's torchrun was started, now for one started by hand."""
    return float(os.environ.get(STARTED_AT_VARIABLE, time.time()))
