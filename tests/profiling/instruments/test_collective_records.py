"""Records of collectives while a process runs: each once, with rank and host, read by analyze."""

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d
from torch.distributed import HashStore  # type: ignore[attr-defined]  # of torch._C

from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import RecordedJob, read_job
from dpscope.profiling.instruments.collective_records import CollectiveRecorder, keep_records


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def reduce(times: int) -> None:
    for _ in range(times):
        distributed.all_reduce(torch.zeros(4))


def written(path: Path) -> RecordedJob:
    return read_job(find_files(path), 1 << 30)


@pytest.mark.usefixtures("group")
def test_each_collective_is_recorded_once_with_rank_and_host(tmp_path: Path) -> None:
    notes: list[str] = []
    path = tmp_path / "job" / "dump_0"
    reduce(3)
    recorder = CollectiveRecorder(path.parent, 0, notes.append)
    recorder._write()
    before = len(written(path).processes[0])
    reduce(2)
    recorder.close()
    recorder.close()
    job = written(path)
    (process,) = job.processes
    assert len(process) == before + 2
    assert (job.ranks, job.hosts) == ((0,), (socket.gethostname(),))
    assert (process.created_ns > 0).all()
    assert notes == ["gloo records when a collective was created, and no durations"]
    # a killed process may have written a part of the last dump
    path.write_bytes(path.read_bytes()[:-9])
    assert len(written(path).processes[0]) == before


@pytest.mark.usefixtures("group")
def test_the_end_waits_for_a_collective_that_has_just_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three dumps the first two have the last collective in flight; then it is completed."""
    real, asked = c10d._dump_fr_trace, iter(range(3))  # type: ignore[attr-defined]

    def dump(**options: bool) -> bytes:
        content = pickle.loads(real(**options))
        if content.get("entries") and next(asked, 2) < 2:
            content["entries"][-1]["state"] = "started"
        return pickle.dumps(content, protocol=2)

    monkeypatch.setattr(c10d, "_dump_fr_trace", dump)
    reduce(2)
    path = tmp_path / "job" / "dump_0"
    CollectiveRecorder(path.parent, 0, print).close()
    assert not written(path).processes[0].unfinished.any()
    assert next(asked, None) is None


@pytest.mark.usefixtures("group")
def test_a_file_that_cannot_be_written_ends_the_recording_alone(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "job").write_text("no folder")
    reduce(1)
    CollectiveRecorder(tmp_path / "job", 1, notes.append).close()
    assert len(notes) == 1
    assert "recorded no further" in notes[0]


def test_the_environment_of_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "77")
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "0")
    keep_records()
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "77"
    assert os.environ["TORCH_NCCL_ENABLE_TIMING"] == "0"
    monkeypatch.delenv("TORCH_NCCL_ENABLE_TIMING")
    keep_records()
    assert os.environ["TORCH_NCCL_ENABLE_TIMING"] == "1"
