"""Breakdown and collectives of generated traces against literals worked out by hand, independent of the analysis."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.generated_traces.generator import (
    DdpOptions,
    ddp_trace,
    dp_trace,
    gloo_trace,
)
from tests.helpers.generated_checks import analyzed, check_collectives, check_steps

RANGES = ("host_to_device", "forward", "backward", "optimizer")


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
@pytest.mark.parametrize("inputs", ["host", "device"])
@pytest.mark.parametrize("lag", [False, True])
def test_data_parallel_is_broken_down_per_device(
    tmp_path: Path, devices: int, transport: str, inputs: str, lag: bool
) -> None:
    generated = dp_trace(devices, transport, inputs, named_ranges=True, lag=lag)  # type: ignore[arg-type]
    check_steps(analyzed(tmp_path, generated).steps, 0, generated)


def test_data_parallel_without_named_ranges(tmp_path: Path) -> None:
    generated = dp_trace(named_ranges=False)
    steps = analyzed(tmp_path, generated).steps
    check_steps(steps, 0, generated)
    assert steps["forward_us"].isna().all()


OPTIONS = {
    "plain": DdpOptions(),
    "no sequence": DdpOptions(metadata="no_sequence"),
    "partial metadata": DdpOptions(metadata="partial"),
    "operators only": DdpOptions(metadata="ops"),
    "no metadata": DdpOptions(metadata="none"),
    "lag": DdpOptions(lag=True),
    "unlaunched": DdpOptions(unlaunched=True),
    "straggler": DdpOptions(straggler=1),
    "extra groups": DdpOptions(extra_groups=True),
    "nccl 2.8": DdpOptions(kernel_names="nccl_2_8"),
    "nccl 2.12": DdpOptions(kernel_names="nccl_2_12"),
    "symmetric": DdpOptions(kernel_names="symmetric"),
    "rccl": DdpOptions(kernel_names="rccl"),
}


MATCHED = ("plain", "no sequence", "no metadata", "straggler", "extra groups")  # what a rank alone does not show


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(2, one) for one in OPTIONS.values()] + [(4, OPTIONS[name]) for name in MATCHED],
    ids=[*OPTIONS, *(f"{name}, four ranks" for name in MATCHED)],
)
def test_ddp(tmp_path: Path, world_size: int, options: DdpOptions) -> None:
    ranks = [ddp_trace(rank, world_size, options) for rank in range(world_size)]
    analysis = analyzed(tmp_path, *ranks)
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    check_collectives(analysis, ranks)


@pytest.mark.parametrize("world_size", [2, 4])
def test_gloo(tmp_path: Path, world_size: int) -> None:
    ranks = [gloo_trace(rank, world_size) for rank in range(world_size)]
    analysis = analyzed(tmp_path, *ranks)
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    check_collectives(analysis, ranks)


def test_operators_that_communicate_without_kernels_never_read_as_no_communication(tmp_path: Path) -> None:
    ranks = [ddp_trace(rank, 2, DdpOptions(communication=False)) for rank in range(2)]
    analysis = analyzed(tmp_path, *ranks)
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    assert analysis.steps["communication_us"].isna().all()
    assert "trace_incomplete" in {finding.code for finding in analysis.findings}


def test_events_of_no_step_are_counted_and_left_out(tmp_path: Path) -> None:
    generated = ddp_trace(0, 2, DdpOptions(unlaunched=True))
    (finding,) = [one for one in analyzed(tmp_path, generated).findings if one.code == "events_of_no_step"]
    assert f": {generated.expected.unlaunched_count} ({generated.expected.unlaunched_us:.1f} µs" in finding.message
    other = tmp_path / "other"
    other.mkdir()
    assert "events_of_no_step" not in {one.code for one in analyzed(other, ddp_trace(0, 2)).findings}


def test_columns_keep_their_types_whether_known_or_not(tmp_path: Path) -> None:
    # The same trace whole, and without its communication kernels, of which nothing is known then.
    whole = ddp_trace(0, 2, DdpOptions())
    events = [event for event in whole.trace["traceEvents"] if "nccl" not in event.get("name", "")]
    lost = replace(whole, trace={**whole.trace, "traceEvents": events})
    for folder in ("whole", "lost"):
        (tmp_path / folder).mkdir()
    known, unknown = analyzed(tmp_path / "whole", whole), analyzed(tmp_path / "lost", lost)
    assert known.steps["exposed_us"].notna().any()
    assert unknown.steps[["communication_us", "hidden_us", "exposed_us"]].isna().all(axis=None)
    assert unknown.collectives.empty
    assert unknown.steps.dtypes.to_dict() == known.steps.dtypes.to_dict()
    assert unknown.collectives.dtypes.to_dict() == known.collectives.dtypes.to_dict()
