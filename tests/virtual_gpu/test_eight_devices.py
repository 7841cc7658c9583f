"""DDP and HSDP on eight virtual devices whose ranks share two cores, one of their hosts late:
transfers, names, who waited.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis import analyze_traces, waits_caused
from dpscope.analysis.output.api_results import AnalyzedJob
from tests.helpers.fork_server import FIGURES
from tests.helpers.made_verdicts import said
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import (
    Collectives,
    CollectiveTime,
    Device,
    HostDelay,
    Links,
    Node,
    Truth,
)
from tests.virtual_gpu.true_steps import KINDS, traced

DEVICES, TRACED_STEPS = 8, 2
# bytes, and 4096 + 8 of buffers: tests/user_models/tiny_models.py, `layered`
PARAMETERS = 2_502_656
# HSDP shards over four devices and reduces between two; every unit is gathered twice.
TRAFFIC = {
    "ddp": {("all_reduce", DEVICES): PARAMETERS, ("broadcast", DEVICES): 4096 + 8},
    "hsdp": {
        ("all_gather", 4): 2 * PARAMETERS,
        ("reduce_scatter", 4): PARAMETERS,
        ("all_reduce", 2): PARAMETERS // 4,
    },
}
CARRIED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # times (n-1)/n: a ring's links
LATE_US = 300_000


@dataclass(frozen=True)
class Planted:
    late_rank: int
    latency_us: float
    gb_per_s: float


@dataclass(frozen=True)
class Ran:
    planted: Planted
    truth: Truth
    folder: Path

    def traces(self, strategy: str) -> list[Path]:
        return sorted(self.folder.glob(f"cells/{strategy}-*/repeat0/traces/*.gz"))

    def analysis(self, strategy: str) -> AnalyzedJob:
        return analyze_traces(self.traces(strategy))


@pytest.fixture(scope="module")
def ran(
    plant: Plant, random_values: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    planted = Planted(
        late_rank=random_values.randrange(DEVICES),
        latency_us=random_values.uniform(80, 200),
        gb_per_s=random_values.uniform(0.6, 1.0),
    )
    late = HostDelay(rank=planted.late_rank, kernel="nll_loss_forward", us=LATE_US)  # once a step
    times = Collectives(
        by_size=(CollectiveTime(latency_us=planted.latency_us),), largest_moved_bytes=65536
    )
    links = Links(gb_per_s=planted.gb_per_s)
    node = plant(
        Node(devices=(Device(),) * DEVICES, links=links, collectives=times, host_delays=(late,))
    )
    folder = tmp_path_factory.mktemp("run")
    node.dpscope(
        *(
            "run",
            "--strategy",
            ",".join(TRAFFIC),
            "--devices",
            str(DEVICES),
            "--no-calibrate",
            "--repeats",
            "1",
        ),
        *("--model", "tests.user_models.tiny_models:layered", "--batch-size", "8", "--steps", "2"),
        *("--traced-steps", str(TRACED_STEPS), "--out", str(folder)),
        variables={FIGURES: "1"},  # which are drawn in this run for all
    )
    return Ran(planted, node.truth(), folder)


@pytest.mark.parametrize("strategy", TRAFFIC)
def test_transfers_and_names_of_every_collective(ran: Ran, strategy: str) -> None:
    table = ran.analysis(strategy).collectives
    assert sorted(table["rank"].unique()) == list(range(DEVICES))
    per_step = table.groupby(["rank", "step", "kind", "group_size"])["bytes"].sum()
    sizes = per_step.groupby(["kind", "group_size"]).unique().map(list).to_dict()
    assert sizes == {place: [size] for place, size in TRAFFIC[strategy].items()}
    split = table[table["kind"].isin(list(CARRIED))]
    ring_bytes = split["kind"].map(CARRIED) * (1 - 1 / split["group_size"]) * split["bytes"]
    planted_us = ran.planted.latency_us + ring_bytes / ran.planted.gb_per_s / 1000
    assert split["transfer_us"].to_list() == pytest.approx(planted_us.to_list(), abs=0.01)


@pytest.mark.parametrize("strategy", TRAFFIC)
def test_every_wait_is_true(ran: Ran, strategy: str) -> None:
    table = ran.analysis(strategy).collectives.dropna(subset="wait_us")
    for rank, trace in enumerate(ran.traces(strategy)):
        true = traced(ran.truth.collectives.query("not name.str.contains('Broadcast')"), trace)
        reported = table[table["rank"] == rank].sort_values("start_us")
        assert list(reported["kind"]) == [KINDS[name.split("_")[1]] for name in true["name"]]
        waits_us = (true["arrivals_ns"].map(max) - true["start_ns"]) / 1000
        assert reported["wait_us"].to_list() == pytest.approx(waits_us.to_list(), abs=2)


def test_the_late_rank_is_named(ran: Ran) -> None:
    """What the others lose to each rank, and that it is most for the one whose host sleeps."""
    analysis = ran.analysis("ddp")
    table = analysis.collectives
    after_first = table["step"] > table["step"].min()
    caused = waits_caused(table[after_first]).groupby("late_rank")["wait_us"].sum()
    tables = [
        traced(ran.truth.collectives.query("name.str.contains('AllReduce')"), trace)
        for trace in ran.traces("ddp")
    ]
    for rank, true in enumerate(tables):
        own = table[(table["rank"] == rank) & (table["kind"] == "all_reduce")]
        assert list(own.sort_values("start_us")["bytes"]) == list(true["bytes"])
    reduced = pd.concat(tables)
    whole = reduced[reduced["step"] > reduced["step"].min()]
    waits_us = (whole["arrivals_ns"].map(max) - whole["start_ns"]) / 1000
    lost_us = waits_us.groupby(whole["last_rank"]).sum()
    for rank in range(DEVICES):
        assert caused.get(rank, 0) == pytest.approx(lost_us.get(rank, 0), rel=0.01, abs=20)
    assert caused.idxmax() == lost_us.idxmax() == ran.planted.late_rank
    assert f"rank {ran.planted.late_rank}" in said(analysis.verdict, "late")
