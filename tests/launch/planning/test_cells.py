"""Which cells a configuration leads to."""

from pathlib import Path

import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.planning import cells
from dpscope.launch.planning.cells import check_idle_options, make_plan, plan_findings, resolve
from dpscope.launch.planning.manifest import baseline_findings
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.config import ResolvedConfig
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import PlannedCell
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.store.errors import DpscopeError

FOUR_GPUS = Devices(kind="cuda", count=4)
EIGHT_GPUS = Devices(kind="cuda", count=8)
ONE_GPU = Devices(kind="cuda", count=1)
HOST = Devices(kind="cpu", count=None)


def plan(machine: Devices, **flags: object) -> tuple[PlannedCell, ...]:
    config = resolve(load_config(None, flags), machine)
    return make_plan(config.matrix, config.workload.samples, machine.kind)


def names(machine: Devices, **flags: object) -> list[str]:
    return [planned.cell.name for planned in plan(machine, **flags) if planned.skip_reason is None]


def test_what_is_resolved_keeps_every_other_setting() -> None:
    flags = {
        "link": "100Gb/s",
        "target_efficiency": 0.8,
        "repeats": 4,
        "lr": 0.3,
        "calibrate": False,
        "amp": "off,bf16",
    }
    given = load_config(None, dict(flags))
    requested, found = settings_of(given), settings_of(resolve(given, FOUR_GPUS))
    chosen = {"device": "cuda", "devices": (1, 2, 4), "batch_sizes": (128, 512), "steps": 50, "ddp_alone": True}
    chosen |= {"model": "resnet18_cifar"}
    assert {name: value for name, value in found.items() if value != requested[name]} == chosen


def test_four_gpus_by_default() -> None:
    small = ["single-d1-b128", "ddp-d1-b128", "dp-d2-b128", "ddp-d2-b128", "dp-d4-b128", "ddp-d4-b128"]
    assert names(FOUR_GPUS) == small + [name.replace("b128", "b512") for name in small]


def test_six_gpus_are_powers_of_two_and_all() -> None:
    assert resolve(load_config(None, {}), Devices(kind="cuda", count=6)).matrix.devices == (1, 2, 4, 6)


def test_a_host_has_two_devices_and_its_data_parallel_is_named_apart() -> None:
    assert names(HOST, batch_size="4") == ["single-d1-b4", "dp-host-d2-b4", "ddp-d2-b4"]
    assert names(HOST, batch_size="4", ddp_alone=True) == ["single-d1-b4", "ddp-d1-b4", "dp-host-d2-b4", "ddp-d2-b4"]


def test_strong_scaling_has_single_cells_at_the_whole_batch_and_every_share() -> None:
    assert names(FOUR_GPUS, batch_size="32", scaling="strong") == [
        "single-d1-b8", "dp-d4-b8", "ddp-d4-b8", "single-d1-b16", "dp-d2-b16", "ddp-d2-b16", "single-d1-b32", "ddp-d1-b32",
    ]  # fmt: skip


def test_both_scalings_share_their_cells() -> None:
    both = names(FOUR_GPUS, batch_size="16,32", scaling="both", devices="1,2")
    assert both == sorted(set(both), key=both.index)
    assert set(both) == set(names(FOUR_GPUS, batch_size="16,32", devices="1,2")) | set(
        names(FOUR_GPUS, batch_size="16,32", scaling="strong", devices="1,2")
    )


def test_one_gpu_leaves_dp_out_with_the_reason() -> None:
    planned = plan(ONE_GPU, batch_size="32")
    assert names(ONE_GPU, batch_size="32") == ["single-d1-b32", "ddp-d1-b32"]
    reasons = {entry.cell.strategy: entry.skip_reason for entry in planned}
    assert "does not replicate on one device" in (reasons["dp"] or "")


def test_ddp_is_measured_on_one_device_too_unless_it_is_not_wanted() -> None:
    both = {"batch_size": "8", "strategy": "single,ddp", "comm_hook": "none,fp16", "accumulate": "1,2"}
    alone = [
        "ddp-d1-b8",
        "ddp-d1-b8-accumulate-2",
    ]  # the first of DDP's own variants: there is no message to send otherwise
    assert [name for name in names(FOUR_GPUS, devices="1,2", **both) if name.startswith("ddp-d1")] == alone
    assert [name for name in names(FOUR_GPUS, devices="2", **both) if name.startswith("ddp-d1")] == []
    without = names(FOUR_GPUS, devices="1,2", ddp_alone=False, **both)
    assert without == [name for name in names(FOUR_GPUS, devices="1,2", **both) if name not in alone]


def test_every_strategy_is_a_cell_of_the_same_plan() -> None:
    flags = {"strategy": "hsdp,fsdp,fsdp-no-reshard,replicate,ddp,single", "batch_size": "8", "accumulate": "2"}
    assert names(FOUR_GPUS, devices="1,4", comm_hook="fp16", **flags) == [
        "single-d1-b8-accumulate-2", "ddp-d1-b8-hook-fp16-accumulate-2", "ddp-d4-b8-hook-fp16-accumulate-2",
        "replicate-d4-b8-accumulate-2", "fsdp-d4-b8-hook-fp16-accumulate-2",
        "fsdp-no-reshard-d4-b8-hook-fp16-accumulate-2", "hsdp-d4-b8-hook-fp16-accumulate-2",
    ]  # fmt: skip


def test_fsdp_has_the_hooks_that_are_types() -> None:
    assert names(FOUR_GPUS, devices="4", strategy="fsdp", batch_size="8", comm_hook="none,bf16") == [
        "fsdp-d4-b8", "fsdp-d4-b8-hook-bf16",
    ]  # fmt: skip
    assert names(FOUR_GPUS, devices="4", strategy="ddp,fsdp", batch_size="8", comm_hook="powersgd") == [
        "ddp-d4-b8-hook-powersgd", "fsdp-d4-b8",
    ]  # fmt: skip


def test_each_strategy_is_compiled_but_dataparallel() -> None:
    planned = plan(FOUR_GPUS, strategy="single,dp,ddp,fsdp", batch_size="8", compile="default,off", devices="1,2")
    assert {one.cell.name: one.skip_reason is None for one in planned} == {
        "single-d1-b8": True, "single-d1-b8-compile-default": True,
        "ddp-d1-b8": True, "ddp-d1-b8-compile-default": True,
        "dp-d2-b8": True, "dp-d2-b8-compile-default": False,
        "ddp-d2-b8": True, "ddp-d2-b8-compile-default": True,
        "fsdp-d2-b8": True, "fsdp-d2-b8-compile-default": True,
    }  # fmt: skip
    (reason,) = {one.skip_reason for one in planned if one.skip_reason is not None}
    assert reason == "DataParallel makes new replicas in every step, each of which torch.compile would compile again"


def test_a_compiled_ddp_takes_no_bucket_below_its_first() -> None:
    planned = plan(FOUR_GPUS, strategy="ddp", batch_size="8", compile="default", bucket_mb="0.5,1", devices="2")
    assert [one.skip_reason is None for one in planned] == [False, True]
    assert "takes no smaller bucket cap" in (planned[0].skip_reason or "")


@pytest.mark.parametrize(
    ("mode", "other"), [("reduce-overhead", "default"), ("max-autotune-no-cudagraphs", "max-autotune")]
)
def test_modes_of_cuda_graphs_are_refused_on_the_cpu(mode: str, other: str) -> None:
    with pytest.raises(DpscopeError, match=f"^--compile {mode} on the CPU: .* use {other}$"):
        plan(HOST, compile=f"off,{mode}")
    assert names(FOUR_GPUS, strategy="single", batch_size="8", compile=mode) == [f"single-d1-b8-compile-{mode}"]


def test_hsdp_needs_devices_to_shard_over_on_each_node() -> None:
    config = load_config(None, {"strategy": "ddp,hsdp", "devices": "4x1", "batch_size": "8"})
    resolved = resolve(config, FOUR_GPUS, nodes=4)
    reasons = {one.cell.name: one.skip_reason for one in make_plan(resolved.matrix, 50_000, "cuda")}
    assert reasons["hsdp-d4-n4-b8"] == (
        "hsdp shards within a node and replicates across nodes, and 4x1 has one device on each; use fsdp"
    )
    assert reasons["ddp-d4-n4-b8"] is None


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(2, "2 devices cannot make two groups"), (5, "5 devices cannot make two groups"), (4, None)],
)
def test_hsdp_needs_two_equal_groups_of_two(devices: int, expected: str | None) -> None:
    planned = plan(EIGHT_GPUS, strategy="ddp,hsdp", devices=str(devices), batch_size="8")
    reasons = {entry.cell.strategy: entry.skip_reason for entry in planned}
    assert (reasons["hsdp"] is None) if expected is None else (expected in (reasons["hsdp"] or ""))


def test_sharding_over_one_device_is_left_out_with_the_reason() -> None:
    reasons = {
        entry.cell.strategy: entry.skip_reason for entry in plan(ONE_GPU, strategy="single,fsdp", batch_size="8")
    }
    assert "needs two devices or more" in (reasons["fsdp"] or "")


def test_growth_ends_with_the_data_set() -> None:
    assert names(HOST, batch_size="32x4", strategy="single", samples=600) == [
        "single-d1-b32", "single-d1-b128", "single-d1-b512",
    ]  # fmt: skip
    several = names(HOST, batch_size="32x4", strategy="ddp", samples=600, ddp_alone=False)
    assert several == ["ddp-d2-b32", "ddp-d2-b128"]


def test_a_step_larger_than_the_data_set_is_left_out_with_the_reason() -> None:
    planned = plan(HOST, batch_size="16", samples=20)
    reasons = {entry.cell.name: entry.skip_reason for entry in planned}
    expected = "a step takes 32 samples and the data set has 20"
    assert reasons == {"single-d1-b16": None, "dp-host-d2-b16": expected, "ddp-d2-b16": expected}
    with pytest.raises(DpscopeError, match="nothing to measure"):
        plan(HOST, batch_size="32", samples=20)


@pytest.mark.parametrize(("workers", "codes"), [(0, []), (3, ["loader_workers_uneven"]), (4, [])])
def test_too_few_workers_for_all_processes_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, workers: int, codes: list[str]
) -> None:
    monkeypatch.setattr(cells, "usable_cores", lambda: 64)
    config = resolve(load_config(None, {"workers_total": workers, "data": "fake"}), FOUR_GPUS)
    assert [finding.code for finding in plan_findings(config.workload, config.matrix, "cuda")] == codes


def findings_of(config: ResolvedConfig, on_this_host: int | None = None) -> list[Finding]:
    return plan_findings(config.workload, config.matrix, "cuda", on_this_host)


@pytest.mark.parametrize(
    ("settings", "cores", "expected"),
    [
        ({}, 4, None),  # a process for each of 4 GPUs; synthetic data has no loader
        ({}, 3, "4 GPUs on 3 host cores"),
        ({"data": "fake", "workers": "2"}, 12, None),  # 4 + 4 x 2
        ({"data": "fake", "workers": "2"}, 11, "4 GPUs and 8 loader workers on 11 host cores"),
        ({"data": "fake", "workers_total": 4}, 8, None),
        ({"data": "fake", "workers_total": 4}, 7, "4 GPUs and 4 loader workers on 7 host cores"),
        ({"devices": "1,2", "data": "fake"}, 6, None),  # 2 + 2 x 2
    ],
)
def test_fewer_host_cores_than_gpus_and_workers_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], cores: int, expected: str | None
) -> None:
    monkeypatch.setattr(cells, "usable_cores", lambda: cores)
    found = findings_of(resolve(load_config(None, settings), FOUR_GPUS))
    assert [finding.code for finding in found] == ([] if expected is None else ["few_host_cores"])
    assert expected is None or expected in found[0].message


def test_nodes_of_a_job_count_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GPUs over two nodes are 4 for a node's 4 cores; on one node they are too many."""
    monkeypatch.setattr(cells, "usable_cores", lambda: 4)
    config = resolve(load_config(None, {"devices": "8"}), EIGHT_GPUS, on_this_host=4)
    assert findings_of(config, on_this_host=4) == []
    assert [finding.code for finding in findings_of(config)] == ["few_host_cores"]


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        (FOUR_GPUS, {"devices": "8"}, "--devices 8: this machine has 4"),
        (HOST, {"devices": "999"}, "--devices 999"),
        (HOST, {"amp": "fp16"}, "--amp fp16 on the CPU"),
        (HOST, {"amp": "off,fp16"}, "--amp fp16 on the CPU"),
        (HOST, {"pin_memory": True, "data": "fake"}, "--pin-memory on the CPU"),
        (ONE_GPU, {"strategy": "dp"}, "nothing to measure"),
        (HOST, {"strategy": "single", "devices": "2"}, "nothing to measure"),
        (FOUR_GPUS, {"scaling": "strong", "batch_size": "6"}, "cannot be split over 4"),
    ],
)
def test_what_cannot_be_measured_is_refused(machine: Devices, flags: dict[str, object], expected: str) -> None:
    with pytest.raises(DpscopeError, match=expected):
        plan(machine, **flags)


@pytest.mark.parametrize(
    ("machine", "flags", "refused"),
    [
        (ONE_GPU, {"link": "100Gb/s"}, "--link"),
        (ONE_GPU, {"target_efficiency": 0.8}, "--target-efficiency"),
        (ONE_GPU, {"scaling": "strong"}, "--scaling"),
        (ONE_GPU, {"warmup_steps": 9}, None),
        (FOUR_GPUS, {"link": "100Gb/s", "scaling": "strong"}, None),
        (HOST, {"link": "100Gb/s"}, None),
    ],
)
def test_what_one_device_makes_idle_is_refused_also_where_the_machine_has_no_more(
    monkeypatch: pytest.MonkeyPatch, machine: Devices, flags: dict[str, object], refused: str | None
) -> None:
    monkeypatch.setattr(cells, "resolve_devices", lambda requested: machine)
    config = load_config(None, flags)
    if refused is None:
        check_idle_options(config, flags)
        return
    with pytest.raises(DpscopeError, match=rf"^{refused} does nothing here: .*; omit it$"):
        check_idle_options(config, flags)


def over_nodes(flags: dict[str, object], nodes: int, gpus: int = 8) -> ResolvedMatrix:
    return resolve(load_config(None, flags), Devices(kind="cuda", count=gpus), nodes=nodes).matrix


def test_all_nodes_are_measured_whole_in_powers_of_two_after_one_node_s_counts() -> None:
    matrix = over_nodes({}, nodes=6)
    assert (matrix.devices, matrix.layouts) == ((1, 2, 4, 8), ("2x8", "4x8", "6x8"))
    assert (matrix.counts, matrix.most_on_a_node) == ((1, 2, 4, 8, 16, 32, 48), 8)
    assert over_nodes({"strategy": "single,dp,ddp"}, nodes=1).layouts == ()
    cells = [
        one.cell.name for one in make_plan(over_nodes({"batch_size": "32", "devices": "1,8,2x4,2x8"}, 2), 10**6, "cuda")
    ]
    # DataParallel is one process and spans no nodes; 8 devices on one node and on two are two cells
    assert cells == ["single-d1-b32", "ddp-d1-b32", "dp-d8-b32", "ddp-d8-b32", "ddp-d8-n2-b32", "ddp-d16-n2-b32"]


def test_a_strong_batch_is_shared_by_all_devices_of_all_nodes() -> None:
    matrix = over_nodes({"scaling": "strong", "batch_size": "64", "devices": "1,2x4", "strategy": "single,ddp"}, 2)
    plan = make_plan(matrix, 10**6, "cuda")
    assert [one.cell.name for one in plan] == ["single-d1-b8", "ddp-d8-n2-b8", "single-d1-b64", "ddp-d1-b64"]
    with pytest.raises(DpscopeError, match="a global batch of 60 cannot be split over 8 devices"):
        over_nodes({"scaling": "strong", "batch_size": "60", "devices": "2x4", "strategy": "ddp"}, 2)


@pytest.mark.parametrize(
    ("flags", "nodes", "expected"),
    [
        (
            {"devices": "2x8"},
            1,
            "--devices 2x8: one node is available, 2 are needed; start the same command on 2 nodes, with --nodes 2",
        ),
        ({"devices": "4x8"}, 2, "--devices 4x8: 2 nodes are available, 4 are needed"),
        (
            {"devices": "1,2"},
            2,
            "nothing spans nodes; name counts over all of them, such as --devices 2x2 with ddp, or omit --nodes",
        ),
        ({"devices": "1,2,2x8"}, 4, "only 2 of the nodes would be used"),
        ({"strategy": "single,dp"}, 2, "nothing spans nodes"),
        ({"devices": "2x8", "strategy": "dp"}, 2, "only strategies with a process for each device span nodes"),
        ({"devices": "2x9"}, 2, "--devices 9: this machine has 8"),
        ({"devices": "1x8"}, 2, "1x8 does not span several nodes; for one node write 8; write it as 1,2,4"),
        (
            {"devices": "2x0"},
            2,
            "2x0 has no device on a node; the second number is 1 or more, such as 2x1; write it as 1,2,4",
        ),
        ({"devices": "0x8"}, 2, "0x8 does not span several nodes; for one node write 8"),
        ({"devices": "2x"}, 2, "2x is not a number of nodes times devices"),
    ],
)
def test_counts_over_nodes_that_cannot_be_are_refused(flags: dict[str, object], nodes: int, expected: str) -> None:
    with pytest.raises(DpscopeError) as caught:
        over_nodes(flags, nodes)
    assert expected in str(caught.value)


def test_a_file_names_layouts_in_a_list_or_as_text(tmp_path: Path) -> None:
    for text in ('devices = [1, 4, "2x4"]', 'devices = "1,4,2x4"'):
        path = tmp_path / "run.toml"
        path.write_text(text)
        matrix = load_config(path, {}).matrix
        assert (matrix.devices, matrix.layouts) == ((1, 4), ("2x4",))


@pytest.mark.parametrize(
    ("devices", "strategy", "expected"),
    [("4", None, "only on 4"), ("2,4", "ddp", "only on 2 and 4"), ("1,4", None, None), ("1", None, None)],
)
def test_a_plan_without_a_baseline_is_reported(devices: str, strategy: str | None, expected: str | None) -> None:
    found = baseline_findings(plan(FOUR_GPUS, devices=devices, strategy=strategy))
    assert [one.code for one in found] == ([PlanCode.NO_BASELINE.code] if expected else [])
    assert expected is None or (expected in found[0].message and f"--devices 1,{devices}" in found[0].next_step)
