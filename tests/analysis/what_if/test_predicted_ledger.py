"""Ledgers of predicted steps, on the base of test_predict.py: by pocket calculation, and that they
always add up.
"""

from dataclasses import replace

import pytest

from dpscope.analysis.costs.cost import Links
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger
from dpscope.analysis.what_if.predict import predict
from dpscope.analysis.what_if.scenario import Base, Scenario
from dpscope.profiling.machine.link_specifications import parse_link
from tests.helpers.known import known
from tests.helpers.replayed_steps import BASE, COSTS, PROFILE


def parts(base: Base = BASE, costs: Costs = COSTS, **question: object) -> list[float | None]:
    """Compute, wait, transfer, other, idle."""
    found = predict(base, Scenario(**question), costs)  # type: ignore[arg-type]
    return [getattr(known(found.ledger), f"{name}_us") for name in STEP_PARTS]


def test_a_rank_that_is_no_longer_late_takes_waiting_off() -> None:
    """5 us late at 150 and 200; the second moves from 205 to 225: 5 us of waiting, 20 of
    transfer.
    """
    late = replace(
        PROFILE, buckets=tuple(replace(one, late_us=5.0) for one in PROFILE.buckets), step_us=235.0
    )
    every = (late, replace(PROFILE, rank=1))
    base = replace(
        BASE,
        profiles=(late,),
        every=every,
        step_us=235.0,
        ledger=Ledger(235.0, 210.0, 5.0, 20.0, 0.0, 0.0),
    )
    assert parts(base, on_time=1) == pytest.approx([210, 0, 20, 0, 0])


def test_parts_that_are_not_known_stay_so_and_one_device_communicates_nothing() -> None:
    unsplit = replace(BASE, ledger=Ledger(230.0, 210.0, None, None, 20.0, 0.0))
    assert parts(unsplit, devices=4) == [
        pytest.approx(210),
        None,
        None,
        pytest.approx(30),
        pytest.approx(0),
    ]
    assert parts(devices=1) == [pytest.approx(210), 0, 0, 0, pytest.approx(0)]
    unknown = predict(replace(BASE, ledger=None), Scenario(devices=4), COSTS)
    assert (unknown.ledger, unknown.bound_by) == (None, None)


@pytest.mark.parametrize(
    "question",
    [
        {"devices": 8},
        {"devices": 1},
        {"overlap": False},
        {"batch_size": 8, "accumulate": 2},
        {"links": Links(intra=parse_link("1GB/s"))},
        {"accumulate": 4, "devices": 16},
    ],
)
@pytest.mark.parametrize(
    "ledger",
    [(210.0, 0.0, 20.0, 0.0, 0.0), (195.0, 2.0, 12.0, 1.0, 20.0), (90.0, 100.0, 2.0, 0.0, 38.0)],
)
@pytest.mark.parametrize("tracer_us", [None, -30.0, 8.0])
def test_the_parts_add_up_and_none_is_negative(
    question: dict[str, object],
    ledger: tuple[float, float, float, float, float],
    tracer_us: float | None,
) -> None:
    """Whatever was measured of a part, also less than the replay takes off it."""
    traced_us = 230.0 - (tracer_us or 0.0)
    compute, wait, transfer, other, idle = ledger
    parts_us = (compute + traced_us - 230.0, wait, transfer, other, idle)
    base = replace(BASE, ledger=Ledger(traced_us, *parts_us, tracer_us=tracer_us))
    found = predict(base, Scenario(**question), COSTS)  # type: ignore[arg-type]
    values = known(found.ledger).parts_us.values()
    assert min(values) >= 0
    assert sum(values) + (tracer_us or 0.0) == pytest.approx(known(found.step_us))
    assert found.exposed_us == pytest.approx(known(found.ledger).exposed_us or 0.0)
