"""Which cells a configuration leads to."""

import shlex

import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.planning import cells
from dpscope.launch.planning.cells import check_idle_options, make_plan, plan_findings, resolve
from dpscope.launch.planning.manifest import baseline_findings
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.run import PlannedCell
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.store.errors import DpscopeError

ONE_GPU, FOUR_GPUS, EIGHT_GPUS = (Devices(kind="cuda", count=count) for count in (1, 4, 8))
HOST = Devices(kind="cpu", count=None)


def given(text: str) -> dict[str, object]:
    """The flags of ``devices=1,2 batch_size=8``."""
    return {name: value for name, _, value in (one.partition("=") for one in shlex.split(text))}


def plan(machine: Devices, text: str, nodes: int = 1) -> tuple[PlannedCell, ...]:
    config = resolve(load_config(None, given(text)), machine, nodes=nodes)
    return make_plan(config.matrix, config.workload.samples, machine.kind)


def names(machine: Devices, text: str, nodes: int = 1) -> list[str]:
    return [
        planned.cell.name for planned in plan(machine, text, nodes) if planned.skip_reason is None
    ]


def test_processes_share_the_cores_by_the_most_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "usable_cores", lambda: 9)
    matrix = resolve(load_config(None, given("devices=1,2 strategy=ddp")), HOST).matrix
    assert cells.threads_per_process(matrix) == 4


def test_global_default_batches_are_raised_to_what_every_count_divides() -> None:
    """128 and 512 on a GPU: the next multiples of 3."""
    text = "scaling=strong devices=1,3 strategy=single,ddp"
    resolved = resolve(load_config(None, given(text)), FOUR_GPUS)
    assert resolved.matrix.batch_sizes == (129, 513)


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
    chosen = {
        "device": "cuda",
        "devices": (1, 2, 4),
        "batch_sizes": (128, 512),
        "steps": 50,
        "ddp_alone": True,
    }
    chosen |= {"model": "resnet18_cifar"}
    assert {
        name: value for name, value in found.items() if value != requested.get(name, value)
    } == chosen


FOUR = "single-d1-b128 ddp-d1-b128 dp-d2-b128 ddp-d2-b128 dp-d4-b128 ddp-d4-b128"
ALL = "strategy=hsdp,fsdp,fsdp-no-reshard,replicate,ddp,single accumulate=2 comm_hook=fp16"
ALONE = "batch_size=8 strategy=single,ddp comm_hook=none,fp16 accumulate=1,2"
PLANS: list[tuple[Devices, str, str]] = [
    (FOUR_GPUS, "", f"{FOUR} {FOUR.replace('b128', 'b512')}"),
    # A host has two devices by default, and its DataParallel another name; DDP alone only on
    # request.
    (HOST, "batch_size=4", "single-d1-b4 dp-host-d2-b4 ddp-d2-b4"),
    (HOST, "batch_size=4 ddp_alone=true", "single-d1-b4 ddp-d1-b4 dp-host-d2-b4 ddp-d2-b4"),
    # Strong scaling: single cells at the whole batch and at every share.
    (
        FOUR_GPUS,
        "batch_size=32 scaling=strong",
        "single-d1-b8 dp-d4-b8 ddp-d4-b8 single-d1-b16 dp-d2-b16 ddp-d2-b16 single-d1-b32 ddp-d1-b32",
    ),
    # Both scalings share their cells.
    (
        FOUR_GPUS,
        "batch_size=16,32 scaling=both devices=1,2",
        "single-d1-b8 dp-d2-b8 ddp-d2-b8 single-d1-b16 ddp-d1-b16 dp-d2-b16 ddp-d2-b16 single-d1-b32 ddp-d1-b32 dp-d2-b32 "
        "ddp-d2-b32",
    ),
    (ONE_GPU, "batch_size=32", "single-d1-b32 ddp-d1-b32"),
    # Of DDP alone the first of DDP's own variants: there is no message to send otherwise.
    (
        FOUR_GPUS,
        f"devices=1,2 {ALONE}",
        "single-d1-b8 single-d1-b8-accumulate-2 ddp-d1-b8 ddp-d1-b8-accumulate-2 "
        "ddp-d2-b8 ddp-d2-b8-hook-fp16 ddp-d2-b8-accumulate-2 ddp-d2-b8-hook-fp16-accumulate-2",
    ),
    (
        FOUR_GPUS,
        f"devices=1,2 ddp_alone=false {ALONE}",
        "single-d1-b8 single-d1-b8-accumulate-2 "
        "ddp-d2-b8 ddp-d2-b8-hook-fp16 ddp-d2-b8-accumulate-2 ddp-d2-b8-hook-fp16-accumulate-2",
    ),
    (FOUR_GPUS, "devices=2 strategy=ddp batch_size=8", "ddp-d2-b8"),
    # Every strategy is a cell of the same plan; FSDP has the hooks that are types.
    (
        FOUR_GPUS,
        f"devices=1,4 batch_size=8 {ALL}",
        "single-d1-b8-accumulate-2 ddp-d1-b8-hook-fp16-accumulate-2 ddp-d4-b8-hook-fp16-accumulate-2 "
        "replicate-d4-b8-accumulate-2 fsdp-d4-b8-hook-fp16-accumulate-2 "
        "fsdp-no-reshard-d4-b8-hook-fp16-accumulate-2 hsdp-d4-b8-hook-fp16-accumulate-2",
    ),
    (
        FOUR_GPUS,
        "devices=4 strategy=fsdp batch_size=8 comm_hook=none,bf16",
        "fsdp-d4-b8 fsdp-d4-b8-hook-bf16",
    ),
    (
        FOUR_GPUS,
        "devices=4 strategy=ddp,fsdp batch_size=8 comm_hook=powersgd",
        "ddp-d4-b8-hook-powersgd fsdp-d4-b8",
    ),
    (
        FOUR_GPUS,
        "strategy=single batch_size=8 compile=reduce-overhead",
        "single-d1-b8-compile-reduce-overhead",
    ),
    # Combinations are DDP's alone; accumulation and precision are every strategy's, the run's own
    # unnamed.
    (
        HOST,
        "batch_size=8 ddp_alone=true overlap=off,on comm_hook=fp16,none",
        "single-d1-b8 ddp-d1-b8 dp-host-d2-b8 ddp-d2-b8 ddp-d2-b8-hook-fp16 ddp-d2-b8-overlap-off "
        "ddp-d2-b8-overlap-off-hook-fp16",
    ),
    (
        HOST,
        "batch_size=8 ddp_alone=true accumulate=4,1",
        "single-d1-b8 single-d1-b8-accumulate-4 ddp-d1-b8 ddp-d1-b8-accumulate-4 dp-host-d2-b8 "
        "dp-host-d2-b8-accumulate-4 ddp-d2-b8 ddp-d2-b8-accumulate-4",
    ),
    (
        HOST,
        "batch_size=8 ddp_alone=true amp=bf16,off",
        "single-d1-b8 single-d1-b8-amp-bf16 ddp-d1-b8 ddp-d1-b8-amp-bf16 dp-host-d2-b8 dp-host-d2-b8-amp-bf16 ddp-d2-b8 "
        "ddp-d2-b8-amp-bf16",
    ),
    (
        HOST,
        "batch_size=8 ddp_alone=true amp=bf16",
        "single-d1-b8 ddp-d1-b8 dp-host-d2-b8 ddp-d2-b8",
    ),
    # At the whole batch and at its shares.
    (
        HOST,
        "batch_size=8 ddp_alone=true scaling=strong accumulate=2 strategy=single,ddp",
        "single-d1-b4-accumulate-2 ddp-d2-b4-accumulate-2 single-d1-b8-accumulate-2 ddp-d1-b8-accumulate-2",
    ),
    # Bucket sizes mean nothing without overlap.
    (
        HOST,
        "batch_size=8 strategy=ddp overlap=on,off bucket_mb=5,default,2.5",
        "ddp-d2-b8 ddp-d2-b8-bucket-2.5mb ddp-d2-b8-bucket-5mb ddp-d2-b8-overlap-off",
    ),
    (
        HOST,
        "batch_size=8 strategy=ddp ddp_args='default;bucket_cap_mb_list=[1,25]  batched_grad_copy=true'",
        "ddp-d2-b8 ddp-d2-b8-bucket_cap_mb_list-1-25-batched_grad_copy-true",
    ),
    # Growth ends with the data set.
    (
        HOST,
        "batch_size=32,128,... strategy=single samples=600",
        "single-d1-b32 single-d1-b128 single-d1-b512",
    ),
    (
        HOST,
        "batch_size=32,128,... strategy=ddp samples=600 ddp_alone=false",
        "ddp-d2-b32 ddp-d2-b128",
    ),
]


@pytest.mark.parametrize(("machine", "flags", "expected"), PLANS)
def test_plans(machine: Devices, flags: str, expected: str) -> None:
    assert names(machine, flags) == expected.split()


RECOMPILED = (
    "DataParallel makes new replicas in every step, each of which torch.compile would compile again"
)
LEFT_OUT: list[tuple[Devices, str, dict[str, str]]] = [
    (ONE_GPU, "strategy=single,dp batch_size=8", {"dp-d1-b8": "does not replicate on one device"}),
    (ONE_GPU, "strategy=single,fsdp batch_size=8", {"fsdp-d1-b8": "needs 2 devices or more"}),
    (
        FOUR_GPUS,
        "strategy=single,dp,ddp,fsdp batch_size=8 compile=default,off devices=1,2",
        {"dp-d2-b8-compile-default": RECOMPILED},
    ),
    (
        FOUR_GPUS,
        "strategy=ddp batch_size=8 compile=default bucket_mb=0.5,1 devices=2",
        {"ddp-d2-b8-bucket-0.5mb-compile-default": "takes no smaller bucket cap"},
    ),
    (
        EIGHT_GPUS,
        "strategy=ddp,hsdp devices=2,4,5 batch_size=8",
        {
            "hsdp-d2-b8": "2 devices cannot make two groups",
            "hsdp-d5-b8": "5 devices cannot make two groups",
        },
    ),
    (
        HOST,
        "batch_size=16 samples=20",
        dict.fromkeys(
            ("dp-host-d2-b16", "ddp-d2-b16"), "a step takes 32 samples and the data set has 20"
        ),
    ),
]


@pytest.mark.parametrize(("machine", "flags", "expected"), LEFT_OUT)
def test_cells_are_left_out_with_the_reason(
    machine: Devices, flags: str, expected: dict[str, str]
) -> None:
    reasons = {one.cell.name: one.skip_reason for one in plan(machine, flags) if one.skip_reason}
    assert set(reasons) == set(expected)
    assert [reason for name, reason in reasons.items() if expected[name] not in reason] == []


def test_hsdp_needs_devices_to_shard_over_on_each_node() -> None:
    planned = plan(FOUR_GPUS, "strategy=ddp,hsdp devices=4x1 batch_size=8", nodes=4)
    reasons = {one.cell.name: one.skip_reason for one in planned}
    assert reasons == {
        "ddp-d4-n4-b8": None,
        "hsdp-d4-n4-b8": "hsdp shards within a node and replicates across nodes, and 4x1 has one device on each; use fsdp",
    }


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
        ({"data": "fake", "workers_total": 3}, 64, "3 loader workers in all for 4 DDP processes"),
        ({"data": "fake", "workers_total": 0}, 64, None),
    ],
)
def test_too_few_cores_or_workers_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], cores: int, expected: str | None
) -> None:
    monkeypatch.setattr(cells, "usable_cores", lambda: cores)
    config = resolve(load_config(None, settings), FOUR_GPUS)
    found = plan_findings(config.workload, config.matrix, "cuda")
    codes = (
        [] if expected is None else ["loader_workers" if "DDP" in expected else "few_host_cores"]
    )
    assert [finding.code for finding in found] == codes
    assert expected is None or expected in found[0].message


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


def over_nodes(flags: dict[str, object], nodes: int) -> ResolvedMatrix:
    return resolve(load_config(None, flags), EIGHT_GPUS, nodes=nodes).matrix


def test_all_nodes_are_measured_whole_in_powers_of_two_after_one_node_s_counts() -> None:
    assert resolve(load_config(None, {}), Devices(kind="cuda", count=6)).matrix.devices == (
        1,
        2,
        4,
        6,
    )
    matrix = over_nodes({}, nodes=6)
    assert (matrix.devices, matrix.layouts) == ((1, 2, 4, 8), ("2x8", "4x8", "6x8"))
    assert (matrix.counts, matrix.most_on_a_node) == ((1, 2, 4, 8, 16, 32, 48), 8)
    assert over_nodes({"strategy": "single,dp,ddp"}, nodes=1).layouts == ()
    # DataParallel is one process and spans no nodes; 8 devices on one node and on two are two
    # cells.
    on_two = names(EIGHT_GPUS, "batch_size=32 devices=1,8,2x4,2x8", nodes=2)
    assert on_two == [
        "single-d1-b32",
        "ddp-d1-b32",
        "dp-d8-b32",
        "ddp-d8-b32",
        "ddp-d8-n2-b32",
        "ddp-d16-n2-b32",
    ]
    shared = names(
        EIGHT_GPUS, "scaling=strong batch_size=64 devices=1,2x4 strategy=single,ddp", nodes=2
    )
    # by all devices of all nodes
    assert shared == ["single-d1-b8", "ddp-d8-n2-b8", "single-d1-b64", "ddp-d1-b64"]


@pytest.mark.parametrize(
    ("machine", "nodes", "flags", "expected"),
    [
        (FOUR_GPUS, 1, "devices=8", "--devices 8: this machine has 4"),
        (HOST, 1, "devices=999", "--devices 999: on the CPU a device is a process"),
        (HOST, 1, "amp=fp16", "--amp fp16 on the CPU"),
        (HOST, 1, "compile=off,reduce-overhead", "--compile reduce-overhead on the CPU"),
        (HOST, 1, "compile=max-autotune-no-cudagraphs", "from max-autotune; use max-autotune"),
        (HOST, 1, "nccl_engine=legacy", "--nccl-engine legacy on the CPU"),
        (HOST, 1, "pin_memory=true data=fake", "--pin-memory on the CPU"),
        (ONE_GPU, 1, "strategy=dp", "nothing to measure"),
        (HOST, 1, "strategy=single devices=2", "nothing to measure"),
        (HOST, 1, "batch_size=32 samples=20", "nothing to measure"),
        (
            HOST,
            1,
            "batch_size=32,64,... samples=20",
            "a step takes no more samples than the data set has",
        ),
        (
            HOST,
            1,
            "strategy=dp compile=aot_eager devices=2",
            "leaves no cell; DataParallel makes new replicas",
        ),
        (FOUR_GPUS, 1, "scaling=strong batch_size=6", "cannot be split over 4"),
        (EIGHT_GPUS, 2, "scaling=strong batch_size=60 devices=2x4 strategy=ddp", "over 8 devices"),
        (
            EIGHT_GPUS,
            1,
            "devices=2x8",
            "--devices 2x8: one node is available, 2 are needed; start the same command on 2 nodes, with --nodes 2",
        ),
        (EIGHT_GPUS, 2, "devices=4x8", "--devices 4x8: 2 nodes are available, 4 are needed"),
        (
            EIGHT_GPUS,
            2,
            "devices=1,2",
            "nothing spans nodes; name counts over all of them, such as --devices 2x2 with ddp, or omit --nodes",
        ),
        (EIGHT_GPUS, 4, "devices=1,2,2x8", "only 2 of the nodes would be used"),
        (
            EIGHT_GPUS,
            2,
            "devices=2x8 strategy=dp",
            "only strategies with a process for each device span nodes",
        ),
        (EIGHT_GPUS, 2, "devices=2x9", "--devices 9: this machine has 8"),
        (
            EIGHT_GPUS,
            2,
            "devices=1x8",
            "1x8 does not span several nodes; for one node write 8; write it as 1,2,4",
        ),
        (
            EIGHT_GPUS,
            2,
            "devices=2x0",
            "2x0 has no device on a node; the second number is 1 or more, such as 2x1",
        ),
        (EIGHT_GPUS, 2, "devices=2x", "2x is neither a number of devices nor a layout such as 2x4"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    machine: Devices, nodes: int, flags: str, expected: str
) -> None:
    with pytest.raises(DpscopeError) as caught:
        plan(machine, flags, nodes)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "expected", "next_step"),
    [
        ("devices=4", "only on 4", "--devices 1,4"),
        ("devices=2,4 strategy=ddp", "only on 2 and 4", "--devices 1,2,4"),
        ("devices=1,4", None, ""),
        ("devices=1", None, ""),
    ],
)
def test_a_plan_without_a_baseline_is_reported(
    flags: str, expected: str | None, next_step: str
) -> None:
    found = baseline_findings(plan(FOUR_GPUS, flags))
    assert [one.code for one in found] == (["no_baseline"] if expected else [])
    assert expected is None or (expected in found[0].message and next_step in found[0].next_step)
