"""`dpscope attach`: an unchanged training script measured."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpscope.launch.commands import options
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.store.errors import DpscopeError

_DEFAULT = AttachSettings(Path(), "")


class ScriptLast(options.DefaultsInHelp):
    """A command whose own options end where the script begins, or -m and a module: as with Python and torchrun."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; raises DpscopeError for an option of the command's own behind the script, where -- is missing."""
        ctx.allow_interspersed_args = False
        own = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        begins = next((at for at, one in enumerate(args) if one in ("--", "-m")), len(args))
        if args[begins : begins + 1] == ["-m"]:
            args = [*args[:begins], "--", *args[begins:]]
        before, _, _ = self.make_parser(ctx).parse_args(list(args[:begins]))
        if script := before.get("script"):  # it stands before any --
            if late := next((one for one in script if one.partition("=")[0] in own), None):
                raise DpscopeError(
                    f"{late} stands after {script[0]}: put dpscope's options before the script, and -- between them, as in "
                    f"dpscope attach {late if '=' in late else f'{late} ...'} -- {script[0]}; what follows -- is the script's"
                )
            args = [
                one for at, one in enumerate(args) if at != begins
            ]  # -- stands after the script in place of before it
        return super().parse_args(ctx, args)


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
    from dpscope.launch.attach.jobs import (
        attach_command,
        check_counts,
        default_counts,
        job_environment,
        repeats_there,
        run_jobs,
    )
    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.jobs.out_folder import locked
    from dpscope.launch.planning.run_config import parse_devices, read_text
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
    attachment(["--out", str(out), *given, "--", *script])  # a mistake is told before anything is started
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
    commands = [attach_command(count, out, given, script) for _ in range(repeats) for count in counts]
    with locked(out, wait=False, note=lambda text: console.print(text, markup=False, soft_wrap=True)):
        before = repeats_there(out)
        status = run_jobs(commands, job_environment(counts)) or int(repeats_there(out) < before + len(commands))
        if not is_run_folder(out):
            raise typer.Exit(status or 1)  # why nothing was measured, each job has said
        from dpscope.analysis.output.analyze import Targets, show_run

        sound = show_run(out, Targets(), console, detail)
    raise typer.Exit(status or int(not sound))
