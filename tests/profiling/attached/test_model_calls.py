"""How many samples the arguments of a model's call hold, and which calls count."""

from typing import NamedTuple

import pytest
import torch

from dpscope.profiling.attached.model_calls import ModelCalls, samples_of

IMAGE = torch.zeros(3, 8, 8)
ROWS = torch.zeros(32, 10)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [
        ([ROWS], 32),
        ([ROWS, torch.zeros(10, 10)], 32),  # a mask
        ([torch.zeros(()), ROWS], 32),
        (["train", ROWS], 32),
        ([[IMAGE] * 4], None),  # four images of three channels, or a batch of three in four inputs
        ([[IMAGE] * 4, torch.zeros(4)], None),
        ([[ROWS, torch.zeros(32).long()], 0], 32),  # as a loader gives samples and targets
        ([[ROWS, torch.zeros(16).long()]], None),
        ([Pair(ROWS, torch.zeros(32))], 32),
        ([{"words": torch.zeros(8, 12), "lengths": torch.zeros(8), "scale": 2.0}], 8),
        ([{"words": torch.zeros(8, 12), "mask": torch.zeros(12, 12)}], None),
        ([], None),
        (["train", 3], None),
        ([[]], None),
    ],
)
def test_samples_by_the_first_argument_that_holds_tensors(
    arguments: list[object], samples: int | None
) -> None:
    assert samples_of(arguments) == samples


def test_calls_that_a_graph_records_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs in them: reading the inputs for their checksum would end the recording with an
    error.
    """
    calls = ModelCalls("cuda")
    model = torch.nn.Linear(10, 2)
    calls.watch([model])
    recording = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    model(ROWS)
    with torch.no_grad():
        model.eval()(ROWS)
    model.train()
    recorded = calls.take()
    assert (recorded.each, recorded.other, calls.inputs) == ([], 0, None)
    recording = False
    model(ROWS + torch.arange(10))
    assert calls.take().each == [32]
    assert calls.inputs is not None
    calls.stop()
