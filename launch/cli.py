"""The `dpscope` command: a table of contents. Each command is a module of commands/, imported when it is called."""

import codecs
import contextlib
import gc
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dpscope.profiling.store.errors import READER_GONE, DpscopeError
from dpscope.profiling.store.shown_text import complain

if TYPE_CHECKING:
    from typer.core import TyperCommand

COMMANDS = {
    "run": "Run single, DP and DDP under torchrun, trace them, compare, report.",
    "attach": "Measure a training script as it is, on one or more device counts.",
    "analyze": "Read a run folder or torch.profiler traces: communication total, hidden, exposed, waiting, transferring.",
    "compare": "Report what got faster or slower between two runs; exit status 1: slower beyond noise, 3: cannot be judged.",
    "merge": "Make one trace of all ranks for Perfetto: clocks aligned, communication, wait and transfer as tracks.",
    "reduce": "Reduce traces to one small file where they are stored, to analyze anywhere; traces already reduced are not read "
    "again.",
    "calibrate": "Time this machine's collectives by message size and fit what they cost; predictions use it.",
    "tensorboard": "Write a run's TensorBoard folder and serve it: HParams, Text, Images, Scalars (live of trainings), and the "
    "traces.",
    "estimate": "Report what published or hand-timed times can and cannot show, and predict those of other device counts.",
    "whatif": "Predict steps that were not measured from a run or traces by replaying one, with a band or a reason.",
    "doctor": "Check devices, driver, backends, peer access, shared memory, the tracer and disk space, in seconds.",
    "bundle": "Pack a run into one file of at most 16 MB for a bug report: host and user names replaced, traces reduced.",
    "train": "Train single, DP and DDP on the same batches, with the same settings; losses and accuracies per epoch.",
    "equal": "Train from one seed on the same global batches under every strategy; report whether, where and why they differ.",
}
"""Each with its help."""


class _Loaded(Mapping[str, "TyperCommand"]):
    """The commands by name, loaded when they are looked up."""

    def __getitem__(self, name: str) -> "TyperCommand":
        text = COMMANDS[name]
        from dpscope.launch.commands.command import load_command

        return load_command(name, text)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Contents(TyperGroup):
    """All commands; listing them loads none."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.commands = _Loaded()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_Contents,
    help="Measure what data-parallel training costs on this machine, and where the time goes.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(", ".join(f"{name} {_installed_version(name)}" for name in ("dpscope", "torch")))
        raise typer.Exit


def _installed_version(name: str) -> str:
    """A package's version, from the name of its record: importlib.metadata takes longer to load than all of this."""
    for folder in sys.path:
        for record in sorted(Path(folder or ".").glob(f"{name}-*.dist-info")):
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


_CLEANED_UP_S = 5.0  # after a signal


class _Stopped(BaseException):
    """A signal ends the command; as with Ctrl-C nothing may catch it, and what was begun is cleaned up."""


def main() -> None:
    """Entry point: a user's mistake or an error of the system is one line on standard error and status 2; Ctrl-C is 130.

    SIGTERM and SIGHUP, where no job takes them, are a line and status 128 + their number.
    """
    _open_standard_files()
    _take_signals()
    _print_in_any_encoding()
    if os.environ.get("COLUMNS") == "0":  # some terminals and CI systems set it where the width is unknown
        del os.environ["COLUMNS"]
    # New objects before cycles are searched for: at the usual 700 an eighth of reading a trace.
    gc.set_threshold(100_000)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is known here, not when Python ends
    except DpscopeError as error:
        complain(str(error))
        sys.exit(error.exit_status)
    except _Stopped as stopped:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        _end_at_once(stopped.args[0])
    except UnicodeEncodeError as error:  # pyarrow and the files that dpscope writes take UTF-8 alone
        _discard_output()
        before, after = error.object[: error.start].rpartition("\n")[2], error.object[error.start :].partition("\n")[0]
        name = f"{before[-60:]}{after[:60]}".encode("ascii", "backslashreplace").decode()
        complain(f"a name is not UTF-8: {name}; rename that file or folder")
        sys.exit(2)
    except BrokenPipeError:  # the reader of the output went away: `dpscope analyze RUN | head`
        _discard_output()
        sys.exit(READER_GONE)
    except OSError as error:
        _discard_output()
        complain(_refused(error))
        sys.exit(2)
    finally:
        if "torch" not in sys.modules:  # its bindings call what is not freed at the end a leak, on standard error
            gc.freeze()  # the process ends: searching the rest for cycles takes a quarter of a short command's time


def _open_standard_files() -> None:
    """Open standard files that are closed (`>&-`) on /dev/null: the next file that is opened would get their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (until the end)


def _take_signals() -> None:
    """Take SIGTERM and SIGHUP from the first moment on, where they are not ignored, as under nohup."""
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that was forked from this one
            os._exit(128 + number)
        # Python drops an exception that is raised while it frees an object or calls back: then this ends the command.
        ending = threading.Timer(_CLEANED_UP_S, _end_at_once, (number,))
        ending.daemon = True
        ending.start()
        raise _Stopped(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


def _end_at_once(number: int) -> None:
    """Report the signal and end; jobs end with this process."""
    complain(f"stopped by {signal.Signals(number).name}")
    os._exit(128 + number)


def _print_in_any_encoding() -> None:
    """Print what standard output's encoding lacks as JSON's escapes, and the micro sign of units as u.

    In the locale C a name of any bytes is printed as these bytes, as before.
    """
    if not isinstance(sys.stdout, io.TextIOWrapper) or sys.stdout.errors not in ("strict", "surrogateescape"):
        return
    as_bytes = sys.stdout.errors == "surrogateescape"

    def escaped(one: str) -> bytes:
        if as_bytes and "\udc80" <= one <= "\udcff":
            return one.encode("ascii", "surrogateescape")
        return b"u" if one == "µ" else json.dumps(one)[1:-1].encode()

    def handle(error: UnicodeError) -> tuple[bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        return b"".join(map(escaped, error.object[error.start : error.end])), error.end

    codecs.register_error("escaped", handle)
    with contextlib.suppress(OSError):  # a pipe in place of a file, whose position is then asked for, after the change
        sys.stdout.reconfigure(errors="escaped")


def _discard_output() -> None:
    """Discard what Python would write to standard output when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> str:
    """A system error in one line; a missing permission is one to read where the file exists and this user cannot read it."""
    path, reason = error.filename, error.strerror or str(error)
    if path is None:
        return f"cannot write: {reason}; make room there, or choose another place"
    if not isinstance(error, PermissionError):
        return f"{path}: {reason}; choose another place"
    if os.path.lexists(path) and not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
        return f"cannot read {path}: {reason}; change its permissions, or name another"
    return f"cannot write {path}: {reason}; choose another folder"


if __name__ == "__main__":
    main()
