"""What FSDP must move, by a pocket calculation, and traces that show it or do not."""

import pandas as pd
import pytest

from dpscope.analysis.runs.sharded_traffic import check_sharded, expected_bytes, padded_bytes
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import CellStrategy
from dpscope.profiling.records.wrapped import ShardedUnit

BLOCK = ShardedUnit(name="0", shapes=((10, 3), (4,)), trained=(True, False), element_bytes=(4, 4), resharded=True)
ROOT = ShardedUnit(name="", shapes=((6,),), trained=(True,), element_bytes=(2,), resharded=False)


@pytest.mark.parametrize(
    ("strategy", "devices", "accumulate", "expected"),
    [
        # Two devices: 10 x 3 x 4 B + 4 x 4 B = 136 B twice and 6 x 2 B = 12 B once; trained are 120 B and 12 B.
        ("fsdp", 2, 1, {"all_gather": 284, "reduce_scatter": 132}),
        ("fsdp-no-reshard", 2, 1, {"all_gather": 148, "reduce_scatter": 132}),
        # Each micro-batch gathers anew, the last one alone reduces.
        ("fsdp", 2, 3, {"all_gather": 852, "reduce_scatter": 132}),
        # Four devices: 10 rows are cut into 4 x 3, 6 elements into 4 x 2: (144 + 16) x 2 + 16, and 144 + 16.
        ("fsdp", 4, 1, {"all_gather": 336, "reduce_scatter": 160}),
        # Two groups of two: as on two devices, and each rank's half of 132 B is all-reduced.
        ("hsdp", 4, 1, {"all_gather": 284, "reduce_scatter": 132, "all_reduce": 66}),
    ],
)
def test_bytes_by_a_pocket_calculation(
    strategy: CellStrategy, devices: int, accumulate: int, expected: dict[str, int]
) -> None:
    resharded = strategy != "fsdp-no-reshard"
    block = ShardedUnit(**{name: getattr(BLOCK, name) for name in BLOCK.__struct_fields__} | {"resharded": resharded})
    cell = Cell(strategy=strategy, devices=devices, batch_size=4, options=CellOptions(accumulate=accumulate))
    assert expected_bytes(cell, (block, ROOT)) == expected


@pytest.mark.parametrize(
    ("strategy", "devices", "reduced"),
    [("fsdp", 2, {"reduce_scatter": 72}), ("hsdp", 4, {"reduce_scatter": 72, "all_reduce": 36})],
)
def test_a_hook_reduces_in_two_bytes_and_gathers_as_before(
    strategy: CellStrategy, devices: int, reduced: dict[str, int]
) -> None:
    """Over two devices 10 x 3 + 6 numbers are trained: 72 B of two bytes each, of which each rank of HSDP holds half."""
    cell = Cell(strategy=strategy, devices=devices, batch_size=4, options=CellOptions(comm_hook="bf16"))
    assert expected_bytes(cell, (BLOCK, ROOT)) == {"all_gather": 284, **reduced}


def test_a_parameter_is_padded_along_its_first_dimension_alone() -> None:
    assert padded_bytes((5, 7), 4, 2) == 6 * 7 * 4
    assert padded_bytes((5, 7), 4, 5) == 5 * 7 * 4
    assert padded_bytes((1,), 4, 8) == 8 * 4


def tables(cell: Cell, **bytes_of: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    places = [(rank, step) for rank in range(cell.devices) for step in (1, 2)]
    moved = [(rank, step, kind, size) for rank, step in places for kind, size in bytes_of.items()]
    collectives = pd.DataFrame(moved, columns=["rank", "step", "kind", "bytes"]).astype({"bytes": "Int64"})
    return pd.DataFrame(places, columns=["rank", "step"]), collectives


CELL = Cell(strategy="fsdp", devices=2, batch_size=4)


def test_a_trace_that_shows_all_is_sound() -> None:
    assert check_sharded(CELL, (BLOCK, ROOT), *tables(CELL, all_gather=284, reduce_scatter=132)) == []
    assert check_sharded(CELL, (BLOCK, ROOT), *tables(CELL, all_gather=290, reduce_scatter=130)) == []  # within 5%


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (
            {"all_gather": 148, "reduce_scatter": 132},
            "all-gathers of 284 B a step, the trace shows 148 B (rank 0, step 1)",
        ),
        ({"all_gather": 284}, "reduce-scatters of 132 B a step, the trace shows none with a size"),
        (
            {"all_gather": 284, "reduce_scatter": None},
            "reduce-scatters of 132 B a step, the trace shows none with a size",
        ),
        ({}, "all-gathers of 284 B"),
    ],
)
def test_a_trace_that_lacks_something_is_told(moved: dict[str, int | None], said: str) -> None:
    (finding,) = check_sharded(CELL, (BLOCK, ROOT), *tables(CELL, **moved))
    assert finding.code == "trace_incomplete"
    assert said in finding.message


def test_a_rank_without_a_trace_is_told() -> None:
    steps, collectives = tables(CELL, all_gather=284, reduce_scatter=132)
    (finding,) = check_sharded(CELL, (BLOCK, ROOT), steps[steps["rank"] == 0], collectives[collectives["rank"] == 0])
    assert "traces of 2 ranks" in finding.message
