"""The values that the analysis gives for stored and generated data stay as they are; how a change
of one is reported.
"""

import pytest

from tests.analysis.goldens import (
    COMMAND,
    NO_VALUE,
    SENTENCE,
    SOURCES,
    Golden,
    differences,
    flat,
    stored,
    tables_of,
)

LONG = {"run_cpu", "run_tiny", "attached_tiny", "v100x8"}


@pytest.mark.parametrize(
    "source", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SOURCES]
)
def test_values_are_those_stored(source: str) -> None:
    found = differences(source, stored(source), SOURCES[source]())
    advice = f"{len(found)} differences; if all are meant: {COMMAND} {source}, and say why"
    assert found == [], "\n".join([*found[:40], advice])


def test_a_difference_names_table_column_row_and_both_values() -> None:
    expected: Golden = {"cells": {"rows": [2], "step_us": [10.0, 20.0], "devices": [1, 2]}}
    found: Golden = {
        "cells": {"rows": [2], "step_us": [10.0, 20.1], "devices": [1, 2], "idle_us": [None, 3.0]}
    }
    assert differences("run", expected, found) == [
        "run: cells, column idle_us, row 1: expected None, found 3.0",
        "run: cells, column step_us, row 1: expected 20.0, found 20.1",
    ]
    near: Golden = {"cells": {"rows": [2], "step_us": [10.0, 20.0 * (1 + 1e-9)], "devices": [1, 2]}}
    assert differences("run", expected, near) == []
    assert differences("run", expected, {}) != []


def test_a_record_keeps_numbers_and_the_presence_of_reasons_and_sentences() -> None:
    record = {
        "a": 1.23456789012,
        "law": {"b_us": 2},
        "why": "no trace",
        "c": None,
        "d": None,
        "missing": {"c": "why"},
    }
    assert flat(record) == {
        "a": 1.23456789,
        "law.b_us": 2,
        "why": SENTENCE,
        "c": NO_VALUE,
        "d": None,
    }
    assert tables_of({"findings": [{"code": "b"}, {"code": "a", "message": "x y"}]}) == {
        "findings": {"rows": [2], "code": ["a", "b"], "message": [SENTENCE, None]}
    }
