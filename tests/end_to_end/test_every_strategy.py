"""Every strategy on real gloo processes: the same training, the bytes of a pocket calculation,
state that goes on elsewhere.

Tensor parallelism, FSDP2 with clipped gradients and blocking all-reduces: waits are exposed, not
hidden.
"""

import sys
from pathlib import Path

import pytest

from dpscope.analysis.output.run_screen import Targets, report_of
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Collective
from dpscope.profiling.records.strategies import shard_groups, traits_of
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import CALIBRATION_NAME
from tests.end_to_end.strategy_job import Found, run_job
from tests.helpers.generated_checks import parallelism
from tests.helpers.paths import ROOT
from tests.helpers.ranks import run_ranks
from tests.helpers.run_cells import fitted, timed
from tests.helpers.sweeps import sweep
from tests.user_models.blocking_waits import LATE_S

# Double precision. Linear(6, 10), Linear(10, 7), Linear(7, 3) hold 60 + 10, 70 + 7 and 21 + 3
# numbers. Rows are padded to a multiple of the devices that share them: over four 10, 7 and 3
# become 12, 8 and 4, over two 10, 8 and 4.
GRADIENTS = 8 * (70 + 77 + 24)
OVER_FOUR = 8 * (12 * 7 + 8 * 11 + 4 * 8)
OVER_TWO = 8 * (10 * 7 + 8 * 11 + 4 * 8)
EXPECTED = {
    "ddp": {"all_reduce": GRADIENTS},
    "replicate": {"all_reduce": GRADIENTS},
    "fsdp": {"all_gather": 2 * OVER_FOUR, "reduce_scatter": OVER_FOUR},
    "fsdp-no-reshard": {"all_gather": OVER_FOUR, "reduce_scatter": OVER_FOUR},
    "hsdp": {"all_gather": 2 * OVER_TWO, "reduce_scatter": OVER_TWO, "all_reduce": OVER_TWO // 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture(scope="module")
def job(folder: Path) -> Found:
    """One job of four processes: what it found, and its traces."""
    return run_job("every_strategy", 4, folder, EXPECTED)


def test_collectives_of_hsdp_are_matched_in_their_groups(job: Found) -> None:
    collectives = job[1]["hsdp"].collectives
    assert collectives["transfer_us"].notna().all()
    ran = {
        (kind, ranks)
        for kind, ranks in zip(collectives["kind"], collectives["group_ranks"], strict=True)
    }
    within = {
        (kind, ranks) for kind in ("all_gather", "reduce_scatter") for ranks in ("[0, 1]", "[2, 3]")
    }
    assert ran == within | {("all_reduce", "[0, 2]"), ("all_reduce", "[1, 3]")}


@pytest.mark.parametrize("strategy", EXPECTED)
def test_it_moves_computed_bytes_trains_as_one_device_does_and_goes_on_from_whole_state(
    job: Found, strategy: str
) -> None:
    found, (_, shards) = job[0][strategy], shard_groups(strategy, 4)
    assert found["apart"] < 1e-14
    assert found["resumed_apart"] < 1e-14
    assert found["composed"] == (not traits_of(strategy).reducer)
    assert found["units"] == ["0", "2", "4"]
    # Parameters and momentum: all of both, or a quarter or a half of the padded at most.
    assert found["held_bytes"] <= 2 * {1: GRADIENTS, 2: OVER_TWO // 2, 4: OVER_FOUR // 4}[shards]
    assert found["held_bytes"] > 1.5 * GRADIENTS / shards
    moved = job[1][strategy].collectives.groupby(["rank", "step", "kind"])["bytes"].sum()
    assert moved.index.get_level_values("rank").nunique() == 4
    by_kind = {kind: set(sizes) for kind, sizes in moved.groupby("kind")}
    assert by_kind == {kind: {size} for kind, size in EXPECTED[strategy].items()}


SHARDED = "sharded (FSDP- or ZeRO-like)"
NOT_SHOWN = "no DDP shown: nothing is all-reduced by the backward pass alone"


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("data_parallel/shapes", "DDP-like; seen"),
        ("data_parallel/plain", "DDP-like; seen"),
        ("tensor_parallel/shapes", NOT_SHOWN),
        ("tensor_parallel/plain", NOT_SHOWN),
        ("fully_sharded/shapes", f"{SHARDED}; seen"),
        ("fully_sharded/plain", f"{SHARDED}; seen"),
        ("hybrid/shapes", f"{SHARDED}, with all-reduces of gradients in the backward pass; seen"),
        ("replicated_unequal/shapes", "DDP-like; seen"),
        ("layers_equal/shapes", "DDP-like; seen"),
        ("layers_equal/plain", "DDP-like; seen"),
        ("averaged_by_hand/shapes", NOT_SHOWN),
    ],
)
@pytest.mark.usefixtures("job")
def test_each_way_to_train_in_parallel_has_its_name(folder: Path, way: str, named: str) -> None:
    analysis = analyze_traces([folder / "ways" / way])
    assert parallelism(analysis).startswith(named)
    # gloo's all-reduces of both ranks are matched, the loss among them: 2 steps, 4 ranks, one or
    # more each
    reduced = analysis.collectives[analysis.collectives["kind"] == "all_reduce"]
    assert len(reduced) >= 8
    if way.endswith("shapes"):
        assert reduced["bytes"].notna().all()


def test_a_run_measures_and_predicts_fsdp_beside_ddp(tmp_path: Path) -> None:
    """Convolution 216 numbers, batch norm 8 + 8, linear 4 x 8 + 4 in single precision; every first
    dimension is even: all is gathered twice in each of two micro-batches and scattered once, in
    three units.
    """
    model_bytes = 4 * (216 + 16 + 36)
    moved = model_bytes * (2 * 2 + 1)
    out = tmp_path / "run"
    assert sweep(out, devices="2", strategy="ddp,fsdp", accumulate="2").ok
    sizes = [256 << step for step in range(8)]
    kinds: tuple[Collective, ...] = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
    calibration = fitted(*(timed(2, 50.0, 1.0, sizes, kind) for kind in kinds))
    write_json(out / CALIBRATION_NAME, calibration)
    report = report_of(out, Targets())
    assert [finding.code for finding in report.findings if finding.severity == "error"] == []
    table = report.comparison.table.set_index("cell")
    ddp, fsdp = (table.loc[f"{name}-d2-b2-accumulate-2"] for name in ("ddp", "fsdp"))
    assert fsdp["bytes_per_step"] == moved
    # half of parameters and momentum
    assert ddp["state_bytes"] - fsdp["state_bytes"] == model_bytes * 2 / 2
    assert fsdp["prediction_source"] == fsdp["ring_source"] == "calibration"
    # 50 us for each of five collectives of a unit, and what is moved over 1e9 B/s
    assert fsdp["predicted_transfer_us"] == pytest.approx(3 * 5 * 50.0 + moved / 1e3)
    assert fsdp["predicted_transfer_error"] == pytest.approx(
        fsdp["predicted_transfer_us"] / fsdp["transfer_us"] - 1
    )
    # (N-1)/N = 1/2 of what is moved, over 1e9 B/s
    stated = report_of(out, Targets(link=parse_link("1GB/s"))).comparison.table
    assert stated.set_index("cell").loc[str(fsdp.name), "ring_us"] == pytest.approx(moved / 2 / 1e3)


# How often in a step rank 0 waits for rank 1, while nothing computes.
TIMES_LATE = {
    "tensor_parallel": 1,
    "tensor_parallel_clipped": 1,
    "fully_sharded_clipped": 1,
    "data_parallel_metric": 4,
    "reduced_in_hooks": 2,
}


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    run_ranks([sys.executable, "-m", "tests.user_models.blocking_waits", str(folder)], 2, cwd=ROOT)
    return folder


@pytest.mark.timed
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", TIMES_LATE)
def test_waiting_for_a_late_rank_in_blocking_collectives_is_exposed(
    blocked: Path, way: str
) -> None:
    """In the step that waited most: in another rank 0 may have been held up itself."""
    steps = analyze_traces([blocked / way]).steps
    own = steps[(steps["rank"] == 0) & ~steps["partial_window"]]
    late_us = TIMES_LATE[way] * LATE_S * 1e6
    assert len(own) >= 2
    clearest = own.iloc[int((own["exposed_us"] - own["hidden_us"]).argmax())]
    assert clearest["exposed_us"] >= 0.9 * late_us, own
    assert clearest["hidden_us"] <= 0.2 * clearest["communication_us"], own
    assert clearest["step_us"] - clearest["compute_us"] >= 0.9 * late_us, own
