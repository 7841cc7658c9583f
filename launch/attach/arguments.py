"""What `python -m dpscope.launch.attach` is told: where the measurement goes, its windows, and the script. Imports no torch."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, get_args

from dpscope.launch.attach.command import check_script
from dpscope.launch.jobs.out_folder import check_run_place
from dpscope.profiling.attached.settings import AttachSettings, StepsBy
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, is_run_folder

_LEAST = {"--warmup": 2, "--steps": 1, "--traced-steps": 1, "--batch-size": 1}


@dataclass(frozen=True)
class Attachment:
    """A script and how it is measured."""

    settings: AttachSettings
    command: tuple[str, ...]  # the script and its arguments, or -m, a module and its arguments
    work_folder: Path | None = None  # the working folder of the script; None: the current one


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DpscopeError(f"attach: {message}; see python -m dpscope.launch.attach --help")


def attachment(arguments: Sequence[str]) -> Attachment:
    """The attachment that the arguments ask for; raises DpscopeError for what cannot be."""
    own, command = _apart(arguments)
    given = _parser().parse_args(own)
    if given.out is None:
        raise DpscopeError("--out is missing: name the run folder before the script, such as --out runs/mine train.py")
    for flag, least in _LEAST.items():
        value = getattr(given, flag[2:].replace("-", "_"))
        if value is not None and value < least:
            raise DpscopeError(f"{flag} {value}: must be {least} or more")
    check_script(command)
    settings = AttachSettings(
        out=given.out.absolute(),
        script=shlex.join(command),
        code=Path.cwd() if command[0] == "-m" else Path(command[0]).absolute().parent,
        warmup_steps=given.warmup,
        steps=given.steps,
        traced_steps=given.traced_steps,
        steps_by=given.steps_by,
        batch_size=given.batch_size,
        stop_after=given.stop_after,
        own_folder=given.work_folder is not None,
    )
    check_out(given.out, settings)
    return Attachment(settings, command, given.work_folder)


def check_out(out: Path, settings: AttachSettings) -> None:
    """Raise DpscopeError unless what is measured of this script can go there."""
    check_run_place(out)
    if not is_run_folder(out):
        return
    stored = RunFolder(out).manifest()
    if stored.script is None:
        raise DpscopeError(
            f"--out {out}: holds a run of `dpscope run`, beside which a script's cells would not compare; name another"
        )
    if stored.script != settings.script:
        raise DpscopeError(
            f"--out {out}: holds a measurement of {stored.script}, not of {settings.script}; name another"
        )


def _apart(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """dpscope's arguments and the script's: those end where the first stands that is neither an option nor its value."""
    own: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("--", "-m"):
        flag = rest.pop(0)
        own.append(flag)
        if flag not in _SWITCHES and "=" not in flag and rest:
            own.append(rest.pop(0))
    return own, tuple(rest[1:] if rest and rest[0] == "--" else rest)


_SWITCHES = ("--stop-after", "--help", "-h")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m dpscope.launch.attach",
        usage="torchrun ... -m dpscope.launch.attach --out RUN [OPTIONS] SCRIPT|-m MODULE [ARGUMENTS]",
        description="Measure a training script as it is.",
        allow_abbrev=False,
    )
    add, default = parser.add_argument, AttachSettings(Path(), "")
    add("--out", type=Path, help="the run folder; several device counts of one script may share one")
    add("--warmup", type=int, default=default.warmup_steps, help="steps before the timed ones")
    add("--steps", type=int, default=default.steps, help="timed steps")
    add("--traced-steps", type=int, default=default.traced_steps, help="whole traced steps")
    add("--steps-by", choices=get_args(StepsBy), default=default.steps_by, help="what ends a step")
    add("--batch-size", type=int, help="samples per device and step; by default as the model is called")
    add("--work-folder", type=Path, help="the script's working folder, made if it is missing")
    add("--stop-after", action="store_true", help="end the script once it is measured")
    return parser
