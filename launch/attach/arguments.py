"""The arguments of `python -m dpscope.launch.attach`: run folder, windows and script, all checked.
Imports no torch.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NoReturn

from dpscope.launch.jobs.out_folder import check_run_place
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.records.redaction import command_without_secrets
from dpscope.profiling.records.settings import Setting, SettingError, check_settings, declarations
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, is_run_folder

WINDOWS = {name: one for name, one in declarations(AttachSettings).items() if one.help}
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
    options, command = _split(arguments)
    given = vars(_parser().parse_args(options))
    out, work_folder = given.pop("out"), given.pop("work_folder")
    if out is None:
        raise DpscopeError(
            "--out is missing: name the run folder before the script, such as --out runs/mine train.py"
        )
    script, folder = command_without_secrets(shlex.join(command)), work_folder is not None
    code = Path.cwd() if command[:1] == ("-m",) else Path(*command[:1]).absolute().parent
    settings = AttachSettings(out.absolute(), script, code, has_work_folder=folder, **given)
    try:
        check_settings(settings)
    except SettingError as error:
        raise DpscopeError(error.message(lambda name: _flag(WINDOWS[name]))) from error
    check_script(command)
    check_run_place(out)
    if is_run_folder(out) and (stored := RunFolder(out).manifest().script) != script:
        raise DpscopeError(
            f"--out {out}: holds a run of `dpscope run`, with which a script's cells cannot be compared; name another"
            if stored is None
            else f"--out {out}: holds a measurement of {stored}, not of {script}; name another"
        )
    return Attachment(settings, command, work_folder)


def _flag(one: Setting) -> str:
    return f"--{one.option.replace('_', '-')}"


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    options: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("--", "-m"):
        flag = rest.pop(0)
        options.append(flag)
        if flag not in ("--stop-after", "--help", "-h") and "=" not in flag and rest:
            options.append(rest.pop(0))
    return options, tuple(rest[1:] if rest and rest[0] == "--" else rest)


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
    for name, one in WINDOWS.items():
        kind = str if one.choices else one.kind
        add(
            _flag(one),
            dest=name,
            type=kind,
            choices=one.choices or None,
            default=one.default,
            help=one.help,
        )
    add("--work-folder", type=Path, help="the script's working folder, created if missing")
    add("--stop-after", action="store_true", help="end the script after the measurement")
    return parser


_SCRIPT_FIRST = (
    "name the script that trains, or -m and its module, first: dpscope starts Python and torchrun itself. Under your own "
    "launcher or in a shell script replace python by: python -m dpscope.launch.attach --out runs/mine"
)


def check_script(command: Sequence[str]) -> None:
    """Raise DpscopeError unless the command begins with an existing Python script, or with -m and
    an existing module.
    """
    if not command:
        raise DpscopeError(
            "no script to attach to: name one, such as dpscope attach --out runs/mine -- train.py --epochs 1"
        )
    if command[0] == "-m":
        _check_module(command)
        return
    path = Path(command[0])
    if not path.is_file():
        scripts = [one.name for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
        similar = nearest(path.name, scripts)
        meant = f"did you mean {path.parent / similar[0]}? Else " if similar else ""
        raise DpscopeError(f"{path}: no such script; {meant}{_SCRIPT_FIRST}")
    with open(path, "rb") as file:
        first = file.readline(200)
    other_program = first.startswith(b"\x7fELF") or (
        first.startswith(b"#!") and b"python" not in first
    )
    if other_program or path.suffix in (".sh", ".ipynb"):
        raise DpscopeError(f"{path}: is not a Python script; {_SCRIPT_FIRST}")


def _check_module(command: Sequence[str]) -> None:
    if len(command) < 2:
        raise DpscopeError("-m: no module to attach to; name one, such as -m package.train")
    name = command[1]
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise DpscopeError(
            f"-m {name}: takes a module's name, such as -m {module}; or give the file without -m"
        )
    if name in ("torch.distributed.run", "torch.distributed.launch"):
        raise DpscopeError(f"-m {name}: is no training; {_SCRIPT_FIRST}")
    spec = _module_spec(name)
    if spec is None:
        raise DpscopeError(
            f"-m {name}: no such module in {os.getcwd()} or on Python's path; give its full name"
        )
    if spec.submodule_search_locations is not None and _module_spec(f"{name}.__main__") is None:
        raise DpscopeError(
            f"-m {name}: is a package without a __main__; name the module in it that trains"
        )


def _module_spec(name: str) -> ModuleSpec | None:
    """Find a module in the working folder and on Python's path, without importing it."""
    parts = name.split(".")
    places: Iterable[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for count, part in enumerate(parts, start=1):
        if not part.isidentifier() or places is None:
            return None
        spec = _find_spec(".".join(parts[:count]), places)
        places = None if spec is None else spec.submodule_search_locations
    return spec


def _find_spec(name: str, path: Iterable[str]) -> ModuleSpec | None:
    """As found by any of Python's finders: packages that are installed for editing have their
    own.
    """
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return next(
        (spec for find in finders if find is not None and (spec := find(name, path)) is not None),
        None,
    )
