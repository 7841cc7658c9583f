"""Scripts that record CUDA graphs: within a recording dpscope calls no profiler, waits for no
device and counts no step.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from dpscope.profiling.attached import windows
from dpscope.profiling.attached.settings import STEP_RECORDED
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.store.folders import is_run_folder
from tests.helpers.attached_scripts import (
    TRACED,
    UNTIMED,
    WARMUP,
    WHOLE,
    attached,
    measured,
    net_with_sgd,
    train,
)

FOR_GRAPHS = "take the loop's batches from watch_steps and attach with --steps-by call"


class Graphs:
    """A double of CUDA's graphs: a recording, in which the calls that would end a real one with an
    error fail.
    """

    def __init__(self) -> None:
        self.recording = False

    def refusing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.recording:
                raise RuntimeError(
                    "CUDA error: operation not permitted when stream is capturing\nmore"
                )
            return original(*args, **kwargs)

        return called

    def record(self, step: Callable[[], None]) -> None:
        """As ``with torch.cuda.graph(g): step()``."""
        self.recording = True
        step()
        self.recording = False


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    double = Graphs()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: double.recording)
    monkeypatch.setattr(windows, "finish_work", double.refusing(windows.finish_work))
    for name in ("start", "step_ended", "stop"):
        monkeypatch.setattr(StepTrace, name, double.refusing(getattr(StepTrace, name)))
    return double


@pytest.mark.parametrize("eager", [WARMUP - 1, WARMUP, WARMUP + 1, WARMUP + TRACED - 1, UNTIMED])
def test_the_step_after_a_recorded_one_ends_the_measurement(
    tmp_path: Path, graphs: Graphs, eager: int
) -> None:
    """In the warm-up, under the tracer, before the timed steps: the next step ended a window in
    these.
    """
    notes: list[str] = []
    model, optimizer = net_with_sgd()
    with attached(tmp_path, notes):
        train(model, optimizer, eager)
        graphs.record(lambda: train(model, optimizer, 1))
        assert notes == []
        train(model, optimizer, 1)
        (note,) = notes
        assert note.startswith(f"{STEP_RECORDED}: nothing was measured: {eager} steps of 16")
        assert note.endswith(FOR_GRAPHS)
        assert not _profiler_enabled()
        train(model, optimizer, WHOLE)  # such as with another graph's batch
    assert len(notes) == 1
    assert not is_run_folder(tmp_path)


def test_steps_timed_before_the_recording_are_kept(tmp_path: Path, graphs: Graphs) -> None:
    notes: list[str] = []
    model, optimizer = net_with_sgd()
    with attached(tmp_path, notes):
        train(model, optimizer, UNTIMED + 2)
        graphs.record(lambda: train(model, optimizer, 1))
    (note,) = notes
    timed = "2 of 4 steps were timed, 1 traced; what was measured is saved"
    assert note == f"{STEP_RECORDED}: {timed}"
    _, _, rank, samples = measured(tmp_path)
    assert list(samples["measuring_pass"]).count("timed") == 2
    (early,) = (finding for finding in rank.findings if finding.code == "script_ended_early")
    assert early.next_step == FOR_GRAPHS


@pytest.mark.parametrize("recorded_after", [0, 1])
def test_a_recorded_model_whose_optimizer_is_called_is_measured(
    tmp_path: Path, graphs: Graphs, recorded_after: int
) -> None:
    """As by make_graphed_callables: passes are recorded, steps are not, and the recording is none
    of them.
    """
    notes: list[str] = []
    model, optimizer = net_with_sgd()
    with attached(tmp_path, notes) as session:
        train(model, optimizer, recorded_after)
        before = session._steps
        graphs.record(lambda: model(torch.ones(8, 3)).sum().backward())
        assert session._steps == before
        train(model, optimizer, WHOLE + 2)
    assert notes == []
    _, _, _, samples = measured(tmp_path)
    assert list(samples["samples"]) == [8] * len(samples)
