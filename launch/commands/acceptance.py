"""`dpscope doctor --acceptance`: what it prints, and its exit status."""

from pathlib import Path
from typing import cast

import typer

from dpscope.launch.acceptance.checks import CHECKS, Part
from dpscope.launch.acceptance.run import ANSWERS_NAME, new_folder, run_acceptance
from dpscope.launch.jobs.devices import resolve_devices
from dpscope.profiling.store.errors import DpscopeError


def accept(part: int | None, out: Path) -> int:
    """Run the checks, a line for each verdict; the exit status is 1 where one failed. Without a GPU each is skipped.

    Raises DpscopeError for GPUs that are there and that torch cannot use, and for a folder that cannot be made.
    """
    gpus = resolve_devices("auto").count or 0
    try:
        folder = new_folder(out)
    except OSError as error:
        raise DpscopeError(f"--out {out}: {error.strerror}; choose another folder") from error
    told = run_acceptance(CHECKS, folder, cast(Part | None, part), gpus, typer.echo)
    counts = {status: sum(one.status == status for one in told.verdicts) for status in ("PASS", "FAIL", "SKIP")}
    typer.echo(f"{', '.join(f'{count} {status}' for status, count in counts.items())} in {told.duration_s:.0f} s")
    typer.echo(f"Answers: {folder / ANSWERS_NAME}")
    return 1 if told.failed else 0
