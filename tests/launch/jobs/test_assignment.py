"""What torchrun starts for an assignment."""

from pathlib import Path

from dpscope.launch.jobs.assignment import Assignment, read_assignment

ASSIGNMENT = Assignment(task="measure", out="runs/mine", cell="ddp-d2-b32", repeat=1)


def test_processes_on_the_cpu_are_forks_of_torchruns() -> None:
    *options, worker, argument = ASSIGNMENT.program("cpu")
    assert options == ["--start-method=fork", "--run-path"]
    assert Path(worker).is_absolute()
    assert "One process of a job" in Path(worker).read_text()
    assert read_assignment([argument]) == ASSIGNMENT


def test_processes_on_gpus_are_started_one_by_one() -> None:
    *module, argument = ASSIGNMENT.program("cuda")
    assert module == ["-m", "dpscope.launch.worker"]
    assert read_assignment([argument]) == ASSIGNMENT
