"""The job of a worker started by hand, the repeat that all its ranks measure, and when it may join
a run.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.job_outcome import JOB_NAME, remove_job_files
from dpscope.launch.jobs.worker_process import TorchrunPlace, torchrun_place
from dpscope.launch.measuring import worker_arguments
from dpscope.launch.measuring.cell import _wait_for_all_files
from dpscope.launch.measuring.run import plan_run
from dpscope.launch.measuring.worker_arguments import WorkerJob, chosen_repeat, job_from_arguments
from dpscope.launch.planning import cells as plan
from dpscope.launch.planning.manifest import new_manifest
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import Cell, CellResult, CellStatus, cell_workload
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.run_cells import rank_result

DDP = Cell(strategy="ddp", devices=2, batch_size=8)


def places(world: int, local: int | None = None) -> list[TorchrunPlace]:
    """The places of a job's processes, `local` on each host (default: all)."""
    local = local or world
    return [
        TorchrunPlace(rank, rank % local, world, local, node=rank // local) for rank in range(world)
    ]


ALONE, (RANK_0, RANK_1) = places(1)[0], places(2)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def job_in(run: RunFolder, arguments: str, place: TorchrunPlace = ALONE) -> WorkerJob:
    return job_from_arguments([*arguments.split(), "--out", str(run.path)], place)


def by_hand(
    run: RunFolder, strategy: str, more: str = "", place: TorchrunPlace = ALONE
) -> WorkerJob:
    return job_in(run, f"--strategy {strategy} --batch-size 2 --device cpu {more}", place)


def refused(run: RunFolder, expected: str, arguments: str, place: TorchrunPlace = ALONE) -> None:
    with pytest.raises(DpscopeError, match=expected):
        job_in(run, arguments, place)


def refused_by_hand(
    run: RunFolder, expected: str, strategy: str, more: str = "", place: TorchrunPlace = ALONE
) -> None:
    refused(run, expected, f"--strategy {strategy} --batch-size 2 --device cpu {more}", place)


def store_result(job: WorkerJob, status: CellStatus = "ok") -> None:
    write_json(job.folder.result_path, CellResult(job.cell, job.repeat, status, duration_s=1.0))


def with_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    for module in (worker_arguments, plan):
        monkeypatch.setattr(module, "usable_cores", lambda: cores)


def with_four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 4 GPUs, none of which torch or NVML lists."""
    monkeypatch.setattr(
        worker_arguments, "resolve_devices", lambda requested: Devices(kind="cuda", count=4)
    )


def test_a_place_is_torchruns() -> None:
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    )
    place = torchrun_place(dict(zip(names, "314212", strict=True)))
    assert place == TorchrunPlace(
        rank=3, local_rank=1, world_size=4, local_world_size=2, node=1, nodes=2
    )
    with pytest.raises(
        DpscopeError, match=r"under torchrun; start it with python -m dpscope.launch.torchrun"
    ):
        torchrun_place({})


def test_ddp_over_two_gpu_nodes_counts_each_nodes_gpus(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_four_gpus(monkeypatch)
    jobs = [job_in(run, "--strategy ddp --batch-size 32", place) for place in places(8, 4)]
    assert {(job.cell.name, job.config.matrix.devices) for job in jobs} == {("ddp-d8-b32", (8,))}
    assert len({(job.folder.path, job.threads, job.kind) for job in jobs}) == 1
    manifest = run.manifest()
    assert [planned.cell.name for planned in manifest.plan] == ["ddp-d8-b32"]
    assert manifest.config.matrix.devices == (8,)


def test_one_node_of_four_gpus_and_two_of_two_are_other_cells(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_four_gpus(monkeypatch)
    two_by_two = TorchrunPlace(0, 0, world_size=4, local_world_size=2, node=0, nodes=2)
    one, two = (
        job_in(run, "--strategy ddp --batch-size 32", place) for place in (places(4)[0], two_by_two)
    )
    assert (one.cell.name, two.cell.name) == ("ddp-d4-b32", "ddp-d4-n2-b32")
    assert (one.repeat, two.repeat) == (0, 0)  # no repeats of one another
    refused(
        run,
        r"ddp-d4-b32 is a cell of 1 node and torchrun started 2",
        "--cell ddp-d4-b32",
        two_by_two,
    )


def test_unfit_places_are_refused(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """More processes than a node has GPUs, and a folder that rank 0 does not share."""
    monkeypatch.setattr(worker_arguments, "WAIT_FOR_RANK_0_S", 0.1)
    expected = r"rank 0 has added no ddp-d2-b2 there in 0\.1 s; name one folder that all"
    refused_by_hand(run, expected, "ddp", place=places(2, 1)[1])
    with_four_gpus(monkeypatch)
    refused(
        run,
        r"--nproc-per-node 5: this machine has 4 GPUs",
        "--strategy ddp --batch-size 32",
        places(10, 5)[0],
    )
    # one process
    refused(
        run, r"--devices 8: this machine has 4 GPUs", "--strategy dp --devices 8 --batch-size 32"
    )
    assert not run.path.exists()


def test_files_that_another_node_saved_elsewhere_are_named(tmp_path: Path) -> None:
    folder = RepeatFolder(tmp_path)
    write_json(folder.rank_path(0, 0), rank_result(0, 3))
    with pytest.raises(
        DpscopeError, match=r"lacks the files of rank 1, 2, which were saved: .* not a folder that"
    ):
        _wait_for_all_files(folder, world_size=3, timeout_s=0.1)
    write_json(folder.rank_path(0, 1), rank_result(1, 3))
    write_json(folder.rank_path(1, 2), rank_result(2, 3))
    _wait_for_all_files(folder, world_size=3, timeout_s=0.1)


def test_threads_that_do_not_fit_are_refused(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 cores and 4 threads per process at the run's start: 4 processes would have 16 threads."""
    with_cores(monkeypatch, 8)
    assert by_hand(run, "single").threads == by_hand(run, "ddp", place=RANK_0).threads == 4
    four = places(4)[0]
    expected = "begun with 4 threads a process: ddp-d4-b2 would compute with 4 x 4 threads on the 8 cores of this host; "
    refused_by_hand(
        run, expected + "give every cell --threads 2, in a new --out", "ddp", place=four
    )
    refused_by_hand(run, "dp-host-d4-b2 would compute with 4 x 4 threads", "dp", "--devices 4")
    assert [planned.cell.name for planned in run.manifest().plan] == ["single-d1-b2", "ddp-d2-b2"]
    # Nothing is measured yet: the run may start again with a number of threads that fits.
    assert by_hand(run, "ddp", "--threads 2", four).threads == by_hand(run, "single").threads == 2


def test_threads_are_equal_in_all_cells(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cores(monkeypatch, 8)
    refused_by_hand(run, "--threads 0: must be 1 or more", "single", "--threads 0")
    refused_by_hand(
        run, "--threads 9: single-d1-b2 would compute with 1 x 9", "single", "--threads 9"
    )
    first = by_hand(run, "single", "--threads 8")
    store_result(first)
    expected = "was measured with threads = 8, not 2: its cells could not be compared"
    refused_by_hand(run, expected, "ddp", "--threads 2", places(4)[0])
    assert first.threads == job_in(run, "--cell single-d1-b2").threads == 8
    refused(
        run,
        "takes its settings from the run's manifest: omit --threads",
        "--cell single-d1-b2 --threads 8",
    )
    with_cores(monkeypatch, 4)
    expected = "begun with 8 threads a process: single-d1-b2 would compute with 1 x 8"
    refused(run, expected, "--cell single-d1-b2")


def test_another_machine_or_environment_is_refused(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    store_result(by_hand(run, "single"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it for several processes
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    assert by_hand(run, "single").repeat == 1
    # as dpscope.launch.torchrun sets it for one host
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert by_hand(run, "single").repeat == 1
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    expected = (
        "was measured with GLOO_SOCKET_IFNAME = unset, not eth1: its cells could not be compared"
    )
    refused_by_hand(run, expected, "single")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    manifest = run.manifest()
    environment = msgspec.structs.replace(manifest.environment, cpu_name="another")
    write_json(run.manifest_path, msgspec.structs.replace(manifest, environment=environment))
    refused_by_hand(run, "was measured with processor = another, not ", "single")


def test_more_processes_than_cores_have_a_finding(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, 2)
    assert by_hand(run, "single").threads == 1
    assert run.manifest().findings == ()
    assert by_hand(run, "ddp", place=places(4)[0]).threads == 1
    (finding,) = run.manifest().findings
    assert (finding.code, finding.message[:30]) == (
        "cpu_oversubscribed",
        "4 processes share 2 cores: the",
    )


def test_on_gpus_the_first_cell_leaves_threads_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 cores and 4 GPUs: 8 threads each, whichever cell is first, as in `dpscope run`."""
    with_cores(monkeypatch, 32)
    with_four_gpus(monkeypatch)
    started = {"single": ALONE, "dp": ALONE, "ddp": places(4)[0]}
    for first in started:
        for strategy in sorted(started, key=lambda name: name != first):
            out, arguments = RunFolder(tmp_path / first), f"--strategy {strategy} --batch-size 2"
            assert job_in(out, arguments, started[strategy]).threads == 8
    matrix = plan.resolve(load_config(None, {}), Devices(kind="cuda", count=4)).matrix
    assert plan.threads_per_process(matrix) == 8


def test_a_repeat_that_is_measured_is_not_measured_again(run: RunFolder) -> None:
    by_flags, by_name = "--strategy single --batch-size 2 --device cpu", "--cell single-d1-b2"
    first = job_in(run, by_flags)
    store_result(first)
    kept = first.folder.result_path.read_bytes()
    for arguments in (by_flags, by_name):
        expected = rf"--repeat 0: single-d1-b2 is measured already, in {first.folder.path}; omit --repeat to add"
        refused(run, expected, f"{arguments} --repeat 0")
        refused(run, "--repeat -1: must be 0 or more", f"{arguments} --repeat -1")
        assert job_in(run, f"{arguments} --repeat 3").repeat == 3
        assert job_in(run, arguments).repeat == 1
    assert first.folder.result_path.read_bytes() == kept


def test_a_repeat_that_failed_may_be_measured_again(run: RunFolder) -> None:
    failed = by_hand(run, "single").folder.path
    store_result(by_hand(run, "single"), "crashed")
    for name in (
        "log.txt",
        "traces/0_0.pt.trace.json.gz",
        "counters/0_0.json",
        "rank_0_0.json",
        "samples_0_0.parquet",
    ):
        (failed / name).parent.mkdir(exist_ok=True)
        (failed / name).write_text("left")
    by_hand(run, "single", "--repeat 0").folder.clear_attempt()
    assert [path.name for path in failed.iterdir()] == ["log.txt"]  # it may be the running job's


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--strategy all --batch-size 2", "--strategy all"),
        ("--batch-size 2", "--strategy is missing: a worker measures one"),
        ("--strategy ddp --batch-size 2 --devices 2", "--devices does nothing here: ddp has one"),
        (
            "--strategy single --batch-size 2 --devices 1",
            "--devices does nothing here: single has one",
        ),
        ("--strategy dp --devices 1 --batch-size 2 --device cpu", "--devices 1 with"),
        ("--strategy single --batch-size 2 --model resnet19 --device cpu", "no such model"),
        ("--strategy single --batch-size 2 --data cifar10 --device cpu", "--data cifar10"),
        ("--strategy single --batch-size 9 --samples 8 --device cpu", "the data set has 8"),
        ("--strategy single", "--batch-size is missing"),
        ("--strategy single --batch-size 2,4", "one batch size"),
        ("--strategy dp --batch-size 2 --devices 2,4 --device cpu", "one device count"),
        ("--cell ddp-d2-b4", "run does not exist; name a folder"),
    ],
)
def test_mistakes_are_named(run: RunFolder, arguments: str, expected: str) -> None:
    refused(run, expected, arguments)
    assert not run.path.exists()


def test_settings_without_measurements_are_replaced(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('strategy = "single"\nbatch-size = 2\ndevice = "cpu"\n')
    arguments = f"--config {tmp_path / 'run.toml'} --momentum"
    for momentum in ("0.5", "0.6"):
        job = job_in(run, f"{arguments} {momentum}")
        assert run.manifest().config.optimizer.momentum == float(momentum)
    store_result(job)
    assert job_in(run, f"{arguments} 0.6").repeat == job.repeat + 1
    refused(run, r"measured with momentum = 0\.6, not 0\.7", f"{arguments} 0.7")


def test_a_cell_added_to_a_run_of_two_precisions_has_the_runs_default(run: RunFolder) -> None:
    flags = {
        "device": "cpu",
        "strategy": "single",
        "devices": "1",
        "batch_size": "2",
        "amp": "off,bf16",
    }
    described = plan_run(load_config(None, {**flags}), run.path)
    run.path.mkdir()
    begun = new_manifest(described.config, described.device_type, described.threads, described.plan)
    write_json(run.manifest_path, begun)
    first, other = (job.cell for job in described.jobs if job.repeat == 0)
    assert (first.options.amp, other.options.amp) == (None, "bf16")
    run.repeat(first, 0).path.mkdir(parents=True)
    write_json(run.repeat(first, 0).result_path, {})

    arguments = "--device cpu --strategy single --batch-size 4"
    for more in ("", " --amp off"):
        job = job_in(run, arguments + more)
        assert (job.cell.name, job.config.workload.amp, job.cell.options.amp) == (
            "single-d1-b4",
            "off",
            None,
        )
    manifest = run.manifest()
    assert [one.cell for one in manifest.plan] == [first, other, job.cell]
    assert (manifest.config.workload.amp, manifest.config.matrix.amp_variants) == ("off", ("bf16",))
    by_name = job_in(run, f"--cell {other.name}")
    assert cell_workload(by_name.config.workload, by_name.cell).amp == "bf16"
    expected = "was measured with amp = off, not bf16: its cells could not be compared"
    refused(run, expected, f"{arguments} --amp bf16")
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


def test_a_job_that_is_running_keeps_its_manifest(run: RunFolder) -> None:
    """While another job claims the first one's folder, its settings stay; afterwards they are
    replaced.
    """
    first = by_hand(run, "single", "--momentum 0.5")
    with claimed_by_another(first.folder.path):
        expected = r"another job is measuring there with momentum = 0\.5, not 0\.6"
        refused_by_hand(run, expected, "single", "--momentum 0.6")
    assert by_hand(run, "single", "--momentum 0.6").config.optimizer.momentum == 0.6


@pytest.fixture
def started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(
        worker_arguments._JOB_VARIABLES, ("none", "0", "node0", "29500"), strict=True
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker_arguments, "POLL_S", 0.01)


def measured(run: RunFolder, repeat: int) -> None:
    folder = run.repeat(DDP, repeat)
    folder.path.mkdir(parents=True)
    write_json(folder.result_path, CellResult(DDP, repeat, status="ok", duration_s=1.0))


@pytest.mark.usefixtures("started_by_torchrun")
def test_a_rank_that_is_first_waits_for_rank_0s_choice(run: RunFolder) -> None:
    """Repeat 0 gets its result while rank 1 waits, as on a slow file system: rank 1 alone would
    have taken repeat 0.
    """
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(chosen_repeat(run, DDP, None, RANK_1)))
    waiting.start()
    measured(run, 0)
    assert found == []
    assert chosen_repeat(run, DDP, None, RANK_0) == 1
    waiting.join(timeout=10)
    assert found == [1]
    folder = run.repeat(DDP, 1).path
    assert (folder / JOB_NAME).exists()
    remove_job_files(folder)  # a finished job leaves no choice
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("started_by_torchrun")
@pytest.mark.parametrize(
    ("name", "value"), [("MASTER_PORT", "29501"), ("TORCHELASTIC_RESTART_COUNT", "1")]
)
def test_another_jobs_choice_is_not_taken(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A killed job left its choice behind; a restarted attempt counts as another job too."""
    assert chosen_repeat(run, DDP, None, RANK_0) == 0
    monkeypatch.setattr(worker_arguments, "WAIT_FOR_RANK_0_S", 0.05)
    monkeypatch.setenv(name, value)
    with pytest.raises(
        DpscopeError, match=r"rank 0 has chosen no repeat of ddp-d2-b8 there in 0.05 s"
    ):
        chosen_repeat(run, DDP, None, RANK_1)
    assert [chosen_repeat(run, DDP, None, place) for place in (RANK_0, RANK_1)] == [0, 0]


@pytest.mark.usefixtures("started_by_torchrun")
def test_a_named_repeat_needs_no_waiting(run: RunFolder) -> None:
    assert [chosen_repeat(run, DDP, 3, place) for place in (RANK_1, RANK_0)] == [3, 3]
    measured(run, 5)
    for place in (RANK_0, RANK_1):
        with pytest.raises(DpscopeError, match="--repeat 5: ddp-d2-b8 is measured already"):
            chosen_repeat(run, DDP, 5, place)
