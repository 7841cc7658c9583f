"""The checks for real GPUs (tests/gpu) on virtual ones: here a few of them, all by `make gpu
VIRTUAL=4`.
"""

import json
from pathlib import Path

from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import LIGHT_TORCHRUN, healthy_node

CHECKS = ("out_of_memory", "attach_on_all", "warnings")


def test_checks_pass_on_a_healthy_node(plant: Plant, tmp_path: Path) -> None:
    node = plant(healthy_node(2))
    variables = {"DPSCOPE_GPU_OUT": str(tmp_path), "DPSCOPE_GPU_PATIENCE": "4", **LIGHT_TORCHRUN}
    node.run(
        "-m",
        "pytest",
        "-q",
        "tests/gpu",
        "-k",
        " or ".join(CHECKS),
        timeout_s=280,
        variables=variables,
    )
    verdicts = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [verdict["outcome"] for verdict in verdicts] == ["passed"] * len(CHECKS)
    warnings = verdicts[-1]["values"]["warnings"]
    assert warnings.keys() == {"attached"}
