"""The `dpscope` command: a table of contents. Each command is in commands/ and imports what it runs when it runs."""

import contextlib
import functools
import gc
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpscope.launch.commands import attach, learn, measure, read, reduce, share, what_if
from dpscope.launch.commands.options import DefaultsInHelp
from dpscope.profiling.store.errors import DpscopeError

app = typer.Typer(
    help="Measure what data-parallel training costs on this machine, and where the time goes.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_command = functools.partial(app.command, cls=DefaultsInHelp)

_command()(measure.run)
app.command(cls=attach.ScriptLast)(attach.attach)
_command()(read.analyze)
_command()(read.compare)
_command()(read.merge)
_command()(reduce.reduce)
_command()(measure.calibrate)
_command()(read.tensorboard)
_command()(read.estimate)
_command()(what_if.whatif)
_command()(measure.doctor)
_command()(share.bundle)
_command()(learn.train)
_command()(learn.equal)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(", ".join(f"{name} {_installed_version(name)}" for name in ("dpscope", "torch")))
        raise typer.Exit


def _installed_version(name: str) -> str:
    """A package's version, from the name of its record: importlib.metadata takes longer to load than all of this."""
    records = (path for folder in sys.path for path in sorted(Path(folder or ".").glob(f"{name}-*.dist-info")))
    if record := next(records, None):
        return record.name.removesuffix(".dist-info").removeprefix(f"{name}-")
    import importlib.metadata  # for packages that are recorded otherwise, or not at all
    import importlib.util

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(name) is None:
            return "not installed"
        return str(getattr(importlib.import_module(name), "__version__", "of unknown version"))


@app.callback(no_args_is_help=True)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="dpscope's and torch's")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: a user's mistake or what the system refuses is one line on standard error and status 2; Ctrl-C is 130."""
    _open_standard_files()
    gc.set_threshold(
        100_000
    )  # new objects before cycles are searched for: at the usual 700 an eighth of reading a trace
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is known here, not when Python ends
    except DpscopeError as error:
        sys.stderr.write(f"dpscope: {error}\n")
        sys.exit(error.exit_status)
    except BrokenPipeError:  # the reader of the output went away: `dpscope analyze RUN | head`
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        sys.stderr.write(f"dpscope: {_refused(error)}\n")
        sys.exit(2)
    finally:
        if "torch" not in sys.modules:  # its bindings call what is not freed at the end a leak, on standard error
            gc.freeze()  # what is left ends with the process: searching it for cycles takes a quarter of a short command's time


def _open_standard_files() -> None:
    """Open those that are closed (`>&-`) on nothing: the next file that is opened would get their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (until the end)


def _discard_output() -> None:
    """Let Python's end write the rest of the output nowhere."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> str:
    """What the system refuses, in one line."""
    if isinstance(error, PermissionError) and error.filename is not None:
        return _denied(error)
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"cannot write: {reason}; make room there, or choose another place"
    return f"{error.filename}: {reason}; choose another place"


def _denied(error: PermissionError) -> str:
    """What may not be done: reading where the file is there and closed to this user, else writing."""
    path = error.filename
    closed = os.path.lexists(path) and not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0))
    if closed:
        return f"cannot read {path}: {error.strerror}; change its permissions, or name another"
    return f"cannot write {path}: {error.strerror}; choose another folder"


if __name__ == "__main__":
    main()
