"""Reasons for little overlap: each from tables with a planted cause, and a near miss without it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from dpscope.analysis.findings.no_overlap import no_overlap_finding, overlap_reasons
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import CellStrategy
from tests.helpers.run_cells import (
    all_reduces,
    cell_data,
    traced_table,
    windows,
    with_ranks,
    with_tables,
)

MB = 10**6
STEPS = 4


def cell(strategy: CellStrategy = "ddp", **options: object) -> Cell:
    return Cell(strategy=strategy, devices=2, batch_size=8, options=CellOptions(**options))  # type: ignore[arg-type]


def planted(
    made: Cell,
    buckets: Sequence[tuple[float, float, float]],
    done: Sequence[float],
    on_device: bool = True,
    steps: int = STEPS,
    **columns: float,
) -> Job:
    """Steps of 100 ms: 50 ms computing, 20 ms communication, 1 ms of it hidden; `buckets` as
    (bytes, ready, transfer).
    """
    usual = {
        "step_us": 100e3, "compute_us": 50e3, "communication_us": 20e3, "hidden_us": 1e3, "exposed_us": 19e3,
        "idle_us": 10e3, "exposed_wait_us": 0.0,
    }  # fmt: skip
    table = all_reduces(made, steps, buckets)
    table = table.assign(compute_done=np.array(done)[table["order"]], queue_us=100.0)
    whole = windows(msgspec.structs.replace(made, strategy="ddp"), steps, 1, **{**usual, **columns})
    whole, table = (one if on_device else one.assign(device=None) for one in (whole, table))
    return cell_data(made, [[100e3] * 6], whole, table)


EVEN = [(4 * MB, 30e3, 5e3), (4 * MB, 50e3, 5e3), (4 * MB, 70e3, 5e3)]
EARLY = (0.2, 0.5, 0.9)


def even(made: Cell | None = None, done: Sequence[float] = EARLY, **changes: Any) -> Job:
    """Three equal buckets."""
    return planted(made or cell(), EVEN, done, **changes)


def texts(data: Job) -> dict[str, str]:
    return {reason.name: reason.text for reason in overlap_reasons(data)}


def test_well_overlapped_communication_has_no_finding() -> None:
    assert not list(no_overlap_finding(even(hidden_us=15e3, exposed_us=5e3)))
    assert not list(no_overlap_finding(even(exposed_us=4e3)))  # 4% of the step
    assert overlap_reasons(even(cell("dp"))) == []
    assert overlap_reasons(replace(even(), communication_known=False)) == []


def test_one_bucket() -> None:
    one = planted(cell(), [(40 * MB, 90e3, 15e3)], (0.97,))
    (finding,) = no_overlap_finding(one)
    reason = "a step is hidden: all gradients are reduced in one bucket of 40.0 MB, ready when 97% of the step's compute is done"
    assert reason in finding.message
    assert "--bucket-mb" in finding.next_step
    assert finding.severity == "warning"
    assert "--bucket-mb" not in finding.advised(in_a_script=True).next_step
    requested = planted(cell(overlap="off"), [(40 * MB, 90e3, 15e3)], (0.97,))
    assert list(texts(requested)) == ["overlap_off"]
    assert list(texts(planted(cell(), [(4_000, 90e3, 15e3)], (0.97,)))) == ["few_bytes"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            planted(
                cell(),
                [(2 * MB, 30e3, 2e3), (6 * MB, 50e3, 3e3), (32 * MB, 90e3, 10e3)],
                (0.2, 0.5, 0.99),
            ),
            "last_bucket: the last of 3 buckets holds 80% of the bytes (32.0 MB of 40.0 MB), ready when 99% of",
        ),
        (
            planted(
                cell(),
                [(32 * MB, 30e3, 10e3), (6 * MB, 50e3, 3e3), (2 * MB, 90e3, 2e3)],
                (0.2, 0.5, 0.99),
            ),
            "",
        ),
        # A metric's 4 bytes hide nothing: all that counts travels in one bucket, or in the last.
        (
            planted(cell(), [(40 * MB, 90e3, 15e3), (4, 91e3, 50.0)], (0.97, 1.0)),
            "one_bucket: all gradients are reduced in one bucket of 40.0 MB, ready when 97% of the step's compute is done",
        ),
        (
            planted(
                cell(),
                [(2 * MB, 30e3, 2e3), (32 * MB, 90e3, 10e3), (4, 91e3, 50.0)],
                (0.2, 0.99, 1.0),
            ),
            "last_bucket: the last of 2 buckets holds 94% of the bytes",
        ),
        (
            even(done=(0.9, 0.95, 1.0)),
            "late_buckets: its buckets are ready only when the step's compute is nearly done: 4.00 MB at 90%, 4.00 MB at 95%, "
            "4.00 MB at 100%",
        ),
        (even(done=(0.5, 0.95, 1.0)), ""),
        # 10 ms x (1 - 0.3) = 7 ms are left; the transfers need 15 ms. Of 50 ms enough is left,
        # unless the buckets are late.
        (
            even(done=(0.3, 0.6, 1.0), compute_us=10e3),
            "little_computing: only 7.00 ms of compute is left when the first bucket is ready, and the transfers need 15.0 ms",
        ),
        (even(done=(0.3, 0.6, 1.0), compute_us=11e3), ""),  # 7.7 ms are left
        # 20 ms of it are the optimizer's, which waits for the last gradient: 10 ms x (1 - 0.3).
        (
            even(done=(0.3, 0.6, 1.0), compute_us=30e3, optimizer_us=20e3),
            "little_computing: only 7.00 ms of compute is left when the first bucket is ready",
        ),
    ],
)
def test_what_the_buckets_show(data: Job, expected: str) -> None:
    found = [f"{name}: {text}" for name, text in texts(data).items()]
    assert len(found) == bool(expected)
    assert "".join(found).startswith(expected)


def test_the_engine_that_may_serialise() -> None:
    """3 x 5 of 19 ms exposed compute stood still; where it did not, the engine is not blamed."""
    data = even()
    suspected = with_ranks(data, nccl_engine="ProcessGroupNCCL2")
    assert overlap_reasons(suspected) == []
    held = data.tables.collectives.assign(held_us=5e3)
    (reason,) = overlap_reasons(with_tables(suspected, collectives=held))
    assert reason.text == (
        "compute that was already launched waits for 15.0 ms of the 19.0 ms exposed, until a collective ends"
    )
    assert reason.name == "engine"
    assert list(texts(with_tables(data, collectives=held))) == ["held_compute"]
    # of 3 x 10 ms as much explains it as is exposed
    longer = overlap_reasons(with_tables(suspected, collectives=held.assign(held_us=10e3)))
    assert [one.explains_us for one in longer] == [19e3]


@pytest.mark.parametrize(("kind", "strategy"), [("broadcast", "ddp"), ("all_gather", "fsdp")])
def test_collectives_that_the_next_compute_waits_for(kind: str, strategy: CellStrategy) -> None:
    data = even(cell(strategy))
    table, others = (
        data.tables.collectives,
        "reduce_scatter" if strategy == "fsdp" else "all_reduce",
    )
    table = table.assign(kind=np.where(table["order"] == 0, kind, others).tolist())
    ((name, text),) = texts(with_tables(data, collectives=table)).items()
    assert (name, text[:13]) == (kind, "33% of it is ")


def waited(late: int | None) -> Job:
    """15 of 19 ms exposed are the other rank's wait for one that is late in all steps, or in turn
    with it.
    """
    waiting = even(exposed_wait_us=15e3)
    table = waiting.tables.collectives
    last = table["step"] % 2 if late is None else late
    wait_us = np.where(table["rank"] == last, 0.0, 15e3)
    table = table.assign(wait_us=wait_us, duration_us=table["transfer_us"] + wait_us)
    rows = (
        {
            "rank": 1 - late_rank,
            "device": 0,
            "step": step,
            "kind": "all_reduce",
            "late_rank": late_rank,
            "time_us": 15e3,
        }
        for step in range(STEPS)
        for late_rank in [step % 2 if late is None else late]
    )
    return with_tables(
        waiting,
        collectives=table,
        exposed_parts=traced_table("exposed_parts", rows).assign(part="wait"),
    )


def test_ranks_that_take_turns_are_not_called_one_late_rank() -> None:
    turns = "rank 0 in 2 of 4 steps, rank 1 in 2"
    assert texts(waited(None)) == {
        "uneven_ranks": f"15.0 ms of the 19.0 ms exposed is waiting for the last rank; no rank is always late ({turns})"
    }
    assert texts(even(exposed_wait_us=5e3)) == {}


def test_a_late_rank_is_named_with_its_doubt() -> None:
    """In 2 steps of two ranks some rank comes last in both by chance in every second job."""
    four = waited(1)
    waiting = "15.0 ms of the 19.0 ms that each other rank exposes is waiting for rank 1"
    assert texts(four) == {"late_rank": f"{waiting} (last in 4 of 4 traced steps)"}
    matched = four.tables.collectives
    two = with_tables(four, collectives=matched.take(matched["step"] < 2))
    doubt = "last in 2 of 2 traced steps: too few to exclude chance"
    assert texts(two) == {"late_rank": f"{waiting} ({doubt})"}


def test_fsdp_with_one_block_is_advised_to_shard_more() -> None:
    data = planted(cell("fsdp"), [(40 * MB, 90e3, 15e3)], (0.97,))
    scattered = data.tables.collectives.assign(kind="reduce_scatter")
    (reason,) = overlap_reasons(with_tables(data, collectives=scattered))
    assert reason.text == (
        "all gradients are reduced in one reduce-scatter of 40.0 MB, ready when 97% of the step's compute is done"
    )
    assert "fully_shard" in reason.cause.advice


def test_unused_parameters_are_looked_for() -> None:
    data = planted(cell(ddp_args="find_unused_parameters=true"), EVEN, EARLY)
    assert list(texts(data)) == ["find_unused_parameters"]


def test_gloo_shares_the_cores() -> None:
    (finding,) = no_overlap_finding(even(on_device=False))
    assert finding.severity == "info"
    assert finding.message.endswith("gloo's threads share the cores with compute (2 processes)")
