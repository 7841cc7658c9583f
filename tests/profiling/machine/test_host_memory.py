"""Page faults of a process whose heap is kept and touched, counted by the kernel, and the memory
that is free.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dpscope.profiling.machine.host_memory import free_host_bytes

# Allocates 64 MiB in blocks of 1 MiB, frees them, and so again, like the tensors of two steps.
# Prints the second's page faults.
TWO_STEPS = """
import ctypes, resource
from dpscope.profiling.machine.host_memory import keep_freed_memory, touched_heap
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
def step(kept=()):
    blocks = [libc.malloc(ctypes.c_size_t(1 << 20)) for _ in range(64)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
    for block in blocks:
        libc.free(block)
def faults(do):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    do()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
KEEP = "keep_freed_memory(); step(); print(faults(step))"
TOUCH = """
keep_freed_memory(); step()
def kept_and_step():
    libc.malloc(ctypes.c_size_t(1 << 24))  # what a tracer keeps of a step: 16 MiB
    step()
with touched_heap(3, 16 << 20):
    print(faults(kept_and_step) + faults(kept_and_step) + faults(kept_and_step))
print(faults(touched_heap(3, 16 << 20).__enter__))
"""
THREADS = """
import threading
def threads():  # those of a replica each: a step, of which a tracer keeps 16 MiB
    together = threading.Barrier(2)
    def run():
        together.wait()
        step()
        libc.malloc(ctypes.c_size_t(1 << 24))
        together.wait()
    both = [threading.Thread(target=run) for _ in range(2)]
    for thread in both: thread.start()
    for thread in both: thread.join()
keep_freed_memory(); threads(); threads()
with touched_heap(3, 96 << 20, REPLICAS):
    print(faults(threads) + faults(threads))
"""
PAGES = (64 << 20) // 4096
glibc = pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")


def printed(code: str, **variables: str) -> list[int]:
    found = subprocess.run(
        [sys.executable, "-c", TWO_STEPS + code],
        env={"PATH": "/usr/bin", **variables}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [int(line) for line in found.stdout.split()]


@pytest.mark.process
@glibc
def test_a_step_reuses_the_memory_of_the_one_before_it_unless_the_user_tunes_the_heap() -> None:
    assert printed(KEEP)[0] < PAGES / 100
    assert printed(KEEP, MALLOC_TRIM_THRESHOLD_="131072")[0] > PAGES / 2


@pytest.mark.process
@glibc
def test_traced_steps_fault_no_page_in_nor_do_replicas_threads_and_a_second_trace_touches_nothing_again() -> (
    None
):
    traced, again = printed(TOUCH)
    assert traced < PAGES / 100
    assert again < 100
    (touched,), (untouched,) = (printed(THREADS.replace("REPLICAS", count)) for count in ("2", "0"))
    assert touched < PAGES / 2 < PAGES < untouched


def test_free_memory_respects_a_containers_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8_192_000))
    assert free_host_bytes(tmp_path) == 8_192_000
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.current").write_text("1000000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert free_host_bytes(tmp_path) == 8_192_000
    (cgroup / "memory.max").write_text("3000000\n")
    assert free_host_bytes(tmp_path) == 2_000_000
