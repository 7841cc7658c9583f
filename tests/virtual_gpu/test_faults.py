"""Devices, kernels and collectives that fail in one rank of a run: a clear end in one line, and nothing left running."""

import re
from pathlib import Path

import pytest

from tests.helpers.sweeps import processes_of
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Fault, Node

LAUNCH_FAILURE, UNAVAILABLE, REMOTE_ERROR = 719, 46, 6
# Which call meets the error first is a matter of time.
FAILED = "crashed in .*: rank 1: .*(CUDA error: "
OF_CALLS = "CUDNN_STATUS_EXECUTION_FAILED|CUBLAS_STATUS_EXECUTION_FAILED"
RUN = (
    *("run", "--strategy", "ddp", "--devices", "2", "--model", "resnet8_cifar", "--batch-size", "4", "--steps", "4"),
    *("--traced-steps", "1", "--repeats", "1", "--no-calibrate"),
)


@pytest.mark.parametrize(
    ("fault", "limit_s", "end"),
    [
        (
            Fault(kind="sticky", rank=1, after=900, error=LAUNCH_FAILURE),
            100,
            f"{FAILED}unspecified launch failure|{OF_CALLS})",
        ),
        (Fault(kind="lost", rank=1, after=700, error=UNAVAILABLE), 100, f"{FAILED}CUDA-capable device|{OF_CALLS})"),
        (
            Fault(kind="async_error", rank=1, after=20, error=REMOTE_ERROR),
            45,
            "rank 1: NCCL error: remote process exited or there was a network error",
        ),
        # On a quiet machine NCCL's watchdog, whose limit is shorter, names the collective first.
        (Fault(kind="never_arrives", rank=1, after=20), 30, "timed out in .*passed its time limit of 30 s"),
    ],
)
def test_a_fault_in_one_rank_ends_the_run(plant: Plant, tmp_path: Path, fault: Fault, limit_s: int, end: str) -> None:
    node = plant(Node(devices=(Device(),) * 2, faults=(fault,)))
    out = tmp_path / "run"
    printed = node.dpscope(*RUN, "--timeout", str(limit_s), "--out", str(out), status=1, torchrun=True)
    assert re.search(end, printed), printed
    assert "Traceback" not in printed
    assert processes_of(out) == []
