"""What stays on a terminal, and in a log, of jobs that ran."""

import io

from rich.console import Console

from dpscope.launch.jobs.progress import SweepProgress


def left_by(terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, no_color=True)
    with SweepProgress(console, 3) as progress:
        for number, (status, message) in enumerate((("ok", ""), ("crashed", "rank 1 exited with 1"), ("ok", "")), 1):
            progress.start(number, f"cell{number} repeat 0", None)
            progress.finish(status, 61.0, message)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_terminal_keeps_what_went_wrong_and_a_log_keeps_every_job() -> None:
    on_terminal = left_by(terminal=True)
    assert "[2/3] cell2 repeat 0: crashed in 1 min 01 s: rank 1 exited with 1" in on_terminal
    assert "ok in" not in on_terminal
    assert [line.partition(":")[2].strip() for line in left_by(terminal=False).splitlines()] == [
        "started", "ok in 1 min 01 s", "started", "crashed in 1 min 01 s: rank 1 exited with 1", "started", "ok in 1 min 01 s",
    ]  # fmt: skip
