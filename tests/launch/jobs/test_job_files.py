"""What a job leaves for whoever started it, read while the job goes on."""

import threading
from pathlib import Path

import pytest
import torch

from dpscope.launch.jobs.job_files import PROGRESS_NAME, read_failures, read_progress, remove_job_files, write_failure


def test_progress_is_read_while_the_job_removes_it(tmp_path: Path) -> None:
    """Whatever moment the reader comes at: the text or None, as of a job that ends while it is watched."""
    over = threading.Event()

    def come_and_go() -> None:
        for _ in range(4000):
            (tmp_path / PROGRESS_NAME).write_text("timed")
            remove_job_files(tmp_path)
        over.set()

    job = threading.Thread(target=come_and_go)
    job.start()
    read = set()
    while not over.is_set():
        read.add(read_progress(tmp_path))
    job.join()
    assert read <= {None, "", "timed"}  # empty: written here without a temporary file
    assert None in read
    assert read_progress(tmp_path) is None


def gpus(monkeypatch: pytest.MonkeyPatch, free_percent: dict[int, float | None], reserved: tuple[int, ...]) -> None:
    """GPUs of 100 bytes, of which those in `reserved` are this process's; one that is None answers nothing."""

    def mem_get_info(index: int) -> tuple[float, int]:
        free = free_percent[index]
        if free is None:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return free, 100

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free_percent))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: int(index in reserved))
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)


CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
CUDNN = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error, NCCL version 2.30.3"
OTHER = "CUDA error: device-side assert triggered"


@pytest.mark.parametrize("message", [CUBLAS, CUDNN, NCCL])
@pytest.mark.parametrize(
    ("free_percent", "reserved", "kind"),
    [
        ({0: 9}, (0,), "out_of_memory"),  # 91% full
        ({0: 11}, (0,), "crashed"),  # 89%
        ({0: 60, 1: 9}, (0, 1), "out_of_memory"),  # DataParallel's second GPU
        ({0: 60, 1: 9}, (0,), "crashed"),  # GPU 1 is somebody else's
        ({0: None}, (0,), "crashed"),  # a device that is gone tells nothing
    ],
)
def test_a_library_that_fails_on_a_full_gpu_lacked_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    message: str,
    free_percent: dict[int, float | None],
    reserved: tuple[int, ...],
    kind: str,
) -> None:
    gpus(monkeypatch, free_percent, reserved)
    write_failure(tmp_path, node=0, rank=1, error=RuntimeError(message))
    (note,) = read_failures(tmp_path)
    assert (note.kind, message in note.message) == (kind, True)
    assert ("GPU memory over 90% full" in note.message) == (kind == "out_of_memory")


def test_another_failure_on_a_full_gpu_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, {0: 1}, (0,))
    write_failure(tmp_path, node=0, rank=0, error=RuntimeError(OTHER))
    assert [(note.kind, note.message) for note in read_failures(tmp_path)] == [("crashed", f"RuntimeError: {OTHER}")]


def test_a_library_that_fails_without_a_gpu_in_use_is_a_failure(tmp_path: Path) -> None:
    write_failure(tmp_path, node=0, rank=0, error=RuntimeError(CUBLAS))
    assert [note.kind for note in read_failures(tmp_path)] == ["crashed"]
