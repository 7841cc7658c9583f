"""`dpscope run` on one virtual device of little memory: CUDA graphs, half precision, and a batch
that does not fit.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis import analyze_traces
from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.ledgers import assert_ledgers_are_true
from tests.virtual_gpu.node import Device, Kernels, KernelTime, Node, Truth
from tests.virtual_gpu.true_steps import process_of, traced

TRACED_STEPS, SMALL, LARGE = 3, 64, 16384
CONTEXT_MIB = 300
MIB = 2**20
# parameters, gradients and momentum of tests/user_models/tiny_models.py, `layered`
STATE_BYTES = 3 * 2_502_656
ACTIVATION_BYTES = 4 * 4 * 512  # of a sample at least: the outputs of four layers, in fp32


@dataclass(frozen=True)
class Ran:
    memory_mib: int
    half_us: float
    truth: Truth
    printed: str
    folder: Path

    def repeat(self, amp: str, batch: int) -> Path:
        name = f"single-d1-b{batch}" + ("" if amp == "off" else f"-amp-{amp}")
        return self.folder / "cells" / name / "repeat0"

    def trace(self, amp: str) -> Path:
        return next(self.repeat(amp, SMALL).glob("traces/*.gz"))


@pytest.fixture(scope="module")
def ran(
    plant: Plant, random_values: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    memory_mib = CONTEXT_MIB + random_values.randrange(100, 128)
    half_us = random_values.uniform(500, 900)
    times = Kernels(us=300, by_name=(KernelTime(name="fp16_s16816gemm", us=half_us),))
    node = plant(Node(devices=(Device(memory_mib=memory_mib),), kernels=times))
    folder = tmp_path_factory.mktemp("run")
    printed = node.dpscope(
        *(
            *words("run --strategy single --devices 1 --amp off,fp16 --batch-size"),
            f"{SMALL},{LARGE}",
        ),
        *words("--model tests.virtual_gpu.programs.models:graphed --steps 4 --repeats 1"),
        *("--traced-steps", str(TRACED_STEPS), "--out", str(folder)),
        status=1,  # the large batch fails
    )
    return Ran(memory_mib, half_us, node.truth(), printed, folder)


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_every_part_of_every_step_equals_the_truth(ran: Ran, amp: str) -> None:
    assert_ledgers_are_true(ran.truth, [ran.trace(amp)], TRACED_STEPS)


def test_half_precision_runs_its_kernels(ran: Ran) -> None:
    work = traced(ran.truth.work, ran.trace("fp16"))
    last = work[work["step"] == work["step"].max()]
    halves = last[last["name"].str.contains("fp16_s16816gemm")]
    assert len(halves) >= 4 + 4  # of the layers forward and backward
    assert ((halves["end_ns"] - halves["start_ns"]) / 1000).to_list() == pytest.approx(
        [ran.half_us] * len(halves), abs=0.01
    )
    compute_us = analyze_traces([ran.trace("fp16")]).steps["compute_us"].iloc[-1]
    others = last[(last["kind"] == "kernel") & ~last["name"].str.contains("gemm")]
    assert compute_us >= len(halves) * ran.half_us + len(others) * 300 - 1
    assert not traced(ran.truth.work, ran.trace("off"))["name"].str.contains("fp16").any()


def test_graphs_are_replayed(ran: Ran) -> None:
    """Two launches, of the forward and of the backward pass, stand for most kernels of a step."""
    work = traced(ran.truth.work, ran.trace("off"))
    sizes = work[work["step"] == work["step"].max()].groupby("correlation").size()
    assert (sizes > 5).sum() == 2


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_memory_is_what_the_device_gave(ran: Ran, amp: str) -> None:
    (memory,) = json.loads((ran.repeat(amp, SMALL) / "rank_0_0.json").read_text())["memory"]
    process = ran.truth.memory.query(f"pid == {process_of(ran.trace(amp))}")
    assert memory["reserved_bytes"] == process["used_bytes"].max()
    assert (
        STATE_BYTES + SMALL * ACTIVATION_BYTES
        <= memory["allocated_bytes"]
        <= memory["reserved_bytes"]
    )


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_the_large_batch_does_not_fit(ran: Ran, amp: str) -> None:
    result: dict[str, Any] = json.loads((ran.repeat(amp, LARGE) / "result.json").read_text())
    assert result["status"] == "out_of_memory"
    assert f"a total capacity of {ran.memory_mib}.00 MiB" in result["message"]
    assert (ran.memory_mib - CONTEXT_MIB) * MIB < LARGE * ACTIVATION_BYTES
    most = ran.truth.memory["used_bytes"].max()
    assert most <= (ran.memory_mib - CONTEXT_MIB) * MIB
    assert result["message"] in ran.printed
