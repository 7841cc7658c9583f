"""Devices, kernels and collectives that fail in one rank of a run: a clear end in one line, and
nothing left running.
"""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.sweeps import processes_of
from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Fault, Node, PlantedNode

LAUNCH_FAILURE, REMOTE_ERROR = 719, 6
# Which call meets the error first is a matter of time.
FAILED = "crashed in .*: rank 1: .*(CUDA error: "
OF_CALLS = "CUDNN_STATUS_EXECUTION_FAILED|CUBLAS_STATUS_EXECUTION_FAILED"
RUN = words(
    "run --strategy ddp --devices 2 --model resnet8_cifar --batch-size 4 --steps 4 "
    "--traced-steps 1 --repeats 1 --no-calibrate"
)


@dataclass(frozen=True)
class Case:
    fault: Fault
    limit_s: int
    end: str  # a pattern in what is printed


CASES = {
    # Those that end by their time limit come first: they wait while the others run.
    "async_error": Case(
        Fault(kind="async_error", rank=1, after=20, error=REMOTE_ERROR),
        limit_s=25,
        end="rank 1: NCCL error: remote process exited or there was a network error",
    ),
    # On a quiet machine NCCL's watchdog, whose limit is shorter, names the collective first.
    "never_arrives": Case(
        Fault(kind="never_arrives", rank=1, after=20),
        limit_s=15,
        end="timed out in .*passed its time limit of 15 s",
    ),
    "sticky": Case(
        Fault(kind="sticky", rank=1, after=900, error=LAUNCH_FAILURE),
        limit_s=100,
        end=f"{FAILED}unspecified launch failure|{OF_CALLS})",
    ),
}


@dataclass(frozen=True)
class Run:
    node: PlantedNode
    out: Path

    def printed(self, limit_s: int) -> str:
        """What the failed run printed. Waits for its end."""
        return self.node.dpscope(
            *RUN, "--timeout", str(limit_s), "--out", str(self.out), status=1, torchrun=True
        )


@pytest.fixture(scope="module")
def runs(
    plant: Plant, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Run, Future[str]]]]:
    with ThreadPoolExecutor(3) as pool:
        started = {}
        for name, case in CASES.items():
            node = plant(Node(devices=(Device(),) * 2, faults=(case.fault,)))
            run = Run(node, tmp_path_factory.mktemp(name) / "run")
            started[name] = run, pool.submit(run.printed, case.limit_s)
        yield started


@pytest.mark.parametrize("name", CASES)
def test_a_fault_in_one_rank_ends_the_run(
    runs: dict[str, tuple[Run, Future[str]]], name: str
) -> None:
    run, ended = runs[name]
    printed = ended.result()
    assert re.search(CASES[name].end, printed), printed
    assert "Traceback" not in printed
    assert processes_of(run.out) == []
