"""The ledger of a job: planted parts, real traces, and a raster of every traced microsecond."""

from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from tests.generated_traces.ddp_schedule import DdpOptions
from tests.generated_traces.generator import ddp_trace, dp_trace
from tests.helpers.generated_checks import analyzed
from tests.helpers.paths import DATA, EXAMPLE_RUN

ALONE = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def ledger(analysis: TraceAnalysis) -> Ledger:
    assert analysis.ledger is not None
    return analysis.ledger


def test_a_planted_straggler(tmp_path: Path) -> None:
    """Rank 1 begins its backward 500 us late; by hand from `ddp_schedule`, the mean of both ranks.

    Rank 0 waits in bucket 0 from 490 to 990 and in bucket 1 from 1,054 to 1,094; its compute leaves 2 + 4 + 316 + 40 = 362 us of
    that exposed, and the transfers of 60 + 96 + 40. Rank 1 exposes 20 us of bucket 1 and 40 of bucket 2. Both broadcast for 18.
    """
    found = ledger(analyzed(tmp_path, *(ddp_trace(rank, 2, DdpOptions(straggler=1)) for rank in range(2))))
    assert (found.exposed_wait_us, found.exposed_transfer_us, found.exposed_other_us) == pytest.approx((181, 128, 18))
    assert found.wait_by_rank_us == pytest.approx({1: 181})
    assert found.transfer_by_kind_us == pytest.approx({"all_reduce": 128})
    assert found.other_by_kind_us == pytest.approx({"broadcast": 18})
    assert sum(found.parts_us.values()) == pytest.approx(found.traced_step_us, abs=1e-3)
    assert found.traced_step_us == pytest.approx((1340 + 1346) / 2)


def test_a_missing_rank_leaves_exposed_communication_unsplit(tmp_path: Path) -> None:
    found = ledger(analyzed(tmp_path, ddp_trace(0, 2, DdpOptions(straggler=1))))
    assert (found.is_split, found.exposed_wait_us, found.exposed_transfer_us) == (False, None, None)
    assert found.exposed_other_us == pytest.approx(576)
    assert found.other_by_kind_us == pytest.approx({"all_reduce": 558, "broadcast": 18})


def test_data_parallel_is_all_other(tmp_path: Path) -> None:
    found = ledger(analyzed(tmp_path, dp_trace()))
    assert not found.is_split
    assert found.exposed_other_us == found.exposed_us
    assert found.exposed_us is not None
    assert found.exposed_us > 0
    assert sum(found.parts_us.values()) == pytest.approx(found.traced_step_us, abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        DATA / "v100x8_ddp_dlrm",
        DATA / "compiled_ddp",
        ALONE,
        *sorted((EXAMPLE_RUN / "cells").glob("*/repeat0/traces")),
    ],
    ids=lambda place: place.parent.parent.name if place.name == "traces" else place.name,
)
def test_every_step_of_real_traces_adds_up(place: Path) -> None:
    analysis = analyze_traces([place])
    steps = analysis.steps_with_waits
    parts = ["compute_us", "exposed_wait_us", "exposed_transfer_us", "exposed_other_us", "idle_us"]
    assert (steps[parts].fillna(0.0).sum(axis=1) - steps["step_us"]).abs().max() < 1e-3
    assert (steps[parts].fillna(0.0) >= -1e-6).all(axis=None)
    found = ledger(analysis)
    assert sum(found.parts_us.values()) == pytest.approx(found.traced_step_us, rel=1e-9)
    assert sum(found.wait_by_rank_us.values()) == pytest.approx(found.exposed_wait_us or 0.0)
    assert sum(found.transfer_by_kind_us.values()) == pytest.approx(found.exposed_transfer_us or 0.0)
    assert sum(found.other_by_kind_us.values()) == pytest.approx(found.exposed_other_us or 0.0)


@pytest.mark.long
def test_eight_gpus_mostly_wait_for_rank_7() -> None:
    found = ledger(analyze_traces([DATA / "v100x8_ddp_dlrm"]))
    assert found.exposed_wait_us == pytest.approx(5660)
    assert next(iter(found.wait_by_rank_us)) == 7
    assert found.wait_by_rank_us[7] / 5660 == pytest.approx(0.778, abs=0.001)
