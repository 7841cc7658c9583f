"""What is worth most on the base of test_predict.py, by pocket calculation."""

import pytest

from dpscope.analysis.what_if.answers.worth import TWICE_AS_FAST, Worth, worth, worth_sentence
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from tests.helpers.replayed_steps import BASE, COSTS


def test_what_is_worth_most_comes_first() -> None:
    found = worth(BASE, Scenario(), COSTS)
    assert {one.change for one in found} >= {"infinite bandwidth", "zero latency", "no late rank", TWICE_AS_FAST}
    saved = {one.change: one.saved_us for one in found}
    assert saved["infinite bandwidth"] == pytest.approx(20)
    assert saved[TWICE_AS_FAST] == pytest.approx(105)
    assert found[0].change == TWICE_AS_FAST
    assert not next(one for one in found if one.change == "no late rank").certain


def test_what_would_not_show_in_its_digits_is_worth_nothing() -> None:
    found = [Worth("fast", 2040.0, 2000.0, 2080.0, True), Worth("slow", 0.0, 0.0, 0.0, False)]
    said = "What is worth most on 1 device, each alone: fast -2.0 ms; worth nothing: slow."
    assert worth_sentence(found, 1) == said
    assert worth_sentence(found[1:], 2) == "What is worth most on 2 devices, each alone: worth nothing: slow."
