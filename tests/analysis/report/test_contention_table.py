"""The page's table of contention: a row for all operators, then the five that cost most, per step."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from dpscope.analysis.report.contention_table import contention_table
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.contention import Contention, Contentions
from dpscope.analysis.traces.ranks.ledger import Ledger

EVERY = Contention(None, 1.25, Interval(1.1, 1.4), 0.2, Interval(0.1, 0.3), 800.0, 40, 0.5)
LEDGER = Ledger(10e3, 8e3, None, None, 1e3, 1e3, communication_us=5e3)  # 4 ms hidden


def table(found: Contentions) -> Any:
    return contention_table(cast(Any, SimpleNamespace(contentions={"ddp-d2-b8": found}, ledgers={"ddp-d2-b8": LEDGER})))


def test_costs_and_net_gains_are_per_step() -> None:
    """20% of 4 ms are 0.8 ms; an operator with half of the overlapped time has half of both."""
    one = replace(EVERY, operator="aten::mm", overlapped_us=400.0, ratio_interval=None)
    shown = table(Contentions(EVERY, (one,)))
    assert shown.rows == (
        ("ddp-d2-b8", "all operators", "1.25", "1.10 to 1.40", "4.00", "0.80", "3.20", "50%"),
        ("ddp-d2-b8", "aten::mm", "1.25", "NA", "2.00", "0.40", "1.60", "50%"),
    )


def test_five_operators_are_shown_and_nothing_without_an_estimate() -> None:
    operators = tuple(replace(EVERY, operator=f"aten::op{index}", overlapped_us=100.0) for index in range(8))
    assert [row[1] for row in table(Contentions(EVERY, operators)).rows][1:] == [
        f"aten::op{index}" for index in range(5)
    ]
    assert table(Contentions(None, reason="no kernel ran while communication ran")) is None
