"""What processes of a script did together, by the checksums of their inputs, and which cell a script lacks."""

from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.runs.script_findings import input_findings
from dpscope.profiling.records.run import AttachedProcess, Cell, RankResult
from dpscope.profiling.records.strategies import CellStrategy
from tests.helpers.run_cells import cell_data, rank_result, run_of, windows


def ranks(cell: Cell, inputs: tuple[int | None, ...], model_parallel: bool = False) -> list[RankResult]:
    return [
        msgspec.structs.replace(
            rank_result(rank, len(inputs)),
            attached=AttachedProcess(cell, True, inputs=one, model_parallel=model_parallel),
        )
        for rank, one in enumerate(inputs)
    ]


@pytest.mark.parametrize(
    ("strategy", "inputs", "expected"),
    [
        ("ddp", (1, 2), []),
        ("ddp", (None, None), []),  # constant inputs show nothing
        ("ddp", (1, None), []),
        ("ddp", (1, 1), ["same_inputs: ddp-d2-b8: 2 processes trained on the same inputs in the first steps"]),
        ("custom", (7, 7), ["model_parallel: custom-d2-b8: 2 processes trained on the same inputs in the first steps"]),
        ("custom", (7, 8), []),
        (
            "fsdp",
            (1, 1, 2, 2),
            ["same_inputs: fsdp-d4-b8: 4 processes trained on 2 different inputs in the first steps"],
        ),
    ],
)
def test_processes_on_the_same_inputs_are_a_warning(
    strategy: CellStrategy, inputs: tuple[int | None, ...], expected: list[str]
) -> None:
    cell = Cell(strategy, len(inputs), 8)
    assert [f"{one.code}: {one.message}" for one in input_findings(cell, ranks(cell, inputs))] == expected


def test_parameters_sharded_without_fsdp_are_a_warning_whatever_the_inputs() -> None:
    cell = Cell("custom", 2, 8)
    for inputs, rest in (((1, 2), ""), ((1, 1), "; 2 processes trained on the same inputs in the first steps")):
        (warning,) = input_findings(cell, ranks(cell, inputs, model_parallel=True))
        assert warning.message == f"custom-d2-b8: parameters are sharded without FSDP{rest}"


def test_a_script_without_a_single_device_cell_is_given_the_command_that_adds_one() -> None:
    def cells(*of: tuple[CellStrategy, int]) -> list[str]:
        made = [
            cell_data(
                Cell(strategy, devices, 8),
                [[1000.0] * 8] * 2,
                windows(Cell(strategy, devices, 8), 2, 2, step_us=2.0, compute_us=1.0, idle_us=1.0),
            )
            for strategy, devices in of
        ]
        run = run_of(*made)
        assert run.recorded is not None
        run = replace(run, recorded=msgspec.structs.replace(run.recorded, script="train.py --lr 1"))
        return [
            f"{one.message}; {one.next_step}"
            for one in conclusions(run, compare(run))
            if one.code == "no_single_device"
        ]

    (missing,) = cells(("ddp", 1), ("ddp", 2))
    assert missing.startswith("ddp-d2-b8: no single-device cell with the same options")
    assert missing.endswith(" -- train.py --lr 1")
    assert "dpscope attach --devices single --out " in missing
    assert cells(("single", 1), ("ddp", 2)) == []
    assert cells(("ddp", 1)) == []
