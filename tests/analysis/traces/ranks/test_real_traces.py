"""Real traces of other machines against values computed independently (tests/data/README.md)."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.frames import step_breakdown, waits_caused
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import last_rank
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import attribute
from tests.generated_traces.generator import relabel
from tests.helpers.known import known
from tests.helpers.paths import DATA

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
V100 = DATA / "v100x8_ddp_dlrm"

A100_STEPS = {  # step: total, hidden, exposed
    4: (11_989.021, 1_825.259, 10_163.762),
    5: (12_300.029, 1_760.419, 10_539.610),
    6: (22_587.442, 3_731.349, 18_856.094),
}


@pytest.fixture(scope="module")
def v100() -> Job:
    return analyze_traces([V100])


def check_a100(steps: pd.DataFrame, offset: int = 0) -> None:
    assert [int(step) for step in steps["step"]] == [step + offset for step in A100_STEPS]
    for times, (_, row) in zip(A100_STEPS.values(), steps.iterrows(), strict=True):
        assert [
            row[name] for name in ("communication_us", "hidden_us", "exposed_us")
        ] == pytest.approx(times, abs=0.01)
        assert row["collective_count"] == 7
        assert row["step_us"] == pytest.approx(
            row["compute_us"] + row["exposed_us"] + row["idle_us"], abs=1e-6
        )


def test_a100_breakdown() -> None:
    steps = step_breakdown(attribute(read_trace(A100)))
    check_a100(steps)
    assert list(steps["partial_window"]) == [True, False, False]
    assert steps["forward_us"].isna().all()  # no dpscope ranges in it: unknown, not 0


def test_a100_collectives() -> None:
    table = analyze_traces([A100]).collectives
    assert list(table["kind"]) == (["broadcast"] * 2 + ["all_reduce"] * 5) * 3
    # ResNet-50's gradients: 25,557,032 parameters x 4 B
    assert (
        table[table["kind"] == "all_reduce"].groupby("step")["bytes"].sum().tolist()
        == [102_228_128] * 3
    )
    assert table["group_size"].tolist() == [2] * 21
    assert table["transfer_us"].isna().all()  # rank 1 was not read
    # 8,196,000 B in 3306.963 us
    assert table["lower_bound_gb_per_s"].iloc[2] == pytest.approx(8_196_000 / 3306.963 / 1e3)


@pytest.mark.long
def test_a100_shifted_relabelled_and_saved_again_gives_the_same_table(tmp_path: Path) -> None:
    """Nothing that is renamed or moved here may change a measure."""
    trace = relabel(
        json.loads(gzip.decompress(A100.read_bytes())), 7_777_777.125, 1_000_003, 100, 90, 1_000_003
    )
    again = tmp_path / "rank0.json"
    again.write_text(json.dumps(trace))
    check_a100(step_breakdown(attribute(read_trace(again))), offset=90)


@pytest.mark.long
@pytest.mark.parametrize(("rank", "times"), [(0, (5_798, 261, 5_537)), (7, (1_746, 166, 1_580))])
def test_v100_breakdown(v100: Job, rank: int, times: tuple[float, float, float]) -> None:
    (row,) = v100.steps[v100.steps["rank"] == rank].to_dict("records")
    assert (row["step"], row["collective_count"]) == (10, 8)
    assert [row[name] for name in ("communication_us", "hidden_us", "exposed_us")] == pytest.approx(
        times, abs=1
    )


def test_v100_sizes_come_from_the_operators_input_dims(v100: Job) -> None:
    own = v100.collectives[v100.collectives["rank"] == 0]
    assert own["kind"].tolist() == ["all_to_all"] * 4 + [
        "all_reduce",
        "all_to_all",
        "all_reduce",
        "all_reduce",
    ]
    # all-reduces: 394,241 + 112 + 226,960 float elements
    assert own.loc[own["kind"] == "all_reduce", "bytes"].tolist() == [1_576_964, 448, 907_840]


def test_v100_is_nearly_all_waiting(v100: Job) -> None:
    table = v100.collectives
    assert table["transfer_us"].notna().all()
    # the eight transfers: 10 + 8 + 7 + 7 + 86 + 10 + 20 + 69 us; the rest of rank 0's 5,798 us is
    # waiting
    own = table[table["rank"] == 0]
    assert own["transfer_us"].sum() == 217
    assert own["wait_us"].sum() == 5_798 - 217
    # busbw of the 1,576,964 B all-reduce on 8 ranks: 1,576,964 / 86 us x 2 x 7/8 = 32.089 GB/s
    assert own["busbw_gb_per_s"].iloc[4] == pytest.approx(32.0894, abs=1e-3)
    last = known(last_rank(Table.from_frame(table)))
    # The table's rows say the same: seven ranks wait for rank 7, 35,543 of 46,806 us in all
    caused = waits_caused(table)
    of_seven = caused[caused["late_rank"] == 7]
    assert last.rank == 7
    assert last.share == pytest.approx(of_seven["wait_share"].sum())
    assert last.share == pytest.approx(35_543 / 46_806)
    assert last.lateness_us == pytest.approx(of_seven["wait_per_step_us"].sum() / 7)


# A DDP job whose model inductor compiled: DDP's graph in parts, a bucket reduced behind each.

COMPILED = sorted((DATA / "compiled_ddp").iterdir())
FIRST, WIDE, LAST = 192 * 520 + 520, 520 * 520 + 520, 520 * 4 + 4
RANKS, STEPS, PARTS = 2, 3, 4


@pytest.fixture(scope="module")
def compiled() -> Job:
    return analyze_traces(COMPILED)


def test_compiled_buckets_are_found_with_their_bytes(compiled: Job) -> None:
    assert set(compiled.collectives["kind"]) == {"all_reduce"}
    moved = compiled.collectives.groupby(["rank", "step"])["bytes"].agg(["sum", "count"])
    assert len(moved) == RANKS * STEPS
    assert moved["sum"].eq(4 * (FIRST + 3 * WIDE + LAST)).all()
    assert moved["count"].eq(PARTS).all()
    assert compiled.collectives["match"].notna().all()
