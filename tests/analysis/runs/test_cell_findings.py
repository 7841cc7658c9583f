"""Findings about a measured cell: compiled late or not at all, the same inputs."""

from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.runs.cell_findings import (
    batch_finding,
    compilation_findings,
    input_findings,
    more_samples,
)
from dpscope.analysis.traces.ranks.job import Job, planned_job
from dpscope.profiling.records.run import (
    AttachedProcess,
    Cell,
    CellOptions,
    Compilation,
    TimedBlock,
)
from dpscope.profiling.records.strategies import CellStrategy
from tests.helpers.run_cells import rank_result

CELL = Cell(strategy="ddp", devices=2, batch_size=8, options=CellOptions(compile="default"))
SOUND = Compilation(seconds=20.0, graphs=2, parts=4, breaks=1)


@pytest.mark.parametrize(
    ("compilations", "expected"),
    [
        ((SOUND, SOUND), []),
        ((None, None), []),
        (
            (SOUND, Compilation(seconds=0.5, graphs=0, parts=0, breaks=3)),
            [
                "not_compiled: ddp-d2-b8-compile-default: rank 1 captured no graph (3 graph breaks), so the model ran as "
                "without --compile"
            ],
        ),
        (
            tuple(
                msgspec.structs.replace(SOUND, graphs=late + 2, late_graphs=late) for late in (3, 4)
            ),
            [
                "compiled_late: ddp-d2-b8-compile-default: rank 1 compiled 4 of its 6 graphs after the warm-up"
            ],
        ),
    ],
)
def test_what_was_not_compiled_or_late_is_reported_of_the_worst_rank(
    compilations: tuple[Compilation | None, ...], expected: list[str]
) -> None:
    ranks = [
        msgspec.structs.replace(rank_result(rank, 2), compilation=one)
        for rank, one in enumerate(compilations)
    ]
    assert [f"{one.code}: {one.message}" for one in compilation_findings(CELL, ranks)] == expected


SAME = "in the first steps, 2 processes trained on only 1 distinct input"


@pytest.mark.parametrize(
    ("strategy", "inputs", "model_parallel", "expected"),
    [
        ("ddp", (1, 2), False, []),
        ("ddp", (None, None), False, []),  # constant inputs show nothing
        ("ddp", (1, None), False, []),
        ("ddp", (1, 1), False, [f"same_inputs: ddp-d2-b8: {SAME}"]),
        ("custom", (7, 7), False, [f"same_inputs: custom-d2-b8: {SAME}"]),
        ("custom", (7, 8), False, []),
        (
            "fsdp",
            (1, 1, 2, 2),
            False,
            [
                "same_inputs: fsdp-d4-b8: in the first steps, 4 processes trained on only 2 distinct inputs"
            ],
        ),
        (
            "custom",
            (1, 2),
            True,
            ["same_inputs: custom-d2-b8: parameters are sharded without FSDP"],
        ),
        ("custom", (1, 1), True, [f"same_inputs: custom-d2-b8: {SAME}"]),
    ],
)
def test_processes_on_the_same_inputs_or_with_sharded_parameters_are_a_warning(
    strategy: CellStrategy,
    inputs: tuple[int | None, ...],
    model_parallel: bool,
    expected: list[str],
) -> None:
    cell = Cell(strategy, len(inputs), 8)
    attached = [
        AttachedProcess(cell, True, inputs=one, model_parallel=model_parallel) for one in inputs
    ]
    ranks = [
        msgspec.structs.replace(rank_result(rank, len(inputs)), attached=one)
        for rank, one in enumerate(attached)
    ]
    assert [f"{one.code}: {one.message}" for one in input_findings(cell, ranks)] == expected


def of_ranks(*samples: int | None) -> Job:
    """A script's cell whose ranks train on so many samples in each of ten steps; None: unknown."""
    cell = Cell(strategy="ddp", devices=len(samples), batch_size=64)
    ranks = [
        msgspec.structs.replace(
            rank_result(rank, len(samples)),
            blocks=(
                TimedBlock(
                    epoch=None,
                    steps=10,
                    samples=10 * (count or 1),
                    duration_s=1.0,
                    data_wait_s=None,
                ),
            ),
            attached=AttachedProcess(
                cell=cell, reduction_known=True, batch_known=count is not None
            ),
        )
        for rank, count in enumerate(samples)
    ]
    return replace(planned_job(cell), ranks=tuple((0, rank) for rank in ranks))


def test_ranks_with_unequal_batches_are_named_with_the_sum() -> None:
    data = of_ranks(32, 96)
    assert (data.global_batch_size, data.batch_text) == (128, "32 to 96")
    (finding,) = batch_finding(data)
    assert finding.message == "ddp-d2-b64: 128 samples a step in all (rank 0: 32, rank 1: 96)"
    assert more_samples(data, 1) == "rank 1 trains on 96 samples a step, the others on 32 (mean)"
    assert more_samples(data, 0) is None
    assert (
        more_samples(of_ranks(32, 32, 65), 2)
        == "rank 2 trains on 65 samples a step, the others on 32 (mean)"
    )
