"""What a killed job left in a run folder is removed by the next start, and nothing else."""

from pathlib import Path

from dpscope.profiling.attached.unfinished_jobs import HeldFolder, gathering_folder, remove_unfinished_jobs


def test_what_dead_jobs_left_is_removed_and_what_living_ones_write_stays(tmp_path: Path) -> None:
    dead, living, foreign = (gathering_folder(tmp_path, name) for name in ("dead", "living", "foreign"))
    HeldFolder(dead, 0, 0).release(keep=True)  # as the system does when its process is killed
    HeldFolder(dead, 0, 1).release(keep=True)
    dead.trace_path(0, 0).parent.mkdir()
    dead.trace_path(0, 0).write_bytes(b"half a trace")
    HeldFolder(living, 0, 0).release(keep=True)  # one of its two processes has ended
    held = HeldFolder(living, 0, 1)
    living.rank_path(0, 0).write_text("{}")
    foreign.path.mkdir()
    (foreign.path / "notes.txt").write_text("somebody's")
    other = tmp_path / "cells" / "ddp-d2-b8"
    other.mkdir()
    remove_unfinished_jobs(tmp_path)
    assert not dead.path.exists()
    assert sorted(path.name for path in living.path.iterdir()) == ["rank_0_0.json", "running_0_0", "running_0_1"]
    assert (foreign.path / "notes.txt").exists()
    assert other.exists()
    held.release(keep=True)
    remove_unfinished_jobs(tmp_path)
    assert not living.path.exists()
    remove_unfinished_jobs(tmp_path / "nowhere")


def test_a_process_that_measured_nothing_leaves_nothing(tmp_path: Path) -> None:
    folder = gathering_folder(tmp_path, "job")
    first, second = HeldFolder(folder, 0, 0), HeldFolder(folder, 0, 1)
    first.release(keep=False)
    assert folder.path.exists()
    second.release(keep=False)
    assert not folder.path.exists()
