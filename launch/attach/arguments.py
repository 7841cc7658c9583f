"""The arguments of `python -m dpscope.launch.attach`: run folder, windows and script, all checked.
Imports no torch.
"""

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from dpscope.launch.jobs.out_folder import check_run_place
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.records.redaction import command_without_secrets
from dpscope.profiling.records.settings import Setting, SettingError, check_settings, declarations
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, is_run_folder

WINDOWS = {name: setting for name, setting in declarations(AttachSettings).items() if setting.help}
"""The settings that have options, of `dpscope attach` too."""


@dataclass(frozen=True)
class Attachment:
    """A script and how it is measured."""

    settings: AttachSettings
    command: tuple[str, ...]  # the script and its arguments, or -m, a module and its arguments
    work_folder: Path | None = None  # of the script; None: the current one


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DpscopeError(f"attach: {message}; see python -m dpscope.launch.attach --help")


def attachment(arguments: Sequence[str]) -> Attachment:
    """The attachment for these arguments; raises DpscopeError for invalid ones."""
    given = vars(_parser().parse_args(arguments))
    out = given.pop("out")
    work_folder = given.pop("work_folder")
    module = given.pop("module")
    script = given.pop("script")
    command = ("-m", *module) if module is not None else tuple(script[script[:1] == ["--"] :])
    if out is None:
        raise DpscopeError(
            "--out is missing: name the run folder before the script, such as --out runs/mine train.py"
        )
    check_script(command)
    text = command_without_secrets(shlex.join(command))
    code = Path.cwd() if command[0] == "-m" else Path(command[0]).absolute().parent
    settings = AttachSettings(out.absolute(), text, code, **given)
    try:
        check_settings(settings)
    except SettingError as error:
        raise DpscopeError(error.message(lambda name: _flag(WINDOWS[name]))) from error
    check_run_place(out)
    if is_run_folder(out) and (stored := RunFolder(out).manifest().script) != text:
        held = "a run of `dpscope run`" if stored is None else f"a measurement of {stored}"
        raise DpscopeError(f"--out {out}: holds {held}, not of {text}; name another folder")
    return Attachment(settings, command, work_folder)


def _flag(setting: Setting) -> str:
    return f"--{setting.option.replace('_', '-')}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m dpscope.launch.attach",
        usage="torchrun ... -m dpscope.launch.attach --out RUN [OPTIONS] SCRIPT|-m MODULE [ARGUMENTS]",
        description="Measure an unchanged training script.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--out", type=Path, help="the run folder; several device counts of one script may share one"
    )
    for name, setting in WINDOWS.items():
        add(
            _flag(setting),
            dest=name,
            type=str if setting.choices else setting.kind,
            choices=setting.choices or None,
            default=setting.default,
            help=setting.help,
        )
    add("--work-folder", type=Path, help="the script's working folder, created if missing")
    add("--stop-after", action="store_true", help="end the script after the measurement")
    add(
        "--record-collectives",
        action="store_true",
        help="record every collective until the script ends",
    )
    add("-m", dest="module", nargs=argparse.REMAINDER, help="a module and its arguments")
    add("script", nargs=argparse.REMAINDER, help="the script and its arguments")
    return parser


def check_script(command: Sequence[str]) -> None:
    """Raise DpscopeError unless the command begins with an existing Python script, or with -m and
    an existing module; nothing is imported.
    """
    is_module = command[0] == "-m" if command else False
    named = tuple(command[: 1 + is_module])
    is_found = _is_module(*named[1:]) if is_module else _is_script(Path(*named))
    if not is_found:
        raise DpscopeError(
            f"{shlex.join(named) or 'no script'}: not a Python script here, nor -m and a module; name the script that trains "
            "first, without python, torchrun or a shell: dpscope attach --out runs/mine -- train.py"
        )


def _is_script(path: Path) -> bool:
    """By its suffix, or by its first line."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        first = file.readline(200)
    return path.suffix == ".py" or (first.startswith(b"#!") and b"python" in first)


def _is_module(name: str = "") -> bool:
    """Whether the module, or the package that it is in, can be found."""
    package = name.partition(".")[0]
    if not package.isidentifier() or name.startswith("torch.distributed."):  # starts other scripts
        return False
    here = PathFinder.find_spec(package, [os.getcwd()])
    return here is not None or find_spec(package) is not None
