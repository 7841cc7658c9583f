"""The job of a worker started by hand, and the conditions under which it may join a run."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.worker_process import TorchrunPlace, torchrun_place
from dpscope.launch.measuring import worker_arguments as worker_job
from dpscope.launch.measuring.cell import _wait_for_all_files
from dpscope.launch.measuring.planned_jobs import plan_run
from dpscope.launch.measuring.worker_arguments import WorkerJob, job_from_arguments
from dpscope.launch.planning import cells as plan
from dpscope.launch.planning.manifest import new_manifest
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import CellResult, CellStatus, ParameterSizes, RankResult, cell_workload
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.paths import USER_MODELS

ALONE = TorchrunPlace(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)
TINY = [
    "--model", "tiny_models:tiny", "--device", "cpu", "--steps", "3", "--traced-steps", "1", "--batch-size", "2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _outside_of_any_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the commit of a checkout would be read by a git process


def test_two_nodes_by_torchruns_environment() -> None:
    environment = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
    }  # fmt: skip
    place = torchrun_place(environment)
    assert (place.rank, place.local_rank, place.node, place.world_size, place.nodes) == (3, 1, 1, 4, 2)


def two_gpu_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 4 GPUs, none of which torch or NVML lists."""
    monkeypatch.setattr(worker_job, "resolve_devices", lambda requested: Devices(kind="cuda", count=4))


def test_ddp_over_two_gpu_nodes_counts_each_nodes_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpu_nodes(monkeypatch)
    arguments = ["--strategy", "ddp", "--batch-size", "32", "--out", str(tmp_path / "run")]
    jobs = [
        job_from_arguments(arguments, TorchrunPlace(rank, rank % 4, world_size=8, local_world_size=4, node=rank // 4))
        for rank in range(8)
    ]
    assert {job.cell.name for job in jobs} == {"ddp-d8-b32"}
    assert {job.config.matrix.devices for job in jobs} == {(8,)}
    assert len({(job.folder.path, job.threads, job.kind) for job in jobs}) == 1
    manifest = RunFolder(tmp_path / "run").manifest()
    assert [planned.cell.name for planned in manifest.plan] == ["ddp-d8-b32"]
    assert manifest.config.matrix.devices == (8,)


def test_one_node_of_four_gpus_and_two_of_two_are_different_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpu_nodes(monkeypatch)
    arguments = ["--strategy", "ddp", "--batch-size", "32", "--out", str(tmp_path / "run")]
    one = job_from_arguments(arguments, TorchrunPlace(0, 0, world_size=4, local_world_size=4, node=0))
    two_by_two = TorchrunPlace(0, 0, world_size=4, local_world_size=2, node=0, nodes=2)
    two = job_from_arguments(arguments, two_by_two)
    assert (one.cell.name, two.cell.name) == ("ddp-d4-b32", "ddp-d4-n2-b32")
    assert (one.repeat, two.repeat) == (0, 0)  # no repeats of one another
    with pytest.raises(DpscopeError, match=r"ddp-d4-b32 is a cell of 1 node and torchrun started 2"):
        job_from_arguments(["--cell", "ddp-d4-b32", "--out", str(tmp_path / "run")], two_by_two)


def test_more_processes_than_a_node_has_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpu_nodes(monkeypatch)
    arguments = ["--batch-size", "32", "--out", str(tmp_path / "run")]
    five_each = TorchrunPlace(rank=0, local_rank=0, world_size=10, local_world_size=5, node=0)
    with pytest.raises(DpscopeError, match=r"--nproc-per-node 5: this machine has 4 GPUs"):
        job_from_arguments(["--strategy", "ddp", *arguments], five_each)
    with pytest.raises(DpscopeError, match=r"--devices 8: this machine has 4 GPUs"):  # one process, on this host
        job_from_arguments(["--strategy", "dp", "--devices", "8", *arguments], ALONE)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_rank_0_does_not_share_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_job, "WAIT_FOR_RANK_0_S", 0.1)
    second = TorchrunPlace(rank=1, local_rank=0, world_size=2, local_world_size=1, node=1)
    arguments = ["--strategy", "ddp", "--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    with pytest.raises(DpscopeError, match=r"rank 0 has added no ddp-d2-b2 there in 0\.1 s; name one folder that all"):
        job_from_arguments(arguments, second)
    assert list(tmp_path.iterdir()) == []


def test_files_that_another_node_saved_elsewhere_are_named(tmp_path: Path) -> None:
    folder = RepeatFolder(tmp_path)
    write_json(folder.rank_path(0, 0), rank_result(rank=0, node=0))
    with pytest.raises(DpscopeError, match=r"lacks the files of rank 1, 2, which were saved: .* not a folder that"):
        _wait_for_all_files(folder, world_size=3, timeout_s=0.1)
    write_json(folder.rank_path(0, 1), rank_result(rank=1, node=0))
    write_json(folder.rank_path(1, 2), rank_result(rank=2, node=1))
    _wait_for_all_files(folder, world_size=3, timeout_s=0.1)


def rank_result(rank: int, node: int) -> RankResult:
    sizes = ParameterSizes(parameter_count=1, parameter_bytes=4, gradient_bytes=4, buffer_bytes=0)
    return RankResult(
        rank=rank, node=node, local_rank=0, world_size=3, device_names=("cpu",), threads=1, backend="gloo",
        nccl_engine=None, loader_workers=0, steps_per_epoch=1, model=sizes, blocks=(), memory=(),
    )  # fmt: skip


def with_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(worker_job, "usable_cores", lambda: cores)
    monkeypatch.setattr(plan, "usable_cores", lambda: cores)


def on_one_host(processes: int) -> TorchrunPlace:
    return TorchrunPlace(0, 0, world_size=processes, local_world_size=processes, node=0)


def test_threads_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 cores and 4 threads per process at the run's start: 4 processes would have 16 threads."""
    with_cores(monkeypatch, 8)
    settings = ["--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    single, ddp = ["--strategy", "single", *settings], ["--strategy", "ddp", *settings]
    assert job_from_arguments(single, ALONE).threads == 4
    assert job_from_arguments(ddp, on_one_host(2)).threads == 4
    expected = (
        "begun with 4 threads a process: ddp-d4-b2 would compute with 4 x 4 threads on the 8 cores of this host; "
    )
    with pytest.raises(DpscopeError, match=expected + "give every cell --threads 2, in a new --out"):
        job_from_arguments(ddp, on_one_host(4))
    replicas = ["--strategy", "dp", "--devices", "4", *settings]
    with pytest.raises(DpscopeError, match="dp-host-d4-b2 would compute with 4 x 4 threads"):
        job_from_arguments(replicas, ALONE)
    names = [planned.cell.name for planned in RunFolder(tmp_path / "run").manifest().plan]
    assert names == ["single-d1-b2", "ddp-d2-b2"]  # refused cells are not planned
    # Nothing is measured yet: the run may start again with a number of threads that fits.
    assert job_from_arguments([*ddp, "--threads", "2"], on_one_host(4)).threads == 2
    assert job_from_arguments(single, ALONE).threads == 2


def test_threads_are_equal_in_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cores(monkeypatch, 8)
    settings = ["--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    single = ["--strategy", "single", *settings]
    too_many = "--threads 9: single-d1-b2 would compute with 1 x 9"
    for threads, expected in ((0, "--threads 0: must be 1 or more"), (9, too_many)):
        with pytest.raises(DpscopeError, match=expected):
            job_from_arguments([*single, "--threads", str(threads)], ALONE)
    first = job_from_arguments([*single, "--threads", "8"], ALONE)
    assert first.threads == 8
    write_json(first.folder.result_path, result_of(first, "ok"))
    with pytest.raises(DpscopeError, match="was measured with threads = 8, not 2: its cells could not be compared"):
        job_from_arguments(["--strategy", "ddp", *settings, "--threads", "2"], on_one_host(4))
    by_name = ["--cell", "single-d1-b2", "--out", str(tmp_path / "run")]
    assert job_from_arguments(by_name, ALONE).threads == 8
    with pytest.raises(DpscopeError, match="takes its settings from the run's manifest: omit --threads"):
        job_from_arguments([*by_name, "--threads", "8"], ALONE)
    with_cores(monkeypatch, 4)
    with pytest.raises(DpscopeError, match="begun with 8 threads a process: single-d1-b2 would compute with 1 x 8"):
        job_from_arguments(by_name, ALONE)


def test_another_machine_or_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run = RunFolder(tmp_path / "run")
    arguments = ["--strategy", "single", "--batch-size", "2", "--device", "cpu", "--out", str(run.path)]
    job = job_from_arguments(arguments, ALONE)
    write_json(job.folder.result_path, result_of(job, "ok"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it for several processes
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    assert job_from_arguments(arguments, ALONE).repeat == 1
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    expected = "was measured with GLOO_SOCKET_IFNAME = unset, not lo: its cells could not be compared"
    with pytest.raises(DpscopeError, match=expected):
        job_from_arguments(arguments, ALONE)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    manifest = run.manifest()
    environment = msgspec.structs.replace(manifest.environment, cpu_name="another")
    write_json(run.manifest_path, msgspec.structs.replace(manifest, environment=environment))
    with pytest.raises(DpscopeError, match="was measured with processor = another, not "):
        job_from_arguments(arguments, ALONE)


def test_more_processes_than_cores_have_one_thread_and_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, 2)
    settings = ["--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert job_from_arguments(["--strategy", "single", *settings], ALONE).threads == 1
    assert RunFolder(tmp_path / "run").manifest().findings == ()
    assert job_from_arguments(["--strategy", "ddp", *settings], on_one_host(4)).threads == 1
    (finding,) = RunFolder(tmp_path / "run").manifest().findings
    assert (finding.code, finding.message[:30]) == ("cpu_oversubscribed", "4 processes share 2 cores: the")


def test_on_gpus_the_first_cell_leaves_threads_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 cores and 4 GPUs: 8 threads each, whichever cell is first, as in `dpscope run`."""
    with_cores(monkeypatch, 32)
    two_gpu_nodes(monkeypatch)
    settings = ["--batch-size", "2"]
    places = {"single": ALONE, "dp": ALONE, "ddp": on_one_host(4)}
    for first in places:
        for strategy in sorted(places, key=lambda name: name != first):
            job = job_from_arguments(
                ["--strategy", strategy, *settings, "--out", str(tmp_path / first)], places[strategy]
            )
            assert job.threads == 8
    alone = Devices(kind="cuda", count=4)
    assert plan.threads_per_process(plan.resolve(load_config(None, {}), alone).matrix) == 8


def result_of(job: WorkerJob, status: CellStatus) -> CellResult:
    return CellResult(cell=job.cell, repeat=job.repeat, status=status, duration_s=1.0)


def test_a_repeat_that_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    by_flags = ["--strategy", "single", "--batch-size", "2", "--device", "cpu", *out]
    by_name = ["--cell", "single-d1-b2", *out]
    first = job_from_arguments(by_flags, ALONE)
    write_json(first.folder.result_path, result_of(first, "ok"))
    kept = first.folder.result_path.read_bytes()
    for arguments in (by_flags, by_name):
        expected = rf"--repeat 0: single-d1-b2 is measured already, in {first.folder.path}; omit --repeat to add"
        with pytest.raises(DpscopeError, match=expected):
            job_from_arguments([*arguments, "--repeat", "0"], ALONE)
        assert job_from_arguments([*arguments, "--repeat", "3"], ALONE).repeat == 3
        assert job_from_arguments(arguments, ALONE).repeat == 1
        with pytest.raises(DpscopeError, match="--repeat -1: must be 0 or more"):
            job_from_arguments([*arguments, "--repeat", "-1"], ALONE)
    assert first.folder.result_path.read_bytes() == kept


def test_a_repeat_that_failed_may_be_measured_again(tmp_path: Path) -> None:
    arguments = ["--strategy", "single", "--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    failed = job_from_arguments(arguments, ALONE)
    write_json(failed.folder.result_path, result_of(failed, "crashed"))
    for name in ("log.txt", "traces/0_0.pt.trace.json.gz", "counters/0_0.json", "rank_0_0.json", "samples_0_0.parquet"):
        (failed.folder.path / name).parent.mkdir(exist_ok=True)
        (failed.folder.path / name).write_text("left")
    again = job_from_arguments([*arguments, "--repeat", "0"], ALONE)
    again.folder.clear_attempt()
    assert [path.name for path in failed.folder.path.iterdir()] == ["log.txt"]  # it may be the running job's


def test_a_worker_without_torchrun_is_refused() -> None:
    with pytest.raises(DpscopeError, match="under torchrun; start it with torchrun --standalone"):
        torchrun_place({})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--strategy", "all", "--batch-size", "2"], "--strategy all"),
        (["--batch-size", "2"], "--strategy is missing: a worker measures one"),
        (["--strategy", "ddp", "--batch-size", "2", "--devices", "2"], "--devices does nothing here: ddp has one"),
        (
            ["--strategy", "single", "--batch-size", "2", "--devices", "1"],
            "--devices does nothing here: single has one",
        ),
        (["--strategy", "single,dp,ddp", "--batch-size", "2"], "--strategy single,dp,ddp: a worker measures one"),
        (["--strategy", "single,ddp", "--batch-size", "2"], "--strategy single,ddp: a worker measures one"),
        (["--strategy", "dp", "--devices", "1", "--batch-size", "2", "--device", "cpu"], "--devices 1 with"),
        (["--strategy", "single", "--batch-size", "2", "--model", "resnet19", "--device", "cpu"], "no such model"),
        (["--strategy", "single", "--batch-size", "2", "--data", "cifar10", "--device", "cpu"], "--data cifar10"),
        (["--strategy", "single", "--batch-size", "9", "--samples", "8", "--device", "cpu"], "the data set has 8"),
        (["--strategy", "single"], "--batch-size is missing"),
        (["--strategy", "single", "--batch-size", "2,4"], "one batch size"),
        (["--strategy", "dp", "--batch-size", "2", "--devices", "2,4", "--device", "cpu"], "one device count"),
        (["--cell", "ddp-d2-b4"], "run does not exist; name a folder"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: list[str], expected: str) -> None:
    with pytest.raises(DpscopeError, match=expected):
        job_from_arguments([*arguments, "--out", str(tmp_path / "run")], ALONE)
    assert list(tmp_path.iterdir()) == []


def test_settings_without_measurements_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('strategy = "single"\nbatch-size = 2\ndevice = "cpu"\n')
    arguments = ["--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    for momentum in ("0.5", "0.6"):
        job = job_from_arguments([*arguments, "--momentum", momentum], ALONE)
        assert RunFolder(tmp_path / "run").manifest().config.optimizer.momentum == float(momentum)
    write_json(job.folder.result_path, {})
    assert job_from_arguments([*arguments, "--momentum", "0.6"], ALONE).repeat == job.repeat + 1
    with pytest.raises(DpscopeError, match=r"measured with momentum = 0\.6, not 0\.7"):
        job_from_arguments([*arguments, "--momentum", "0.7"], ALONE)


def test_a_cell_added_to_a_run_of_two_precisions_has_the_runs_default(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    flags: dict[str, object] = {"device": "cpu", "strategy": "single", "devices": "1", "batch_size": "2"}
    flags["amp"] = "off,bf16"
    described = plan_run(load_config(None, flags), run.path)
    run.path.mkdir()
    begun = new_manifest(described.config, described.device_type, described.threads_per_process, described.plan)
    write_json(run.manifest_path, begun)
    first, other = (job.cell for job in described.jobs if job.repeat == 0)
    assert (first.options.amp, other.options.amp) == (None, "bf16")
    run.repeat(first, 0).path.mkdir(parents=True)
    write_json(run.repeat(first, 0).result_path, {})

    arguments = ["--device", "cpu", "--strategy", "single", "--out", str(run.path)]
    for more in ([], ["--amp", "off"]):
        job = job_from_arguments([*arguments, "--batch-size", "4", *more], ALONE)
        assert (job.cell.name, job.config.workload.amp, job.cell.options.amp) == ("single-d1-b4", "off", None)
    manifest = run.manifest()
    assert [one.cell for one in manifest.plan] == [first, other, job.cell]
    assert (manifest.config.workload.amp, manifest.config.matrix.amp_variants) == ("off", ("bf16",))
    by_name = job_from_arguments(["--cell", other.name, "--out", str(run.path)], ALONE)
    assert cell_workload(by_name.config.workload, by_name.cell).amp == "bf16"
    with pytest.raises(DpscopeError, match="was measured with amp = off, not bf16: its cells could not be compared"):
        job_from_arguments([*arguments, "--batch-size", "4", "--amp", "bf16"], ALONE)
    assert run.manifest() == manifest


@contextmanager
def claimed_by_another(folder: Path) -> Iterator[None]:
    """Hold the folder open and locked, as another job does."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_job_that_is_running_keeps_its_manifest(tmp_path: Path) -> None:
    """While another job claims the first one's folder, its settings stay; afterwards they are replaced."""
    arguments = [*TINY, "--strategy", "single", "--out", str(tmp_path / "run")]
    sys.path.append(str(USER_MODELS))
    try:
        first = job_from_arguments([*arguments, "--momentum", "0.5"], ALONE)
        expected = r"another job is measuring there with momentum = 0\.5, not 0\.6"
        with claimed_by_another(first.folder.path), pytest.raises(DpscopeError, match=expected):
            job_from_arguments([*arguments, "--momentum", "0.6"], ALONE)
        assert job_from_arguments([*arguments, "--momentum", "0.6"], ALONE).config.optimizer.momentum == 0.6
    finally:
        sys.path.remove(str(USER_MODELS))
