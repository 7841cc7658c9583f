"""Numbers with their nouns, as every message shows them."""

import pytest

from dpscope.analysis.what_if.answers.questions import _alike
from dpscope.profiling.records.finding import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "process", "1 process"),
        (8, "process", "8 processes"),
        (1, "core", "1 core"),
        (1, "epoch", "1 epoch"),
        (2, "epoch", "2 epochs"),
        (0, "step", "0 steps"),
        (2, "batch", "2 batches"),
        (2, "copy", "2 copies"),
        (2, "traced step", "2 traced steps"),
        (1200, "backward pass", "1,200 backward passes"),
    ],
)
def test_plurals_agree_with_numbers(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_bucket_sizes_that_print_alike_are_one_size() -> None:
    assert _alike(5, 41) == "Buckets of 5 to 41 MiB are alike"
    assert "41 to 41" not in _alike(41, 41.04)
