"""A job's files, its lock on a folder, and its end with the process that started it."""

import gc
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from dpscope.launch.jobs import worker_process
from dpscope.launch.jobs.job_outcome import (
    PROGRESS_NAME,
    job_outcome,
    read_failures,
    read_progress,
    remove_job_files,
    write_failure,
)
from dpscope.launch.jobs.out_folder import claim
from dpscope.launch.jobs.parent_death import dying_with_process
from dpscope.launch.jobs.worker_process import TorchrunPlace, work
from dpscope.profiling.records.run import Cell, CellResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder


@pytest.mark.long
def test_progress_is_read_while_the_job_removes_it(tmp_path: Path) -> None:
    """A reader finds the text or None at any moment, also as the job ends."""
    over = threading.Event()

    def write_and_remove() -> None:
        for _ in range(1000):
            (tmp_path / PROGRESS_NAME).write_text("timed")
            remove_job_files(tmp_path)
        over.set()

    job = threading.Thread(target=write_and_remove)
    job.start()
    read = set()
    while not over.is_set():
        read.add(read_progress(tmp_path))
    job.join()
    assert read <= {None, "", "timed"}  # empty: written here without a temporary file
    assert None in read
    assert read_progress(tmp_path) is None


def gpus(
    monkeypatch: pytest.MonkeyPatch,
    free_percent: dict[int, float | None],
    reserved: tuple[int, ...],
) -> None:
    """GPUs of 100 bytes, of which this process uses those in `reserved`; one whose free memory is
    None has failed.
    """

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
        ({0: 60, 1: 9}, (0,), "crashed"),  # GPU 1 is another process's
        ({0: None}, (0,), "crashed"),  # the device has failed
    ],
)
def test_a_library_failure_on_a_full_gpu_is_out_of_memory(
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


def test_another_failure_on_a_full_gpu_or_one_without_a_gpu_in_use_is_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_failure(tmp_path, node=0, rank=1, error=RuntimeError(CUBLAS))
    gpus(monkeypatch, {0: 1}, (0,))
    write_failure(tmp_path, node=0, rank=0, error=RuntimeError(OTHER))
    found = [(note.kind, note.message) for note in read_failures(tmp_path)]
    assert found == [("crashed", f"RuntimeError: {message}") for message in (CUBLAS, OTHER)]


@pytest.mark.parametrize(("size", "shown"), [(386, 386), (387, 383)])
def test_a_long_message_ends_in_dots(tmp_path: Path, size: int, shown: int) -> None:
    """Of 400 characters with the error's type, which takes 14."""
    write_failure(tmp_path, node=0, rank=0, error=RuntimeError("x" * size))
    (note,) = read_failures(tmp_path)
    assert note.message == "RuntimeError: " + "x" * shown + "..." * (shown < size)


def test_an_operation_that_the_cpu_does_not_have_is_reported_with_the_remedy(
    tmp_path: Path,
) -> None:
    """oneDNN's message for an LSTM trained in bf16 on a CPU without AVX-512."""
    message = (
        "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with environment "
        "variable ONEDNN_VERBOSE=all to get additional diagnostic information."
    )
    write_failure(tmp_path, node=0, rank=0, error=RuntimeError(message))
    (note,) = read_failures(tmp_path)
    assert note.message == (
        "RuntimeError: could not create a primitive descriptor for the LSTM forward propagation primitive: this CPU cannot do it "
        "in the model's precision; use --amp off"
    )


RANK_0 = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0") | dict.fromkeys(
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"
)


@pytest.mark.parametrize("fails", [True, False])
def test_a_result_is_stored_after_the_rank_has_left_its_group_and_before_its_last_line(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, events = JobFolder(tmp_path), list[str]()

    def task(place: TorchrunPlace) -> CellResult:
        place.report("saving")
        return CellResult(Cell("ddp", 1, 2), 0, "ok", 1.0)

    def leave() -> None:
        events.append(f"left, {folder.status()}")
        if fails:
            raise RuntimeError("NCCL error: unhandled system error")

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            events.append(f"{text.strip()}, {folder.status()}")
            return len(text)

    for name, value in RANK_0.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker_process, "leave_group", leave)
    monkeypatch.setattr(
        worker_process, "_end", lambda message, status: events.append(f"ended with {status}")
    )
    monkeypatch.setattr(sys, "stdout", Output())
    monkeypatch.setattr(gc, "freeze", lambda: None)
    work(lambda arguments, place: (folder, task))
    if not fails:
        assert events == ["left, None", f"Done: {folder.result_path}, ok"]
        assert list(tmp_path.iterdir()) == [folder.result_path]
        return
    assert events == ["left, None", "ended with 1"]
    ended = job_outcome(folder, "exited", exit_status=1)
    message = "rank 0: RuntimeError: NCCL error: unhandled system error (in its saving pass)"
    assert (ended.status, ended.message) == ("crashed", message)


CLAIM = (
    "import sys, pathlib; from dpscope.launch.jobs.out_folder import claim; claim(pathlib.Path(sys.argv[1])); "
    "print('claimed', flush=True); sys.stdin.read()"
)


@pytest.mark.process
def test_one_job_at_a_time_measures_a_repeat(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(DpscopeError, match="another job is measuring it; wait for that one"):
            claim(tmp_path)
        other.kill()
        other.wait()
        claim(tmp_path)


PRINT_SIGNAL = (
    # PR_GET_PDEATHSIG
    "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is a signal on Linux alone")
def test_the_launcher_requests_the_signal_and_becomes_the_command_unless_its_parent_is_gone() -> (
    None
):
    command = [sys.executable, "-c", PRINT_SIGNAL]
    not_the_parent = dying_with_process(os.getpid() + 1, command)
    runs = [
        subprocess.run(one, capture_output=True, check=False) for one in (command, not_the_parent)
    ]
    launched = subprocess.run(
        dying_with_process(os.getpid(), command), capture_output=True, check=True
    )
    # without the launcher 0: else the test could not fail
    assert (launched.stdout, runs[0].stdout) == (b"9\n", b"0\n")
    assert (runs[1].returncode, runs[1].stdout) == (1, b"")
