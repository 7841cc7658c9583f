"""NCCL on the virtual node: the data is right, and a collective ends at its last arrival plus the
planted transfer.
"""

import random

import pytest

from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Collectives, CollectiveTime, Links, Node, UnlikeLink


def test_data_and_times_of_every_collective(plant: Plant, random_values: random.Random) -> None:
    latency_us, slow_gb_per_s = random_values.uniform(20, 200), random_values.uniform(0.001, 0.01)
    slow = UnlikeLink(devices=(1, 2), gb_per_s=slow_gb_per_s, kind="pcie")
    tiers = (
        CollectiveTime(up_to_bytes=100, latency_us=latency_us, algorithm="TREE_LL"),
        CollectiveTime(latency_us=2 * latency_us),
    )
    node = plant(Node(links=Links(unlike=(slow,)), collectives=Collectives(by_size=tiers)))
    node.ranks(4, "tests.virtual_gpu.programs.collectives")
    table = node.truth().collectives
    assert set(table["rank"]) == {0, 1, 2, 3}

    everyone = table[table["name"].str.contains("AllReduce|AllGather|ReduceScatter")]
    lasts_ns = everyone["arrivals_ns"].map(max)
    assert list(everyone["end_ns"]) == list(lasts_ns + everyone["transfer_ns"])
    of_each = everyone.groupby(["communicator", "sequence"])
    assert (of_each["end_ns"].nunique() == 1).all()
    assert (of_each["rank"].nunique() == of_each["ranks"].first()).all()

    floats = everyone[
        (everyone["name"].str.contains("AllReduce_Sum_f32")) & (everyone["bytes"] == 96)
    ]
    four = floats[floats["ranks"] == 4]
    assert len(four) == 4 * 5
    planted_us = latency_us + 1.5 * 96 / slow_gb_per_s / 1000  # the ring goes over the slow link
    assert (four["transfer_ns"] / 1000).to_list() == pytest.approx(
        [planted_us] * len(four), abs=0.01
    )
    assert four["name"].str.contains("TREE_LL").all()
    two = floats[floats["ranks"] == 2]  # devices 0 and 1, whose link is not slow
    assert (two["transfer_ns"] / 1000).to_list() == pytest.approx(
        [latency_us + 96 / 20 / 1000] * 2, abs=0.01
    )
