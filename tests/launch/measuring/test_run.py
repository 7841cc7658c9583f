"""The plan of a run: its commands, its warnings, and whether its folder can be written."""

import errno
import fcntl
import io
import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dpscope.launch.jobs import worker_process
from dpscope.launch.jobs.assignment import Assignment, read_assignment
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.job_queue import JobQueue, duration_text
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.jobs.worker_process import TorchrunPlace, torchrun_place
from dpscope.launch.measuring import run
from dpscope.launch.measuring.assigned_cell import AssignedCell, assigned_cell
from dpscope.launch.measuring.cell import _wait_for_all_files
from dpscope.launch.measuring.run import RunPlan, describe_plan, plan_run, planned_cells
from dpscope.launch.planning import manifest
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import CellResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.nvml_records import TwoGpuNvml
from tests.helpers.run_cells import rank_result

TINY: dict[str, object] = {
    "device": "cpu",
    "batch_size": "4",
    "samples": 64,
    "steps": 4,
    "repeats": 2,
}


def described(
    out: Path, width: int = 1000, **flags: object
) -> tuple[RunPlan, str, list[list[str]]]:
    """The plan of a run, what is printed of it, and the words of its commands."""
    printed, options = io.StringIO(), {**TINY, **flags}
    config, console = load_config(None, options), Console(file=printed, width=width)
    description = describe_plan(config, out, console, options=options)
    commands = [
        shlex.split(line)
        for line in printed.getvalue().splitlines()
        if "dpscope.launch.torchrun" in line
    ]
    return description, printed.getvalue(), commands


def job_of(command: list[str], out: Path) -> AssignedCell:
    """The job of a command's process, started in another run folder."""
    processes = int(command[command.index("--nnodes=1") + 1].removeprefix("--nproc-per-node="))
    place = TorchrunPlace(
        rank=0, local_rank=0, world_size=processes, local_world_size=processes, node=0
    )
    assignment = read_assignment(command[-1:])
    # torchrun opens its logs before it starts the processes
    attempt = RunFolder(out).path / "cells" / assignment.cell / "repeat0/torchrun/none/attempt_0/0"
    attempt.mkdir(parents=True, exist_ok=True)
    (attempt / "stdout.log").touch()
    return assigned_cell(msgspec.structs.replace(assignment, out=str(out)), place)


def test_a_plan_explains_combinations_that_are_one_cell(tmp_path: Path) -> None:
    variants = {"strategy": "ddp", "devices": "2", "bucket_mb": "1,25", "overlap": "on,off"}
    description, text, _ = described(tmp_path / "run", 1000, **variants)
    assert len(description.estimates) == 3
    assert "one cell for all --bucket-mb" in text


def test_the_commands_of_a_dry_run_work_in_an_empty_folder(tmp_path: Path) -> None:
    """Whichever is first, the run that it begins is the one that was planned."""
    variants = {"accumulate": "1,2", "comm_hook": "bf16", "bucket_mb": "5", "overlap": "on,off"}
    description, text, commands = described(tmp_path / "run", 1000, data="fake", lr=0.5, **variants)
    assert "one cell for all --bucket-mb" not in text
    firsts = [
        next(job for job in description.jobs if job.cell == cell) for cell in description.estimates
    ]
    firsts.sort(key=description.jobs.index)
    assert len(commands) == len(firsts) == 8
    assert not (tmp_path / "run").exists()
    for index, (job, command) in enumerate(zip(firsts, commands, strict=True)):
        by_hand = job_of(command, tmp_path / str(index % 3))
        assert (by_hand.cell, by_hand.repeat) == (job.cell, job.repeat)
        assert (by_hand.threads, by_hand.config) == (description.threads, description.config)
        assert RunFolder(tmp_path / str(index % 3)).manifest().plan == description.plan


def test_a_cell_by_hand_must_fit_the_run_that_has_begun(tmp_path: Path) -> None:
    _, _, (first, *_) = described(tmp_path / "run", strategy="single", devices="1")
    by_hand = job_of(first, tmp_path / "run")
    manifest = RunFolder(tmp_path / "run").manifest()
    _, _, (other, *_) = described(tmp_path / "other", strategy="single", devices="1", momentum=0.5)
    with pytest.raises(
        DpscopeError, match=r"holds a run with --momentum 0\.9, not --momentum 0\.5"
    ):
        job_of(other, tmp_path / "run")
    result = CellResult(by_hand.cell, 0, "ok", duration_s=1.0)
    write_json(by_hand.folder.result_path, result)
    with pytest.raises(DpscopeError, match="repeat 0 of single-d1-b4 is measured already"):
        job_of(first, tmp_path / "run")
    another = msgspec.structs.replace(manifest.environment, cpu_name="another")
    changed = msgspec.structs.replace(manifest, environment=another)
    write_json(RunFolder(tmp_path / "run").manifest_path, changed)
    with pytest.raises(DpscopeError, match="begun with processor = another, not "):
        job_of(first, tmp_path / "run")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"model": "resnet19"}, "no such model"),
        ({"data": "cifar10", "samples": None}, "--data cifar10"),
        ({"batch_size": "65"}, "the data set has 64"),
        ({"devices": "2x1"}, "one node is available, 2 are needed"),
    ],
)
def test_mistakes_by_hand_leave_no_folder(
    tmp_path: Path, flags: dict[str, object], expected: str
) -> None:
    assignment = Assignment(
        task="measure", out=str(tmp_path / "run"), cell="ddp-d2-b4", options={**TINY, **flags}
    )
    place = TorchrunPlace(rank=0, local_rank=0, world_size=2, local_world_size=2, node=0)
    with pytest.raises(DpscopeError, match=expected):
        assigned_cell(assignment, place)
    assert not (tmp_path / "run").exists()


def test_other_ranks_wait_for_the_manifest_and_for_their_own_number_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "WAIT_FOR_RANK_0_S", 0.1)
    out, options = tmp_path / "run", {**TINY, "devices": "2x1"}
    assignment = Assignment(
        task="measure", out=str(out), cell="ddp-d2-n2-b4", options=options, nodes=2
    )
    rank_0 = TorchrunPlace(0, 0, world_size=2, local_world_size=1, node=0, nodes=2)
    rank_1 = replace(rank_0, rank=1, node=1)
    with pytest.raises(DpscopeError, match=r"rank 0 has begun nothing there in 0\.1 s"):
        assigned_cell(assignment, rank_1)
    of_0, of_1 = assigned_cell(assignment, rank_0), assigned_cell(assignment, rank_1)
    assert (of_0.cell, of_0.folder.path) == (of_1.cell, of_1.folder.path)
    on_one = replace(rank_0, local_world_size=2, nodes=1)
    with pytest.raises(DpscopeError, match=r"is a cell of 2 nodes and torchrun started 1"):
        assigned_cell(assignment, on_one)


@pytest.mark.parametrize("arguments", [[], ["--out", "x"], ["{"], ['{"task":"fly","out":"x"}']])
def test_an_argument_that_is_no_job_is_refused(arguments: list[str]) -> None:
    with pytest.raises(DpscopeError, match="a worker takes one argument"):
        read_assignment(arguments)


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


def test_a_place_is_torchruns() -> None:
    names = [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    ]
    place = torchrun_place(dict(zip(names, "314212", strict=True)))
    assert place == TorchrunPlace(
        rank=3, local_rank=1, world_size=4, local_world_size=2, node=1, nodes=2
    )
    with pytest.raises(DpscopeError, match=r"start it with python -m dpscope.launch.torchrun"):
        torchrun_place({})


def test_repeats_are_interleaved_and_commands_of_jobs_that_are_done_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be refused: the repeat is measured already."""
    planned = plan_run(load_config(None, TINY), tmp_path / "run")
    cells = ["single-d1-b4", "dp-host-d2-b4", "ddp-d2-b4"]
    turns = ((0, cells), (1, cells[::-1]))
    assert [(one.cell.name, one.repeat) for one in planned.jobs] == [
        (name, at) for at, turn in turns for name in turn
    ]
    jobs = tuple(replace(job, done=job.repeat == 0) for job in planned.jobs)
    monkeypatch.setattr(run, "plan_run", lambda *_, **__: replace(planned, jobs=jobs))
    _, _, commands = described(tmp_path / "run")
    assert [read_assignment(command[-1:]).repeat for command in commands] == [1] * 3


def test_a_run_goes_on_in_the_orders_it_was_begun_with(tmp_path: Path) -> None:
    """More repeats continue the stored orders; a run of an older version, which has none, keeps its
    one order.
    """
    begun = plan_run(load_config(None, {**TINY, "repeats": 3}), tmp_path / "run")
    stored = manifest.new_manifest(begun.config, "cpu", begun.threads, begun.plan)
    path = RunFolder(tmp_path / "run").manifest_path
    more = load_config(None, {**TINY, "repeats": 5})
    write_json(path, msgspec.structs.replace(stored, orders=begun.orders))
    resumed = plan_run(more, tmp_path / "run")
    assert resumed.orders[:3] == begun.orders
    assert len(resumed.orders) == 5
    assert [job.name for job in planned_cells(tmp_path / "run")] == [job.name for job in begun.jobs]
    places = RunFolder(tmp_path / "run").manifest().places(begun.plan[0].cell)
    assert places == tuple(order.index(0) for order in begun.orders)
    write_json(path, stored)
    older = plan_run(more, tmp_path / "run")
    cells = [planned.cell.name for planned in older.plan]
    assert [job.cell.name for job in older.jobs] == cells * 5
    assert RunFolder(tmp_path / "run").manifest().places(begun.plan[0].cell) is None


def test_a_dry_run_states_the_order_of_the_cells_in_each_repeat(tmp_path: Path) -> None:
    assert "Order of the cells in each repeat: 1 2 3, 3 2 1." in described(tmp_path / "run")[1]
    assert (
        "Order of the cells" not in described(tmp_path / "run", strategy="single", devices="1")[1]
    )


def test_a_dry_run_states_what_is_measured(tmp_path: Path) -> None:
    steps = {"steps": 10, "traced_steps": 2, "warmup_steps": 6}
    first_line = described(tmp_path / "run", model="resnet8_cifar", **steps)[1].splitlines()[0]
    assert first_line == (
        f"resnet8_cifar on synthetic data, into {tmp_path / 'run'}. Each repeat: 6 warm-up, 10 timed "
        "and 2 traced steps."
    )


def test_an_estimate_beyond_the_time_limit_is_a_warning(tmp_path: Path) -> None:
    slow = plan_run(
        load_config(None, {**TINY, "model": "resnet18_cifar", "steps": 2000, "timeout": 60}),
        tmp_path / "run",
    )
    (finding,) = [one for one in slow.findings if one.code == "estimate_over_timeout"]
    assert "single-d1-b4, dp-host-d2-b4, ddp-d2-b4" in finding.message
    assert "time limit of 60 s" in finding.message
    assert "--timeout" in finding.next_step
    assert slow.duration_s > 6 * 60  # of three cells and two repeats: the limit is no estimate
    soon = plan_run(load_config(None, {**TINY, "steps": 10, "timeout": 60}), tmp_path / "run")
    assert soon.findings == ()


@pytest.mark.long
def test_a_small_model_is_estimated_to_take_little_more_than_its_starts(tmp_path: Path) -> None:
    """ResNet-18 does 178 times the multiplications of ResNet-8, and a ViT-B/16 32 times
    ResNet-18's.
    """
    took = {}
    for name in ("resnet8_cifar", "resnet18_cifar", "vit_b_16"):
        planned = plan_run(
            load_config(None, {**TINY, "model": name, "strategy": "single"}), tmp_path
        )
        (took[name],) = planned.estimates.values()
    assert 6.5 < took["resnet8_cifar"].duration_s < 8
    assert took["resnet18_cifar"].duration_s < 20
    assert took["vit_b_16"].duration_s > 40


def test_a_plan_states_the_disk_that_its_repeats_fill(tmp_path: Path) -> None:
    """10 x (10 traced steps of 110 kB and 20 kB)."""
    flags = {**TINY, "strategy": "single", "traced_steps": 9, "repeats": 10}
    assert plan_run(load_config(None, flags), tmp_path).cost.endswith(" and 11 MB of disk")


def test_a_plan_names_its_cells_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    flags = {
        "strategy": "ddp",
        "overlap": "off",
        "comm_hook": "fp16",
        "accumulate": "2",
        "calibrate": False,
    }
    printed = described(tmp_path / "run", 80, **flags)[1]
    row = next(line for line in printed.splitlines() if "-hook-fp16-accumulate-2" in line)
    assert row.split()[:3] == ["1", "ddp-d2-b4-overlap-off-hook-fp16-accumulate-2", "2"]
    assert len(row) <= 80


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.4, "59 s"),
        (61, "1 min 01 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (12_357, "3 h 26 min"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize("place", ["file", "file/sub", "/proc/absent"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    printed = io.StringIO()
    with pytest.raises(DpscopeError, match=f"--out {tmp_path / place}: cannot write in"):
        describe_plan(load_config(None, TINY), tmp_path / place, Console(file=printed))
    assert printed.getvalue() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    notes: list[str] = []
    with locked(tmp_path / "run", wait=False, note=notes.append):
        assert (tmp_path / "run" / ".lock").exists()
    assert len(notes) == 1
    assert "cannot be locked (No locks available)" in notes[0]


def test_gpus_are_compared_over_all_that_the_run_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that no cell uses has no effect."""
    nvml = TwoGpuNvml(
        Name=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"), CurrPcieLinkWidth=(16, 8)
    )
    monkeypatch.setattr(manifest, "open_nvml", lambda: nvml)
    codes = {}
    for count in (1, 2):
        config = resolve(
            load_config(None, {**TINY, "strategy": "ddp", "devices": str(count)}),
            Devices("cuda", 2),
        )
        made = manifest.new_manifest(
            config, "cuda", 1, make_plan(config.matrix, config.workload.samples, "cuda")
        )
        codes[count] = [finding.code for finding in made.findings]
    assert codes == {1: [], 2: ["mixed_devices", "mixed_devices", "no_baseline"]}


def test_a_job_done_by_hand_since_it_was_planned_is_not_run_again(tmp_path: Path) -> None:
    planned = plan_run(load_config(None, {**TINY, "strategy": "single", "devices": "1"}), tmp_path)
    for job in planned.jobs:
        write_json(job.folder.result_path, CellResult(job.cell, job.repeat, "ok", 1.0))
    assert len(planned.to_do) == 2
    assert tuple(JobQueue(planned.jobs, Console(file=io.StringIO())).work_off()) == planned.jobs


def test_a_slow_first_job_does_not_double_the_estimate(tmp_path: Path) -> None:
    """Six jobs of 10 s: after a first one of 20 s the other cells are taken for 10 s x (20 + 10) /
    (10 + 10).
    """
    planned = plan_run(load_config(None, TINY), tmp_path)
    jobs = [replace(job, estimate_s=10.0) for job in planned.jobs]
    sweep = JobQueue(jobs, Console(file=io.StringIO()))
    assert sweep.time_left_s(0) == 60.0
    sweep.took_s.append((jobs[0], 20.0))
    assert sweep.time_left_s(1) == 20.0 + 4 * 15.0


def test_an_epoch_of_warm_up_is_estimated_too(tmp_path: Path) -> None:
    """With one timed epoch two are run, with three four: by the time of the steps twice as long."""
    took = []
    flags = {**TINY, "strategy": "single", "model": "resnet18_cifar", "samples": 4000}
    del flags["steps"]
    for epochs in (1, 3, 5):
        planned = plan_run(load_config(None, {**flags, "epochs": epochs}), tmp_path)
        (cell, *_) = planned.estimates.values()
        took.append(cell.duration_s)
    two_epochs_s = took[1] - took[0]
    assert took[2] - took[1] == pytest.approx(two_epochs_s)
    assert took[0] > two_epochs_s
