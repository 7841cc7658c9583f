"""Cells that were to be compiled: not at all, still after warm-up, and as they should be."""

import msgspec

from dpscope.analysis.runs.compilation_check import compilation_findings
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.wrapped import Compilation
from tests.helpers.run_cells import rank_result

CELL = Cell(strategy="ddp", devices=2, batch_size=8, options=CellOptions(compile="default"))
SOUND = Compilation(seconds=20.0, graphs=2, parts=4, breaks=1)


def found(first: Compilation | None, second: Compilation | None) -> list[tuple[str, str]]:
    ranks = [
        msgspec.structs.replace(rank_result(rank, 2), compilation=compilation)
        for rank, compilation in enumerate((first, second))
    ]
    return [(one.code, one.message) for one in compilation_findings(CELL, ranks)]


def test_a_cell_compiled_in_warm_up_has_no_finding_and_neither_has_one_that_is_not_compiled() -> None:
    assert found(SOUND, SOUND) == []
    assert found(None, None) == []


def test_a_rank_that_captured_nothing_is_an_error() -> None:
    nothing = Compilation(seconds=0.5, graphs=0, parts=0, breaks=3)
    assert found(SOUND, nothing) == [
        (
            "not_compiled",
            "ddp-d2-b8-compile-default: rank 1 captured no graph and broke off at 3 places, so the model ran as without "
            "--compile.",
        )
    ]


def test_graphs_captured_after_warm_up_are_told_of_the_rank_with_most() -> None:
    late = msgspec.structs.replace(SOUND, graphs=5, late_graphs=3)
    later = msgspec.structs.replace(SOUND, graphs=6, late_graphs=4)
    assert found(late, later) == [
        (
            "compiled_late",
            "ddp-d2-b8-compile-default: rank 1 compiled 4 of its 6 graphs after warm-up: timed or traced steps hold the time "
            "of it.",
        )
    ]
