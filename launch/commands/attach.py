"""`dpscope attach`: an unchanged training script measured."""

from pathlib import Path
from typing import Annotated

import typer

from dpscope.launch.commands import options
from dpscope.profiling.attached.settings import AttachSettings

_DEFAULT = AttachSettings(Path(), "")


def attach(
    script: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGUMENT]", help="the script, or -m and a module")],
    devices: Annotated[str | None, typer.Option(help="device counts, such as 1,2,4; a torchrun job for each")] = None,
    out: Annotated[
        Path, typer.Option(help="the run folder; cells of the same script are added there")
    ] = options.DEFAULT_OUT,
    warmup: Annotated[int, typer.Option(help="steps before the timed ones")] = _DEFAULT.warmup_steps,
    steps: Annotated[int, typer.Option(help="timed steps")] = _DEFAULT.steps,
    traced_steps: Annotated[int, typer.Option(help="whole traced steps")] = _DEFAULT.traced_steps,
    steps_by: Annotated[str, typer.Option(help="what ends a step: optimizer, forward or call")] = _DEFAULT.steps_by,
    batch_size: Annotated[
        int | None, typer.Option(help="samples per device and step; as the model is called if not given")
    ] = None,
    repeats: Annotated[int, typer.Option(help="times that each device count is measured")] = 1,
    stop_after: Annotated[bool, typer.Option("--stop-after", help="end the script once it is measured")] = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a training script as it is, on one or more device counts."""
    detail = options.detail(verbose, quiet)
    from rich.console import Console

    from dpscope.launch.attach.arguments import attachment
    from dpscope.launch.attach.jobs import attach_command, check_counts, default_counts, run_jobs
    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.planning.run_config import parse_devices, read_text
    from dpscope.profiling.store.errors import DpscopeError
    from dpscope.profiling.store.folders import is_run_folder

    given = [
        "--warmup",
        str(warmup),
        "--steps",
        str(steps),
        "--traced-steps",
        str(traced_steps),
        "--steps-by",
        steps_by,
    ]
    given += [] if batch_size is None else ["--batch-size", str(batch_size)]
    given += ["--stop-after"] if stop_after else []
    attachment(["--out", str(out), *given, *script])  # a mistake is told before anything is started
    if repeats < 1:
        raise DpscopeError(f"--repeats {repeats}: must be 1 or more")
    found = resolve_devices("auto")
    counts = default_counts(found)
    if devices is not None:
        parsed = read_text(devices, parse_devices, "--devices", "1,2,4")
        assert isinstance(parsed, tuple)
        counts = parsed
    check_counts(counts, found)
    console = Console()
    status = run_jobs([attach_command(count, out, given, script) for _ in range(repeats) for count in counts])
    if not is_run_folder(out):
        raise typer.Exit(status or 1)  # why nothing was measured, each job has said
    from dpscope.analysis.output.analyze import Targets, show_run

    sound = show_run(out, Targets(), console, detail)
    raise typer.Exit(status or int(not sound))
