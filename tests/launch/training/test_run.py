"""Trainings one after another: what is closed however they end."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.launch.training import run
from dpscope.launch.training.settings import load_train_config
from dpscope.profiling.mirrors.mirror import TrainingMirror


@pytest.mark.process  # asks for the machine
def test_mirrors_are_closed_when_a_training_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Mirror(TrainingMirror):
        def close(self) -> None:
            closed.append(self)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    mirrors = [Mirror(lambda first: pytest.fail("nothing was trained")) for _ in range(2)]
    monkeypatch.setattr(run._Trainings, "prepare", fail)
    config = load_train_config(None, {"device": "cpu", "strategy": "single", "data": "fake"})
    with pytest.raises(OSError, match="disk full"):
        run.run_trainings(config, tmp_path / "run", False, Console(file=io.StringIO()), mirrors)
    assert set(closed) == set(mirrors)
