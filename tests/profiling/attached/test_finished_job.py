"""The last process of a job makes a repeat of what all have saved, also where file systems have no locks."""

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dpscope.profiling.attached import finished_job
from dpscope.profiling.attached.finished_job import SavedPart, finish_job
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.attached_scripts import WHOLE, Net, attached, measured, train


def train_attached(out: Path, notes: list[str]) -> None:
    with attached(out, notes):
        model = Net()
        train(model, torch.optim.SGD(model.parameters()), WHOLE)


@pytest.fixture
def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("_no_locks")
def test_a_job_is_finished_on_a_file_system_without_locks(tmp_path: Path) -> None:
    notes: list[str] = []
    train_attached(tmp_path, notes)
    assert notes == []
    assert len(measured(tmp_path)[1].traces()) == 1
    assert not list((tmp_path / "cells").glob(".tmp-*"))


@pytest.mark.usefixtures("_no_locks")
def test_of_two_hosts_that_finish_a_job_at_once_one_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read the same folder when the first of them takes it."""
    ranks = RepeatFolder.ranks
    others: list[bool] = []

    def taken_meanwhile(finish: Callable[[], bool]) -> Callable[[RepeatFolder], object]:
        def read(folder: RepeatFolder) -> object:
            found = ranks(folder)
            monkeypatch.setattr(RepeatFolder, "ranks", ranks)
            others.append(finish())
            return found

        return read

    def finishing(folder: RepeatFolder, part: SavedPart) -> bool:
        monkeypatch.setattr(RepeatFolder, "ranks", taken_meanwhile(lambda: finish_job(folder, part)))
        return finish_job(folder, part)

    monkeypatch.setattr("dpscope.profiling.attached.session.finish_job", finishing)
    notes: list[str] = []
    train_attached(tmp_path, notes)
    assert (others, notes) == ([True], [])
    (planned,) = RunFolder(tmp_path).manifest().plan
    assert [index for index, _ in RunFolder(tmp_path).done_repeats(planned.cell)] == [0]
    assert not list((tmp_path / "cells").glob(".tmp-*"))


def test_two_jobs_that_take_the_same_repeat_become_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one looked for a free repeat before the first had taken it."""
    train_attached(tmp_path, [])
    free = finished_job._free_repeat

    def seen_before(run: RunFolder, cell: object) -> int:
        monkeypatch.setattr(finished_job, "_free_repeat", free)
        return 0

    monkeypatch.setattr(finished_job, "_free_repeat", seen_before)
    notes: list[str] = []
    train_attached(tmp_path, notes)
    assert notes == []
    run = RunFolder(tmp_path)
    (planned,) = run.manifest().plan
    results = [folder.result() for _, folder in run.done_repeats(planned.cell)]
    assert [result.repeat for result in results if result is not None] == [0, 1]


def test_what_fails_while_a_job_is_finished_leaves_its_files_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(finished_job, "_manifest_with", lambda *_: 1 / 0)
    train_attached(tmp_path, notes)
    assert "ZeroDivisionError" in notes[0]
    (left,) = (tmp_path / "cells").iterdir()
    assert (left / "rank_0_0.json").exists()
    assert not left.name.endswith("-whole")
