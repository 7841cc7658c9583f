"""DDP on two virtual devices, from `dpscope run` to the ledger of each step."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpscope.analysis import analyze_traces
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.ledgers import assert_ledgers_are_true
from tests.virtual_gpu.node import (
    Collectives,
    CollectiveTime,
    Device,
    Kernels,
    KernelTime,
    Links,
    Node,
    Truth,
)
from tests.virtual_gpu.true_steps import traced

TRACED_STEPS = 6
SMALL = ("--model", "resnet8_cifar", "--batch-size", "4", "--steps", "6", "--repeats", "1")


@dataclass(frozen=True)
class Planted:
    latency_us: float
    gb_per_s: float
    slowdown: float


@dataclass(frozen=True)
class Ran:
    planted: Planted
    truth: Truth
    traces: list[Path]


@pytest.fixture(scope="module")
def ran(
    plant: Plant, random_values: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    planted = Planted(
        latency_us=random_values.uniform(80, 200),
        gb_per_s=random_values.uniform(0.15, 0.3),
        slowdown=random_values.uniform(2.5, 3.0),
    )
    node = plant(
        Node(
            devices=(Device(), Device(slowdown=planted.slowdown)),
            kernels=Kernels(us=300, by_name=(KernelTime(name="_gemm_", us=1500),)),
            links=Links(gb_per_s=planted.gb_per_s),
            collectives=Collectives(by_size=(CollectiveTime(latency_us=planted.latency_us),)),
        )
    )
    out = tmp_path_factory.mktemp("run")
    options = (
        "--strategy",
        "ddp",
        "--devices",
        "2",
        "--bucket-mb",
        "0.1",
        "--traced-steps",
        str(TRACED_STEPS),
        "--no-calibrate",
    )
    node.dpscope("run", *options, *SMALL, "--out", str(out))
    return Ran(planted, node.truth(), sorted(out.glob("cells/*/repeat0/traces/*.gz")))


def test_every_part_of_every_step_equals_the_truth(ran: Ran) -> None:
    assert_ledgers_are_true(ran.truth, ran.traces, TRACED_STEPS)


def test_every_transfer_and_wait_is_true(ran: Ran) -> None:
    reported = analyze_traces(ran.traces).collectives.query("kind == 'all_reduce'")
    for rank, trace in enumerate(ran.traces):
        true = traced(ran.truth.collectives.query("name.str.contains('AllReduce')"), trace)
        found = reported[reported["rank"] == rank].sort_values("start_us")
        assert list(found["bytes"]) == list(true["bytes"])
        assert len(found) >= 3 * TRACED_STEPS  # buckets of at most 0.1 MB
        # of two ranks: 2 (n-1)/n = 1
        planted_us = ran.planted.latency_us + true["bytes"] / ran.planted.gb_per_s / 1000
        assert found["transfer_us"].to_list() == pytest.approx(planted_us.to_list(), rel=1e-3)
        waits_us = (true["arrivals_ns"].map(max) - true["start_ns"]) / 1000
        assert found["wait_us"].to_list() == pytest.approx(waits_us.to_list(), abs=2)


def test_lost_time_is_charged_to_the_late_rank(ran: Ran) -> None:
    """The sum of each rank's waits for the other one; the slow device is the second rank's."""
    caused = analyze_traces(ran.traces).waits.set_index(["late_rank", "waiting_rank"])["wait_us"]
    for waiting, trace in enumerate(ran.traces):
        true = traced(ran.truth.collectives.query("name.str.contains('AllReduce')"), trace)
        whole = true[true["step"] > true["step"].min()]  # no event marks the start of the first
        waits_us = (whole["arrivals_ns"].map(max) - whole["start_ns"]) / 1000
        assert caused.get((1 - waiting, waiting), 0) == pytest.approx(
            waits_us.sum(), rel=0.01, abs=20
        )
