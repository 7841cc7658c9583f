"""What a repeat's folder loses when an attempt begins."""

from pathlib import Path

from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.folders import RunFolder


def test_an_attempt_keeps_the_folders_of_the_job_that_runs(tmp_path: Path) -> None:
    """torchrun on another node has made the folder of its logs, and opens them next."""
    repeat = RunFolder(tmp_path).repeat(Cell("ddp", 2, 2, nodes=2), 0)
    logs = repeat.of_node(1).torchrun_path / "none_abc" / "attempt_0" / "0"
    logs.mkdir(parents=True)
    measured = [repeat.result_path, repeat.path / "traces" / "0_0.pt.trace.json.gz"]
    for path in measured:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    repeat.clear_attempt()
    assert logs.is_dir()
    assert not any(path.exists() for path in measured)
    repeat.clear()
    assert list(tmp_path.rglob("*")) == [repeat.path.parent.parent, repeat.path.parent, repeat.path]
