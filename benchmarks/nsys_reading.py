"""Time and memory of `dpscope analyze` on exports of Nsight Systems of several sizes.

`python benchmarks/nsys_reading.py [--mb 250,500,1000] [--ranks 8]` makes each export in a temporary
folder, as wide as nsys writes its rows, analyses it in a process of its own and removes it.
Results: benchmarks/README.md.
"""

import argparse
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KERNEL_US = 20
KERNELS_A_STEP = 2_000
CALLS_A_KERNEL = 2  # the launch, and an event that is recorded
RANGES_A_STEP = 3_000  # operators of emit_nvtx
_TABLES = """
create table StringIds(id integer primary key, value text not null);
create table META_DATA_EXPORT(name text, value text);
create table CUPTI_ACTIVITY_KIND_KERNEL(start integer, end integer, deviceId integer,
  contextId integer, greenContextId integer, streamId integer, correlationId integer,
  globalPid integer, demangledName integer, shortName integer, mangledName integer,
  launchType integer, cacheConfig integer, registersPerThread integer, gridX integer,
  gridY integer, gridZ integer, blockX integer, blockY integer, blockZ integer,
  staticSharedMemory integer, dynamicSharedMemory integer, localMemoryPerThread integer,
  localMemoryTotal integer, gridId integer, sharedMemoryExecuted integer, graphNodeId integer,
  sharedMemoryLimitConfig integer, qmdBulkReleaseDone text, qmdPreexitDone text,
  qmdLastCtaDone text, graphId integer, clusterX integer, clusterY integer, clusterZ integer,
  clusterSchedulingPolicy integer, maxPotentialClusterSize integer, maxActiveClusters integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME(start integer, end integer, eventClass integer,
  globalTid integer, correlationId integer, nameId integer, returnValue integer,
  callchainId integer);
create table NVTX_EVENTS(start integer, end integer, eventType integer, rangeId integer,
  category integer, color integer, text text, globalTid integer, endGlobalTid integer,
  textId integer, domainId integer, uint64Value integer, int64Value integer, doubleValue real,
  uint32Value integer, int32Value integer, floatValue real, jsonTextId integer, jsonText text,
  binaryData blob);
"""
_NAMES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "ampere_sgemm_128x64_nn",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "cudaLaunchKernel_v7000",
    "cudaEventRecord_v3020",
)
ADD, GEMM, REDUCE, LAUNCH, RECORD = range(1, 6)


def make_export(path: Path, size_bytes: int, ranks: int) -> None:
    """An export of so many bytes at least, a step of all ranks after the other."""
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = off")
    connection.execute("pragma synchronous = off")
    connection.executescript(_TABLES)
    connection.executemany("insert into StringIds values(?, ?)", enumerate(_NAMES, 1))
    connection.execute("insert into META_DATA_EXPORT values('EXPORT_SCHEMA_VERSION', '3.25.0')")
    step = 0
    while path.stat().st_size < size_bytes:
        for rank in range(ranks):
            add_step(connection, step, rank)
        connection.commit()
        step += 1
    connection.close()


def add_step(connection: sqlite3.Connection, step: int, rank: int) -> None:
    process = (1000 + rank) << 24
    begin_ns = step * (KERNELS_A_STEP + 100) * KERNEL_US * 1000 + 1_000_000_000
    first = step * KERNELS_A_STEP * CALLS_A_KERNEL

    def insert(table: str, rows: Iterator[tuple[Any, ...]], columns: int) -> None:
        marks = ", ".join("?" * columns)
        connection.executemany(f"insert into {table} values({marks})", rows)

    def kernels() -> Iterator[tuple[Any, ...]]:
        for index in range(KERNELS_A_STEP):
            start = begin_ns + (index + 2) * KERNEL_US * 1000
            name = (REDUCE if index % 100 == 99 else GEMM if index % 3 else ADD) + 0
            sizes = (1, 1, 18, 93_600, 1, 1, 128, 1, 1, 0, 49_152, 0, 250_871_808)
            place = (rank, 1, 0, 7 + 6 * (name == REDUCE), first + 2 * index, process)
            rest = (161_656 + index, 32_768, None, 0, *(None,) * 4, 0, 0, 0, 1, 0, 0)
            yield (start, start + 18_000, *place, name, name, name, *sizes, *rest[:14])

    def calls() -> Iterator[tuple[Any, ...]]:
        for index in range(KERNELS_A_STEP):
            start = begin_ns + index * KERNEL_US * 1000
            for offset, name in enumerate((LAUNCH, RECORD)):
                begin = start + 6_000 * offset
                correlation = first + 2 * index + offset
                yield begin, begin + 5_000, 0, process | 1, correlation, name, 0, None

    def ranges() -> Iterator[tuple[Any, ...]]:
        end_ns = begin_ns + KERNELS_A_STEP * KERNEL_US * 1000
        none = (None,) * 10
        yield begin_ns, end_ns, 59, None, None, None, f"step {step}", process | 1, None, None, *none
        length = (end_ns - begin_ns) // RANGES_A_STEP
        for index in range(RANGES_A_STEP):
            start = begin_ns + index * length
            text = f"aten::add, op_id = {step * RANGES_A_STEP + index}"
            yield start, start + length, 59, None, None, None, text, process | 1, None, None, *none

    insert("CUPTI_ACTIVITY_KIND_KERNEL", kernels(), 38)
    insert("CUPTI_ACTIVITY_KIND_RUNTIME", calls(), 8)
    insert("NVTX_EVENTS", ranges(), 20)


def analyse(path: Path) -> tuple[float, float]:
    """Seconds of the whole process, and the most memory that any such process took, in GB."""
    command = [sys.executable, "-m", "dpscope.launch.cli", "analyze", str(path)]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    most_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return seconds, most_kib * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", default="250,500,1000")
    parser.add_argument("--ranks", type=int, default=8)
    arguments = parser.parse_args()
    for size_mb in sorted(map(int, arguments.mb.split(","))):
        with tempfile.TemporaryDirectory(prefix="dpscope-nsys-") as folder:
            path = Path(folder) / "made.sqlite"
            make_export(path, size_mb * 1_000_000, arguments.ranks)
            size_gb = path.stat().st_size / 1e9
            seconds, memory_gb = analyse(path)
            line = f"{size_gb:.2f} GB, {arguments.ranks} ranks: {seconds:.1f} s, {memory_gb:.2f} GB"
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
