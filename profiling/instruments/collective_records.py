"""Records of this process's collectives, kept by PyTorch's Flight Recorder and written to a file
while a script runs.

Flight Recorder keeps the last records in a ring. They are written before the ring comes round, at
least once a minute, and at the end; a record that is written twice has one number, by which readers
count it once.
"""

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torch import distributed
from torch._C import _distributed_c10d as c10d

RING = 10_000  # records that are kept, unless the environment states another number
_RING_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_TIMING_VARIABLE = "TORCH_NCCL_ENABLE_TIMING"
_POLL_S = 1.0
_LONGEST_S = 60.0  # between two writings: what a killed process loses
_FULL = 0.8  # of the ring: when it is written
_COMPLETION_S = 1.0  # how long the end waits for collectives that have just returned


def keep_records() -> None:
    """Let Flight Recorder keep records with durations in this process; before any process group is
    made.
    """
    os.environ.setdefault(_TIMING_VARIABLE, "1")
    os.environ.setdefault(_RING_VARIABLE, str(RING))


class CollectiveRecorder:
    """Appends Flight Recorder's dumps to this rank's file in a folder that its job shares, from a
    thread, until it is closed. Made before any process group.
    """

    def __init__(self, folder: Path, rank: int, note: Callable[[str], None]) -> None:
        keep_records()
        self._path = folder / f"dump_{rank}"
        self._rank = rank
        self._note = note
        self._ring = int(os.environ.get(_RING_VARIABLE, RING))
        self._written = 0  # collectives that had been enqueued when they were last written
        self._written_at = time.monotonic()
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="dpscope-records")
        self._thread.start()

    def close(self) -> None:
        """Write the last records."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._attempt(self._write_last)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            if distributed.is_initialized():
                self._attempt(self._write_if_due)

    def _attempt(self, action: Callable[[], None]) -> None:
        """A failure ends the recording, and not the script."""
        try:
            with self._writing:
                action()
        except Exception as error:
            self._ended.set()
            self._note(f"the collectives are recorded no further ({type(error).__name__}: {error})")

    def _write_if_due(self) -> None:
        waited_s = time.monotonic() - self._written_at
        fresh = _enqueued() - self._written
        if fresh >= _FULL * self._ring or (fresh and waited_s >= _LONGEST_S):
            self._write()

    def _write_last(self) -> None:
        """gloo notes that a collective has completed after its caller went on, as at a last barrier."""
        deadline = time.monotonic() + _COMPLETION_S
        while not _all_completed() and time.monotonic() < deadline:
            time.sleep(_COMPLETION_S / 100)
        self._write()

    def _write(self) -> None:
        enqueued = _enqueued()
        if enqueued == self._written:
            return
        dump = c10d._dump_fr_trace(includeStackTraces=False)  # type: ignore[attr-defined]
        first = not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as file:
            if first:
                header = {"version": "", "rank": self._rank, "host": socket.gethostname()}
                file.write(pickle.dumps(header, protocol=2))
            file.write(dump)
        if first and self._rank == 0 and b"gloo:" in dump:
            self._note("gloo records when a collective was created, and no durations")
        self._written = enqueued
        self._written_at = time.monotonic()


def _enqueued() -> int:
    """How many collectives all groups of this process were given."""
    dump = c10d._dump_fr_trace(  # type: ignore[attr-defined]
        includeCollectives=False, includeStackTraces=False
    )
    status = pickle.loads(dump).get("pg_status", {})
    return sum(group["last_enqueued_collective"] for group in status.values())


def _all_completed() -> bool:
    """Whether no recorded collective of this process is in flight."""
    dump = c10d._dump_fr_trace(includeStackTraces=False)  # type: ignore[attr-defined]
    return all(entry["state"] == "completed" for entry in pickle.loads(dump).get("entries", ()))
