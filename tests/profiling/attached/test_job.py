"""The folder of a job: the last process makes it a repeat; what a dead job left is removed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dpscope.profiling.attached import job
from dpscope.profiling.attached.job import SavedPart, finish_job, remove_unfinished_jobs
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.attached_scripts import train_attached


def test_one_of_two_processes_finishes_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (set(others), notes) == ({True}, [])
    (planned,) = RunFolder(tmp_path).manifest().plan
    assert [index for index, _ in RunFolder(tmp_path).done_repeats(planned.cell)] == [0]
    assert not list((tmp_path / "cells").glob(".tmp-*"))


def folder_of(out: Path, name: str) -> RepeatFolder:
    return RepeatFolder(out / "cells" / f".tmp-attached-{name}")


def test_what_dead_jobs_left_is_removed_and_other_files_stay(tmp_path: Path) -> None:
    dead, foreign = (folder_of(tmp_path, name) for name in ("dead", "foreign"))
    dead.trace_path(0, 0).parent.mkdir(parents=True)
    dead.trace_path(0, 0).write_bytes(b"half a trace")
    dead.rank_path(0, 1).write_text("{}")
    foreign.path.mkdir()
    (foreign.path / "notes.txt").write_text("notes")
    measured = tmp_path / "cells" / "ddp-d2-b8"
    measured.mkdir()
    remove_unfinished_jobs(tmp_path)
    assert not dead.path.exists()
    assert (foreign.path / "notes.txt").exists()
    assert measured.exists()
    remove_unfinished_jobs(tmp_path / "nowhere")
