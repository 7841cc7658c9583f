"""The decisive sentence about traces: numbers by hand, and the shared 8-GPU job."""

import pandas as pd

from dpscope.analysis.traces.ranks.decisive import decisive_findings, step_cost
from dpscope.analysis.traces.ranks.exposed_parts import exposed_parts
from dpscope.analysis.traces.ranks.step_waits import with_waits
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.paths import DATA, EXAMPLE_RUN

NOTHING = pd.DataFrame(columns=["rank", "device", "step", "start_us", "end_us"]).astype(
    {"rank": "Int64", "device": "Int64", "step": "Int64", "start_us": float, "end_us": float}
)


def steps(*rows: tuple[int, float, float | None, float | None]) -> pd.DataFrame:
    """rank, step_us, communication_us, exposed_us of step 1 on the device of the rank's number."""
    table = pd.DataFrame(rows, columns=["rank", "step_us", "communication_us", "exposed_us"])
    table = table.assign(device=table["rank"], step=1, partial_window=False)
    return table.astype(
        {"rank": "Int64", "device": "Int64", "step": "Int64", "communication_us": "Float64", "exposed_us": "Float64"}
    )


def collectives(*rows: tuple[int, float, float]) -> pd.DataFrame:
    """rank, duration_us, transfer_us of one all-reduce that all of them share."""
    table = pd.DataFrame(rows, columns=["rank", "duration_us", "transfer_us"])
    table = table.assign(device=table["rank"], step=1, match=0, start_us=0.0)
    table["wait_us"] = table["duration_us"] - table["transfer_us"]
    return table.astype({"rank": "Int64", "device": "Int64", "step": "Int64", "match": "Int64"})


def message(table: pd.DataFrame, reduced: pd.DataFrame, several: bool = True) -> str | None:
    steps = with_waits(table, reduced, exposed_parts(reduced, NOTHING))
    found = decisive_findings(step_cost(steps, reduced), several)
    return found[0].message if found else None


def test_waiting_for_one_rank_is_what_decides() -> None:
    # Three ranks of 44 ms steps; the all-reduce itself takes 1.2 ms. Ranks 0 and 1 are in it 10.2 and 19.2 ms:
    # they wait 9 and 18.
    table = steps((0, 44e3, 10.2e3, 10.2e3), (1, 44e3, 19.2e3, 19.2e3), (2, 44e3, 1.2e3, 1.2e3))
    reduced = collectives((0, 10.2e3, 1.2e3), (1, 19.2e3, 1.2e3), (2, 1.2e3, 1.2e3))
    assert message(table, reduced) == (
        "communication itself needs 1.20 ms of a 44.0 ms step; ranks 0 to 1 lose 9.00 ms to 18.0 ms a step waiting, 100% of it "
        "for rank 2"
    )


def test_short_waits_name_nobody() -> None:
    table = steps((0, 100e3, 10e3, 4e3), (1, 100e3, 11e3, 4e3))
    reduced = collectives((0, 10e3, 10e3), (1, 11e3, 10e3))
    assert message(table, reduced) == (
        "communication itself needs 10.0 ms of a 100.0 ms step, 4.00 ms of all communication is exposed, and no rank waits long "
        "for another"
    )


def test_one_process_cannot_tell_waiting() -> None:
    alone = collectives((0, 10e3, 10e3))
    alone[["transfer_us", "wait_us", "match"]] = pd.NA
    said = message(steps((0, 100e3, 10e3, 4e3)), alone, several=False)
    assert said == (
        "communication takes 10.0 ms of a 100.0 ms step, of which 4.00 ms (4% of the step) is exposed; how much of it is waiting "
        "is unknown, because only one process was read"
    )


def test_nothing_is_said_of_no_communication_and_of_unknown() -> None:
    reduced = collectives((0, 10e3, 10e3))
    assert message(steps((0, 100e3, 0.0, 0.0)), reduced) is None
    assert message(steps((0, 100e3, None, None)), reduced) is None
    host = analyze_traces([EXAMPLE_RUN / "cells/dp-host-d2-b8/repeat0/traces"])
    assert not [one for one in host.findings if one.code == "communication_cost"]


def test_eight_gpus_mostly_wait() -> None:
    # tests/data/README.md: ends agree within 7 us, starts differ by up to 7.6 ms; rank 7 comes last most often.
    found = [one for one in analyze_traces([DATA / "v100x8_ddp_dlrm"]).findings if one.code == "communication_cost"]
    assert [one.message for one in found] == [
        "communication itself needs 217.0 µs of a 14.5 ms step; ranks 0 to 7 lose 1.53 ms to 11.1 ms a step waiting, 76% of it "
        "for rank 7"
    ]
    assert found[0].next_step.startswith("see what rank 7 does before its collectives")
