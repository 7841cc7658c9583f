"""Phases, waits and contention as tables and JSON, over repeats, by hand."""

from dataclasses import replace

from dpscope.analysis.report.rank_tables import (
    contention_table,
    phase_table,
    rank_table,
    wait_table,
)
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.contention import Contention, Contentions
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.run import Cell
from tests.helpers.examples import loaded
from tests.helpers.run_cells import cell_data, traced_table, windows, with_tables

DDP = Cell(strategy="ddp", devices=2, batch_size=8)
STEPS = 2


def with_waits(per_repeat: list[tuple[float, float]]) -> Job:
    """Per repeat and step one all-reduce of 10 us transfer, in which rank 0 and rank 1 wait so
    long.
    """
    rows = (
        {
            "repeat": repeat, "rank": rank, "device": 0, "step": step, "match": step, "start_us": 100.0 * step,
            "duration_us": 10.0 + wait, "transfer_us": 10.0, "wait_us": wait,
        }
        for repeat, waits in enumerate(per_repeat)
        for rank, wait in enumerate(waits)
        for step in range(STEPS)
    )  # fmt: skip
    repeats, collectives = len(per_repeat), traced_table("collectives", rows)
    return cell_data(
        DDP, [[1.0] * 5] * repeats, windows(DDP, STEPS, repeats, step_us=100.0), collectives
    )


def test_waits_are_means_over_all_repeats() -> None:
    """Rank 0 waits 30 us a step in repeat 0, rank 1 10 us in repeat 1, no rank in repeat 2: 30/3
    and 10/3 us a step.

    Of these, 15 and 10 us are not behind compute: 5 and 3.3 us a step, 60 and 40% of 8.3 us.
    """
    data = with_waits([(30.0, 0.0), (0.0, 10.0), (0.0, 0.0)])
    rows = (
        {
            "repeat": repeat,
            "rank": rank,
            "device": 0,
            "step": step,
            "part": "wait",
            "late_rank": 1 - rank,
            "time_us": time,
        }
        for repeat, rank, time in ((0, 0, 15.0), (1, 1, 10.0))
        for step in range(STEPS)
    )
    waiting = {(0, 0): 15.0, (1, 1): 10.0}
    places = zip(
        data.tables.steps["repeat"].tolist(), data.tables.steps["rank"].tolist(), strict=True
    )
    steps = data.tables.steps.assign(exposed_wait_us=[waiting.get(place, 0.0) for place in places])
    data = with_tables(data, steps=steps, exposed_parts=traced_table("exposed_parts", rows))
    table = wait_table({"ddp-d2-b8": data.mean_waits})
    assert table.headings == (
        "cell", "late rank", "waiting rank", "collectives", "exposed wait [µs]", "share [%]", "all waiting [µs]",
    )  # fmt: skip
    assert table.rows == (
        ("ddp-d2-b8", "1", "0", "2", "5.00", "60.0", "10.00"),
        ("ddp-d2-b8", "0", "1", "2", "3.33", "40.0", "3.33"),
    )
    ranks = rank_table([data])
    assert [row[ranks.headings.index("wait [µs]")] for row in ranks.rows] == ["5.0", "3.3"]


def test_phases_are_means_over_repeats_without_the_first_step() -> None:
    """Whole steps 1 and 2: 10 and 20 us in repeat 0, 30 and 40 us in repeat 1: 15 and 35, so 25
    us.
    """
    times = {(0, 0): 500.0, (0, 1): 10.0, (0, 2): 20.0, (1, 0): 500.0, (1, 1): 30.0, (1, 2): 40.0}
    rows = (
        {"repeat": repeat, "rank": 0, "device": 1, "step": step, "phase": "gather", "time_us": time}
        for (repeat, step), time in times.items()
    )
    table = phase_table({"dp-d2-b8": traced_table("dp_phases", rows)})
    row = dict(zip(table.headings, table.rows[0], strict=True))
    assert (row["cell"], row["device"], row["gather [µs]"], row["scatter [µs]"]) == (
        "dp-d2-b8",
        "1",
        "25.0",
        "NA",
    )


def test_the_parts_of_a_ranks_row_add_up_to_its_step() -> None:
    """Each is rounded to 0.1; cells of one rank have no row."""
    table = rank_table(loaded().measured)
    assert [row[1] for row in table.rows if row[0] == "ddp-d2-b8"] == ["0", "1"]
    assert not [row for row in table.rows if row[0].startswith("single")]
    for row in table.rows:
        step, *parts = (0.0 if value == "NA" else float(value) for value in row[3:])
        assert abs(step - sum(parts)) <= 0.06 * len(parts)


EVERY = Contention(None, 1.25, Interval(1.1, 1.4), 0.2, Interval(0.1, 0.3), 800.0, 40, 0.5)


def contention_rows(found: Contentions) -> tuple[tuple[str, ...], ...]:
    return contention_table([("ddp-d2-b8", found, 4000.0)]).rows


def test_costs_and_net_gains_are_per_step() -> None:
    """20% of 4 ms are 0.8 ms; an operator with half of the overlapped time has half of both."""
    one = replace(EVERY, operator="aten::mm", overlapped_us=400.0, ratio_interval=None)
    assert contention_rows(Contentions(EVERY, (one,))) == (
        ("ddp-d2-b8", "all operators", "1.25", "1.10 to 1.40", "4.00", "0.80", "3.20", "50%"),
        ("ddp-d2-b8", "aten::mm", "1.25", "NA", "2.00", "0.40", "1.60", "50%"),
    )
