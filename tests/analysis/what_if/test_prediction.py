"""The answer in words: a sentence a configuration, and of many their ends."""

import pytest

from dpscope.analysis.what_if.prediction import Prediction, answer_sentences


def predicted(step_ms: float | None) -> Prediction:
    if step_ms is None:
        return Prediction(16, 2, 8, reason="nothing was measured between nodes")
    return Prediction(4, 1, 8, step_us=step_ms * 1e3, low_us=step_ms * 900, high_us=step_ms * 1100, efficiency=0.5)


@pytest.mark.parametrize(
    ("steps_ms", "expected"),
    [
        ([12, None], ["a: 12.0 ms a step (90% band 10.8 to 13.2), 50% of perfect scaling.",
                      "b: no number: nothing was measured between nodes."]),
        ([14, 12, 30, 20, 25], ["5 configurations, all with a number: 12.0 ms a step (b) to 30.0 ms (c)."]),
        ([14, 12, None, 20, 25], ["5 configurations, 4 with a number: 12.0 ms a step (b) to 25.0 ms (e)."]),
        ([12] * 6, ["6 configurations, all with a number: 12.0 ms a step."]),
        ([None] * 5, ["None of 5 configurations has a number: nothing was measured between nodes."]),
    ],
)  # fmt: skip
def test_a_sentence_each_or_the_ends_of_many(steps_ms: list[float | None], expected: list[str]) -> None:
    assert answer_sentences("abcdef"[: len(steps_ms)], [predicted(one) for one in steps_ms]) == expected
