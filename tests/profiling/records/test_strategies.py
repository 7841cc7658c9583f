"""The strategies' records: complete, and consistent with each other."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from dpscope.profiling.records.strategies import STRATEGIES, Strategy, strategy_order, traits_of
from tests.helpers.paths import ROOT
from tests.helpers.sources import SOURCES, syntax_nodes

FOLDERS_THAT_NAME_STRATEGIES = ("profiling/records", "launch/workload")


def test_a_stand_in_takes_the_place_of_its_original() -> None:
    """Unknown names come last."""
    assert (
        strategy_order("dp-host")
        == strategy_order("dp")
        < strategy_order("ddp")
        < strategy_order("hsdp")
    )
    assert strategy_order("hsdp") < strategy_order("custom") < strategy_order("pipeline")


def test_the_glossary_explains_what_users_request() -> None:
    assert [one for one in get_args(Strategy) if not traits_of(one).meaning] == [], (
        "give its record a `meaning`"
    )


@pytest.mark.long
def test_no_other_code_compares_the_name_of_a_strategy() -> None:
    """Code that distinguishes strategies uses their records."""
    others = [
        path
        for path in SOURCES
        if not str(path.relative_to(ROOT)).startswith(FOLDERS_THAT_NAME_STRATEGIES)
    ]
    assert [f"{path}:{line}" for path in others for line in _comparisons(path)] == [], (
        "ask the strategy's record, StrategyTraits: add a trait where none says what differs"
    )


def _comparisons(path: Path) -> list[int]:
    """Lines that compare an expression named like a strategy with a strategy's name."""
    lines = []
    for node in syntax_nodes(path):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            texts = [ast.unparse(one) for one in operands]
            names = [
                one.value
                for operand in operands
                for one in ast.walk(operand)
                if isinstance(one, ast.Constant)
            ]
            if any("strateg" in text for text in texts) and any(
                name in {*STRATEGIES, "other"} for name in names
            ):
                lines.append(node.lineno)
    return lines
