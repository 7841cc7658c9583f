"""The host's free memory, and this process's heap: kept between steps, and touched before a trace.

The first use of a page is a page fault: 0.2 us and more on bare metal, 2 to 10 us in virtual
machines, where two processes that fault at the same time slow each other. glibc returns a step's
memory to the system and faults it in again in the next step, and a tracer that records shapes keeps
a small object for every tensor, which splits the freed blocks. Measured in such a machine, two
ranks of a ResNet-8 on CPUs: a step of 36 ms took 29 with a heap that is kept; one of 55 ms took 140
traced, 58 with a heap that was also touched before.
"""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's parameters, glibc's malloc.h
_NEVER = -1
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc accepts no more on 64 bits
_BLOCK_BYTES = 64 << 10  # below every threshold at which glibc maps a block separately
_FREE_SHARE = 1 / 8  # of the free memory
_MOST_BYTES = 1 << 30
_ENDING_S = 0.02  # a thread gives back its heap a moment after it was joined
_TUNED_BY = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "LD_PRELOAD")


class _Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def keep_freed_memory() -> None:
    """Let malloc keep what this process frees, unless the user has tuned or replaced it; without
    glibc, nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(os.environ.get(name) for name in _TUNED_BY):
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)


class _Touched:
    """What this process has touched in advance so far; malloc may hold it still."""

    bytes = 0


@contextmanager
def touched_heap(steps: int, kept_bytes: int, replica_threads: int = 0) -> Iterator[None]:
    """Within this context malloc has touched memory for steps that keep `kept_bytes` each and free
    the rest in fragments.

    In equal shares of the calling thread's heap and of those that new threads get, such as the
    threads that DataParallel starts for its replicas in each pass: twice `replica_threads`, as the
    previous ones may still be ending. A single heap for all threads (M_ARENA_MAX) is not an option:
    with it torch 2.14's profiler crashed in half of the jobs with two ranks. The memory of a step
    is what malloc holds unused after one, known from glibc 2.33 on. At most 1 GiB is touched, and
    by all processes of this host together an eighth of the free memory.
    """
    step_bytes = max(0, _free_heap_bytes() - _Touched.bytes)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    most = min(_MOST_BYTES, int(free_host_bytes() * _FREE_SHARE / processes))
    lacking = min(steps * (step_bytes + kept_bytes), most) - _Touched.bytes
    heaps = 1 + 2 * replica_threads
    blocks_each = max(0, lacking // _BLOCK_BYTES // heaps)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    last: list[int] = []  # malloc returns only what is above every block in use to the system

    def touch(together: threading.Barrier) -> None:
        blocks = [
            block
            for _ in range(blocks_each)
            if (block := libc.malloc(ctypes.c_size_t(_BLOCK_BYTES)))
        ]
        for block in blocks:
            ctypes.memset(block, 0, _BLOCK_BYTES)
        if blocks:
            last.append(blocks.pop())
        for block in blocks:
            libc.free(block)
        together.wait()  # else a later thread would get the heap of one that has ended

    touch(threading.Barrier(1))
    if replica_threads:
        together = threading.Barrier(heaps - 1)
        threads = [threading.Thread(target=touch, args=(together,)) for _ in range(heaps - 1)]
        time.sleep(_ENDING_S)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(_ENDING_S)
    _Touched.bytes += blocks_each * _BLOCK_BYTES * heaps
    try:
        yield
    finally:
        for block in last:
            libc.free(block)


def _free_heap_bytes() -> int:
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().fordblks)


def total_host_bytes() -> int:
    """The memory of this host."""
    return int(psutil.virtual_memory().total)


def free_host_bytes(root: Path = Path("/")) -> int:
    """Free memory of this host, or what its control group (a container) still allows if that is
    less.
    """
    free = [int(psutil.virtual_memory().available)]
    for folder, limit_name, used_name in (
        ("sys/fs/cgroup", "memory.max", "memory.current"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit = root / folder / limit_name
        used = root / folder / used_name
        if limit.exists() and used.exists() and limit.read_text().strip().isdecimal():
            free.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(free)
