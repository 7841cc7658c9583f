"""`dpscope attach`: an unchanged training script measured."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpscope.launch.attach.arguments import WINDOWS
from dpscope.launch.commands import options
from dpscope.launch.commands.command import Command, Help, Request, argument, open_console, option
from dpscope.launch.commands.help_text import default_texts
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.shown_text import complain

if TYPE_CHECKING:
    from dpscope.launch.jobs.devices import Devices

HELP = Help(
    examples=(
        "--devices single,2 --out runs/mine -- train.py --its --arguments",
        "--devices 2 --warmup 20 --steps 100 --out runs/mine -- -m package.train",
    )
)

IDLE = (options.ONE_DETAIL,)


class ScriptLast(Command):
    """A command whose options end where the script begins, or -m and a module: as with Python and
    torchrun.
    """

    takes_empty = True
    orders_gpus = False  # the script's order, as without dpscope

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; raises DpscopeError for an option of the command's own behind the script,
        where -- is missing.
        """
        ctx.allow_interspersed_args = False
        names: set[str] = set()
        for parameter in self.params:
            names.update(parameter.opts, parameter.secondary_opts)
        marks = [at for at, word in enumerate(args) if word in ("--", "-m")]
        begins = min(marks, default=len(args))
        if "--help-all" in args[:begins]:
            return super().parse_args(ctx, ["--help"])
        if args[begins : begins + 1] == ["-m"]:
            args = [*args[:begins], "--", *args[begins:]]
        before, _, _ = self.make_parser(ctx).parse_args(list(args[:begins]))
        script = before.get("script")  # it stands before any --
        if script:
            late = [word for word in script if word.partition("=")[0] in names]
            if late:
                value = "" if "=" in late[0] else " ..."
                raise DpscopeError(
                    f"{late[0]} stands after {script[0]}: put dpscope's options before the script, and -- between them, "
                    f"as in dpscope attach {late[0]}{value} -- {script[0]}; what follows -- is the script's"
                )
            # -- stands after the script in place of before it
            args = args[:begins] + args[begins + 1 :]
        return super().parse_args(ctx, args)


COMMAND = ScriptLast


@dataclass(frozen=True, kw_only=True)
class AttachRequest(Request):
    settings = WINDOWS

    script: list[str] = argument(
        "the script, or -m and a module", metavar="-- SCRIPT [ARGUMENT ...]"
    )
    devices: str | None = option(
        "device counts, such as single,2,4; a torchrun job for each, and for single one process without torchrun"
    )
    out: Path = option(
        "the run folder; cells of the same script are added there", default=options.DEFAULT_OUT
    )
    repeats: int = option("measurements of each device count", default=1)
    work_folders: Path | None = option(
        "where each job gets an empty working folder; for scripts that write checkpoints or logs"
    )
    stop_after: bool = option("end the script once it is measured", "--stop-after", default=False)
    record_collectives: bool = option(
        "record every collective until the script ends, for dpscope analyze RUN/collectives/JOB",
        "--record-collectives",
        default=False,
    )
    nccl_log: options.NcclLogs = None
    verbose: options.Verbose = False
    quiet: options.Quiet = False


def attach(request: AttachRequest) -> None:
    detail = options.detail(request.verbose, request.quiet)
    from dpscope.launch.attach import jobs as attach_jobs
    from dpscope.launch.attach.arguments import attachment
    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.jobs.out_folder import locked
    from dpscope.profiling.store.folders import is_run_folder

    # as the processes of the script get them
    given = [f"--{option.replace('_', '-')}={value}" for option, value in request.flags.items()]
    if request.stop_after:
        given.append("--stop-after")
    if request.record_collectives:
        given.append("--record-collectives")
    out, script, repeats = request.out, request.script, request.repeats
    # a mistake is reported before anything is started
    attachment(["--out", str(out), *given, "--", *script])
    if repeats < 1:
        raise DpscopeError(f"--repeats {repeats}: must be 1 or more")
    devices = resolve_devices("auto")
    counts = _counts(request, devices)
    console = open_console()
    note = partial(console.print, markup=False, soft_wrap=True)
    # its processes remove what earlier jobs left there
    with locked(out, wait=False, note=note):
        planned = partial(
            attach_jobs.plan_jobs,
            repeats=repeats,
            out=out,
            options=given,
            script=script,
            devices=devices,
            work_folders=request.work_folders,
        )
        ends = attach_jobs.run_with_baseline(counts, planned, out, note)
        attach_jobs.record_jobs(out, ends)
        # the baseline that nobody requested may be missing
        failed = [end for end in ends if end.has_failed and end.job.devices in counts]
        status = max((end.status or 1 for end in failed), default=0)
        if not is_run_folder(out):
            reason = "nothing was measured: see the script's output above"
            if ends[-1].last_note:
                reason = ends[-1].last_note
            complain(f"{out}: {reason}")
            raise typer.Exit(status)
        from dpscope.analysis.output.run_screen import Targets, show_run

        sound = show_run(out, Targets(nccl_logs=tuple(request.nccl_log or ())), console, detail)
    raise typer.Exit(status or int(not sound))


def _counts(request: AttachRequest, devices: "Devices") -> tuple[int | None, ...]:
    """The device counts, which this machine has; None: one device without torchrun."""
    from dpscope.launch.attach.jobs import check_counts, default_counts
    from dpscope.launch.planning.run_config import read_text

    counts: tuple[int | None, ...] = default_counts(devices)
    if request.devices is not None:
        parsed = read_text(request.devices, parse_jobs, "--devices", "single,2,4")
        assert isinstance(parsed, tuple)
        counts = parsed
    check_counts([1 if count is None else count for count in counts], devices)
    return counts


def defaults() -> dict[str, str]:
    chosen = default_texts({window.option: window.default for window in WINDOWS.values()})
    return chosen | {"--devices": options.DEFAULT_DEVICES}


def parse_jobs(text: str) -> tuple[int | None, ...]:
    """Device counts from ``single,1,2``; None for a script without torchrun. Raises ValueError."""
    from dpscope.launch.attach.jobs import SINGLE
    from dpscope.profiling.records.matrix import parse_devices

    parts = [part.strip() for part in text.split(",")]
    counts = [part for part in parts if part != SINGLE]
    several = parse_devices(",".join(counts)) if counts else ()
    # first, as the baseline of the others
    return (None, *several) if SINGLE in parts else tuple(several)
