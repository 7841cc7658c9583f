"""What holds a node up, planted, is named by the printed report with its cost: a late host, a slow
device, a slow link.
"""

import json
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import (
    Collectives,
    CollectiveTime,
    Device,
    HostDelay,
    Kernels,
    Links,
    Node,
    PlantedNode,
    UnlikeLink,
)
from tests.virtual_gpu.true_steps import traced, true_steps

RUN = words(
    "run --strategy ddp --repeats 1 --steps 3 --traced-steps 6 --no-calibrate "
    "--model tests.user_models.tiny_models:layered --batch-size 8"
)
GRADIENT_BYTES = 2_502_656  # of that model
LATE = re.compile(r"LATE RANK rank (\d) causes")
COST = re.compile(r"Each other rank's wait \(([\d.]+) of [\d.,]+ (µs|ms|s),")
UNIT_US = {"µs": 1, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Shown:
    text: str  # the first screen, in one line
    findings: dict[str, str]  # messages by code
    cell: dict[str, Any]


def run(node: PlantedNode, out: Path, devices: int) -> Shown:
    """Measured again where the machine that plays the node was too busy: traced steps took much
    longer than the others then, and dpscope gives no cost.
    """
    for _ in range(4):
        printed = node.dpscope(*RUN, "--devices", str(devices), "--fresh", "--out", str(out))
        analyzed = node.dpscope("analyze", str(out), "--format", "json")
        report = json.loads(analyzed[analyzed.index("{\n") :])
        (cell,) = report["cells"]
        if cell["traced_step_us"] < 1.2 * cell["step_us"]:
            break
    findings: dict[str, str] = {}
    for finding in report["findings"]:
        earlier = findings.get(finding["code"], "")
        findings[finding["code"]] = f"{earlier} {finding['message']}".strip()
    return Shown(" ".join(printed.split()), findings, cell)


def assert_late(shown: Shown, node: PlantedNode, out: Path, late_rank: int) -> None:
    """The rank is named, and what the others lose by it is what the node recorded."""
    named, cost = LATE.search(shown.text), COST.search(shown.text)
    assert named, shown.text
    assert cost, shown.text
    assert int(named[1]) == late_rank
    truth = node.truth()
    # on a busy host others are late, too
    caused = truth.collectives[truth.collectives["last_rank"] == late_rank]
    truth = replace(truth, collectives=caused)
    traces = sorted(out.glob("cells/*/repeat0/traces/*.gz"))
    others = pd.concat(
        [true_steps(truth, trace) for rank, trace in enumerate(traces) if rank != late_rank]
    )
    true_us = others["exposed_wait_us"].mean()
    # waits in broadcasts count, too
    assert float(cost[1]) * UNIT_US[cost[2]] == pytest.approx(true_us, rel=0.03)


@pytest.mark.timed
def test_a_late_host_is_named(plant: Plant, random_values: random.Random, tmp_path: Path) -> None:
    """The second rank's host is late once in each step, by more than its device has work for."""
    delay = HostDelay(rank=1, kernel="nll_loss_forward", us=random_values.uniform(150_000, 200_000))
    node = plant(Node(devices=(Device(),) * 2, kernels=Kernels(us=300), host_delays=(delay,)))
    out = tmp_path / "run"
    shown = run(node, out, devices=2)
    assert_late(shown, node, out, late_rank=1)
    assert "launch-bound" in " ".join(shown.findings.values())


@pytest.mark.timed
def test_a_slow_unlike_device_behind_a_slow_link_is_named(
    plant: Plant, random_values: random.Random, tmp_path: Path
) -> None:
    """The third of four devices is another model; its link to the second is slow and without peer
    access.
    """
    latency_us, slow_gb_per_s = random_values.uniform(100, 200), random_values.uniform(0.15, 0.3)
    # more than a busy host delays the others
    slow = Device(name="older", slowdown=random_values.uniform(3, 4))
    link = UnlikeLink(devices=(1, 2), kind="pcie", gb_per_s=slow_gb_per_s, peer=False)
    node = plant(
        Node(
            devices=(Device(), Device(), slow, Device()),
            links=Links(gb_per_s=5.0, unlike=(link,)),
            kernels=Kernels(us=1500, matrix_us=3000),
            collectives=Collectives(
                by_size=(CollectiveTime(latency_us=latency_us),), largest_moved_bytes=65536
            ),
        )
    )
    out = tmp_path / "run"
    shown = run(node, out, devices=4)
    assert_late(shown, node, out, late_rank=2)
    models = "3 x dpscope virtual GPU, 1 x dpscope virtual GPU older (GPU 2)"
    assert models in shown.findings["mixed_devices"]
    assert shown.findings["no_peer_access"].startswith("No peer access between GPUs 1 and 2:")
    assert "No NVLink between GPUs 1 and 2," in shown.findings["mixed_devices"]
    first = next(out.glob("cells/*/repeat0/traces/*.gz"))
    reduced = traced(node.truth().collectives.query("name.str.contains('AllReduce')"), first)
    planted_us = (
        latency_us * reduced.groupby("step").size().max()
        + 1.5 * GRADIENT_BYTES / slow_gb_per_s / 1000
    )
    assert shown.cell["transfer_us"] == pytest.approx(planted_us, rel=0.01)
