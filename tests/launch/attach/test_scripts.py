"""Typical training scripts with one and two processes: their measurements, and that dpscope does
not change them.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.no_overlap import no_overlap_finding, overlap_reasons
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.output.run_screen import Targets, report_of
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.traces.ranks.job import Job
from tests.helpers.known import known
from tests.helpers.run_cells import run_of
from tests.helpers.script_jobs import run_scripts

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
PLAIN = "plain_loop.py --steps 25"
# Of each script the cell under DDP.
CASES = {
    "plain_loop": (PLAIN, "ddp-d2-b8-bucket-25mb"),
    "accumulation": ("accumulation.py", "ddp-d2-b16-accumulate-4-amp-bf16"),
    "synchronised": ("accumulation.py --sync-always", "ddp-d2-b16-accumulate-4-amp-bf16"),
    "two_optimizers": ("two_optimizers.py", "ddp-d2-b8"),
    "own_trainer": ("own_trainer.py --workers 0", "ddp-d2-b8"),
    "compiled_gpt": ("compiled_gpt.py --width 16 --layers 1 --backend aot_eager", "ddp-d2-b4"),
    "late_rank": (f"{PLAIN} --slow-rank 1", "ddp-d2-b8-bucket-25mb"),
    "single_bucket": (f"{PLAIN} --width 600 --bucket-cap-mb 1000", "ddp-d2-b8-bucket-1000mb"),
    "task_module": ("task_module.py", "ddp-d2-b8"),
    "unused": (f"{PLAIN} --unused", "ddp-d2-b8-bucket-25mb-find_unused_parameters-true"),
}
COMMANDS = {name: command for name, (command, _) in CASES.items()}
OTHERS = {
    **{how: f"sharded.py {how}" for how in ("again", "never", "alone")},
    "divided": "accumulation.py --divide",
    "joined_only": "joined_only.py",
    "tensor_parallel": "tensor_parallel.py",
}
SINGLE = {  # of scripts that also run on one process
    **dict.fromkeys(("plain_loop", "two_optimizers", "toggled", "task_module", "joined_only"), "single-d1-b8"),
    **dict.fromkeys(("accumulation", "divided"), "single-d1-b16-accumulate-4-amp-bf16"),
}  # fmt: skip
# Gradients in bytes, by hand. Convolution 3 x 16 x 9 + 16, batch norm 2 x 16, three linear layers.
PLAIN_BYTES = 4 * (448 + 32 + 256 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10)
WIDE_BYTES = 4 * (448 + 32 + 256 * 600 + 600 + 600 * 600 + 600 + 600 * 10 + 10)
# Embedding 64 x 32, recurrent layer 32 x (32 + 32 + 2), linear 32 x 8 + 8.
TAGGER_BYTES = 4 * (64 * 32 + 32 * 66 + 32 * 8 + 8)
# Embedding 20 x 8, layers of 20, 64, 64 and 1.
PRICES_BYTES = 4 * (160 + 20 * 64 + 64 + 64 * 64 + 64 + 64 + 1)
# Words 65 x 16 (the head's too), places 16 x 16, a block 12 x 16^2 + 13 x 16, a norm 2 x 16.
GPT_BYTES = 4 * (65 * 16 + 16 * 16 + 12 * 16**2 + 13 * 16 + 2 * 16)
# Generator 16 -> 64 -> 64, discriminator 64 -> 64 -> 1.
GENERATOR_BYTES = 4 * (16 * 64 + 64 + 64 * 64 + 64)
DISCRIMINATOR_BYTES = 4 * (64 * 64 + 64 + 64 + 1)
SHARDED_BYTES = 4 * (16 * 32 + 32 + 32 * 8 + 8)


def run_every(out: Path, commands: dict[str, str], processes: int) -> dict[str, Job]:
    """The cell of each script."""
    notes = run_scripts(out, commands, processes, bare=processes > 1)
    assert notes == {name: [[] for _ in range(processes)] for name in commands}
    for name in commands:
        printed = [
            json.loads((out / name / f"rank{rank}.json").read_text())["attached"]
            for rank in range(processes)
        ]
        assert [bool(text) for text in printed] == [rank == 0 for rank in range(processes)]
    measured = {name: load_run(out / name / "run").measured for name in commands}
    assert {len(cells) for cells in measured.values()} == {1}
    return {name: cells[0] for name, cells in measured.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, Job]:
    """All scripts on two processes, which start once."""
    return run_every(folder, COMMANDS | OTHERS, processes=2)


@pytest.fixture(scope="module")
def single(folder: Path) -> dict[str, Job]:
    commands = COMMANDS | OTHERS | {"toggled": "two_optimizers.py --toggle"}
    return run_every(folder / "one", {name: commands[name] for name in SINGLE}, processes=1)


@pytest.fixture(scope="module")
def ddp(two: dict[str, Job]) -> dict[str, Job]:
    return {name: two[name] for name in CASES}


def test_each_script_is_recognised_as_its_cell(ddp: dict[str, Job]) -> None:
    assert {name: data.cell.name for name, data in ddp.items()} == {
        name: cell for name, (_, cell) in CASES.items()
    }
    for data in ddp.values():
        assert data.communication_known
        assert [finding for finding in data.findings if finding.severity == "error"] == []
        # in steps 17 and 22 of the timed 17 to 24
        validated = 2 if data is ddp["task_module"] else 0
        assert [rank.blocks[0].steps for _, rank in data.ranks] == [8 - validated, 8 - validated]


def test_the_bytes_of_each_script_equal_a_calculation_by_hand(ddp: dict[str, Job]) -> None:
    found = {}
    for name, data in ddp.items():
        reduced = data.collectives[data.collectives["kind"] == "all_reduce"]
        (found[name],) = set(reduced.groupby(["rank", "step"])["bytes"].sum())
    parameters = 16  # tensors: DDP also reduces 4 bytes for each, whether it was used
    assert found == {
        "plain_loop": PLAIN_BYTES,
        "accumulation": TAGGER_BYTES,
        "synchronised": 4 * TAGGER_BYTES,  # in each of four backward passes
        # The discriminator's are also reduced in the generator's backward pass.
        "two_optimizers": 2 * DISCRIMINATOR_BYTES + GENERATOR_BYTES,
        "own_trainer": PRICES_BYTES,
        "compiled_gpt": GPT_BYTES,
        "late_rank": PLAIN_BYTES,
        "single_bucket": WIDE_BYTES,
        "task_module": 4 * (32 * 64 + 64 + 64 * 10 + 10),
        "unused": PLAIN_BYTES + 4 * (parameters - 6),
    }
    for name, data in ddp.items():
        # DDP's counters are not read with several models
        checks = 0 if name == "two_optimizers" else 2
        assert len(data.counter_checks) == checks
        assert all(check.buckets_equal and check.steps >= 2 for check in data.counter_checks)
        assert all(check.spans_agree and check.union_within_span for check in data.counter_checks)


def test_a_late_rank_and_a_single_bucket_are_named(two: dict[str, Job], folder: Path) -> None:
    """Rank 1 waits 8 x 5 ms for its data; 2.1 MB of gradients, in the one bucket that the script
    requests.
    """
    late = report_of(folder / "late_rank" / "run", Targets())
    (straggler,) = [finding for finding in late.findings if finding.code == "straggler"]
    assert "step to rank 1" in straggler.message
    # On few cores whose programs take turns, more than 30% of it may overlap with compute by
    # chance: then there is no finding.
    for name, reason, text in (
        ("late_rank", "late_rank", "exposes is waiting for rank 1 (last in "),
        (
            "single_bucket",
            "one_bucket",
            "all gradients are reduced in one bucket of 2.09 MB, ready when ",
        ),
    ):
        reasons = overlap_reasons(two[name])
        assert text in {one.name: one.text for one in reasons}[reason]
        assert all(reasons[0].text in found.message for found in no_overlap_finding(two[name]))
    unused = {reason.name: reason.text for reason in overlap_reasons(two["unused"])}
    assert "find_unused_parameters" in unused


@pytest.mark.parametrize(
    ("how", "strategy", "gathered"),
    [
        ("again", "fsdp", 2 * SHARDED_BYTES),
        ("never", "fsdp-no-reshard", SHARDED_BYTES),
        ("alone", "fsdp-no-reshard", SHARDED_BYTES),
    ],
)
def test_fully_shard_is_recognised_by_what_is_gathered_after_a_forward_pass(
    two: dict[str, Job], how: str, strategy: str, gathered: int
) -> None:
    """torch's default leaves the outermost unit gathered: with no other unit, all of the model."""
    assert two[how].cell.name == f"{strategy}-d2-b8"
    per_step = two[how].collectives.groupby(["rank", "step", "kind"])["bytes"].sum().unstack("kind")
    assert set(per_step["all_gather"]) == {gathered}


def test_each_script_of_one_process_is_a_single_cell(single: dict[str, Job]) -> None:
    assert {name: data.cell.name for name, data in single.items()} == SINGLE
    gan = [single[name].ranks[0][1].model for name in ("two_optimizers", "toggled")]
    assert [sizes.gradient_bytes for sizes in gan] == [GENERATOR_BYTES + DISCRIMINATOR_BYTES] * 2
    assert "steps_left_out" in {finding.code for finding in single["task_module"].findings}


def test_processes_that_do_not_share_work_show_no_speedup(
    two: dict[str, Job], single: dict[str, Job]
) -> None:
    """One script joins a group and wraps nothing, the other cuts its model over the processes."""
    alone, cut = two["joined_only"], two["tensor_parallel"]
    (error,) = (finding for finding in alone.findings if finding.severity == "error")
    assert error.code == "trained_alone"
    assert error.message.startswith(
        "custom-d2-b8: each process trained alone: no collective in 6 traced steps"
    )
    assert alone.trained_alone
    run = run_of(alone, single["joined_only"])
    comparison = compare(run)
    assert comparison.scaling == ()
    assert comparison.reasons[alone.cell.name, "weak_speedup"] == "each process trained alone"
    assert known(run_verdict(run, comparison).fact("which")).label == "NO CHOICE"
    assert not cut.trained_alone
    (warning,) = (finding for finding in cut.findings if finding.code == "same_inputs")
    assert warning.message == (
        "custom-d2-b8: in the first steps, 2 processes trained on only 1 distinct input"
    )


def test_accumulation_divided_by_the_processes_is_strong_scaling(
    two: dict[str, Job], single: dict[str, Job]
) -> None:
    """16 samples in all: four micro-batches of four on one device, two on each of two."""
    cells = (single["divided"], two["divided"])
    (series,) = compare(run_of(*cells)).scaling
    assert series.label == "ddp amp-bf16 in micro-batches of 4 strong, G = 16"
    assert series.points[0].cell == "ddp-d2-b8-accumulate-2-amp-bf16"
    steps_us = [float(np.median(np.concatenate(data.step_samples()))) for data in cells]
    assert series.points[0].speedup.value == pytest.approx(steps_us[0] / steps_us[1])
