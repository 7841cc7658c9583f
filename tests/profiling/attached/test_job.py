"""The folder of a job: the last process makes it a repeat, also without file locks; a killed job's
folder is removed.
"""

import errno
import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dpscope.profiling.attached import job
from dpscope.profiling.attached.job import HeldFolder, SavedPart, finish_job, remove_unfinished_jobs
from dpscope.profiling.records.run import CellResult
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.attached_scripts import train_attached


@pytest.fixture
def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("_no_locks")
def test_one_of_two_hosts_finishes_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read the folder before the first renames it."""
    ranks = RepeatFolder.ranks
    others: list[bool] = []

    def taken_meanwhile(finish: Callable[[], bool]) -> Callable[[RepeatFolder], object]:
        def read(folder: RepeatFolder) -> object:
            found = ranks(folder)
            monkeypatch.setattr(RepeatFolder, "ranks", ranks)
            others.append(finish())
            return found

        return read

    def finishing(part: SavedPart) -> bool:
        monkeypatch.setattr(RepeatFolder, "ranks", taken_meanwhile(lambda: finish_job(part)))
        return finish_job(part)

    monkeypatch.setattr(job, "finish_job", finishing)
    notes: list[str] = []
    train_attached(tmp_path, notes)
    assert (others, notes) == ([True], [])
    (planned,) = RunFolder(tmp_path).manifest().plan
    assert [index for index, _ in RunFolder(tmp_path).done_repeats(planned.cell)] == [0]
    assert not list((tmp_path / "cells").glob(".tmp-*"))


def test_two_jobs_that_take_the_same_repeat_become_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job takes the number after this one has found it free."""

    def taken_meanwhile(path: Path, value: object) -> None:
        write_json(path, value)
        if isinstance(value, CellResult) and value.repeat == 0:
            shutil.copytree(path.parent, RunFolder(tmp_path).repeat(value.cell, 0).path)

    monkeypatch.setattr(job, "write_json", taken_meanwhile)
    notes: list[str] = []
    train_attached(tmp_path, notes)
    assert notes == []
    run = RunFolder(tmp_path)
    (planned,) = run.manifest().plan
    results = [folder.result() for _, folder in run.done_repeats(planned.cell)]
    assert [result.repeat for result in results if result is not None] == [0, 1]


def test_an_error_while_finishing_leaves_the_files_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(job, "_manifest_with", lambda *_: 1 / 0)
    train_attached(tmp_path, notes)
    assert "ZeroDivisionError" in notes[0]
    (left,) = (tmp_path / "cells").iterdir()
    assert (left / "rank_0_0.json").exists()
    assert not left.name.endswith("-whole")


def folder_of(out: Path, job: str) -> RepeatFolder:
    return RepeatFolder(out / "cells" / f".tmp-attached-{job}")


def test_the_folders_of_dead_jobs_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead, living, foreign = (folder_of(tmp_path, name) for name in ("dead", "living", "foreign"))
    HeldFolder(dead, 0, 0).release(keep=True)  # as if its process was killed
    HeldFolder(dead, 0, 1).release(keep=True)
    dead.trace_path(0, 0).parent.mkdir()
    dead.trace_path(0, 0).write_bytes(b"half a trace")
    HeldFolder(living, 0, 0).release(keep=True)  # one of its two processes has ended
    held = HeldFolder(living, 0, 1)
    living.rank_path(0, 0).write_text("{}")
    foreign.path.mkdir()
    (foreign.path / "notes.txt").write_text("notes")
    other = tmp_path / "cells" / "ddp-d2-b8"
    other.mkdir()
    remove_unfinished_jobs(tmp_path)
    assert not dead.path.exists()
    assert sorted(path.name for path in living.path.iterdir()) == [
        "rank_0_0.json",
        "running_0_0",
        "running_0_1",
    ]
    assert (foreign.path / "notes.txt").exists()
    assert other.exists()
    held.release(keep=True)
    remove_unfinished_jobs(tmp_path)
    assert not living.path.exists()
    remove_unfinished_jobs(tmp_path / "nowhere")


def test_processes_that_measured_nothing_remove_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "job")
    first, second = HeldFolder(folder, 0, 0), HeldFolder(folder, 0, 1)
    first.release(keep=False)
    assert folder.path.exists()
    second.release(keep=False)
    assert not folder.path.exists()
