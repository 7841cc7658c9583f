"""How many samples the arguments of a model's call hold, and which calls count."""

from typing import NamedTuple

import pytest
import torch

from dpscope.profiling.attached.model_calls import ModelCalls, samples_of

IMAGE = torch.zeros(3, 8, 8)
ROWS = torch.zeros(32, 10)
BOXES = {"boxes": torch.zeros(2, 4), "labels": torch.zeros(2)}


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
        # Images of three channels in a list: four, or a batch of three in four inputs; three of
        # three are sure.
        ([[IMAGE] * 4], None),
        ([[IMAGE] * 3], 3),
        ([[IMAGE] * 4, [BOXES] * 4], 4),
        ([[IMAGE] * 4, torch.zeros(4)], 4),
        ([[IMAGE] * 4, torch.zeros(3)], 3),  # four inputs of three samples each
        ([[torch.zeros(length) for length in (5, 7, 9, 5)]], 4),  # sentences
        # Several inputs: they are not samples, since they differ in type or dimensions, or their
        # targets say so.
        ([[ROWS, torch.zeros(32, 3, 8, 8)]], 32),
        ([(ROWS, torch.zeros(32, 10, dtype=torch.long))], 32),
        ([(ROWS, ROWS)], None),
        ([(ROWS, ROWS), torch.zeros(32)], 32),
        ([Pair(ROWS, torch.zeros(32))], 32),
        ([{"words": torch.zeros(8, 12), "lengths": torch.zeros(8)}], 8),
        ([{"words": torch.zeros(8, 12), "mask": torch.zeros(12, 12)}], None),
        ([{"image": {"left": ROWS, "right": ROWS}, "scale": 2.0}], 32),
        ([], None),
        (["train", 3], None),
        ([[]], None),
    ],
)
def test_the_only_number_that_all_arguments_may_stand_for(
    arguments: list[object], samples: int | None
) -> None:
    assert samples_of(arguments) == samples


def test_calls_that_a_graph_records_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs in them: reading the inputs for their checksum would end the recording with an
    error.
    """
    training_calls: list[str] = []
    calls = ModelCalls("cuda", on_training=lambda: training_calls.append("call"))
    model = torch.nn.Linear(10, 2)
    calls.watch([model])
    recording = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    model(ROWS)
    with torch.no_grad():
        model.eval()(ROWS)
    model.train()
    recorded = calls.take()
    assert (recorded.each, recorded.other, training_calls, calls.inputs) == ([], 0, [], None)
    recording = False
    model(ROWS + torch.arange(10))
    assert (calls.take().each, training_calls) == ([32], ["call"])
    assert calls.inputs is not None
    calls.stop()
