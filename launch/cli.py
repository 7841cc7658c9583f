"""The `dpscope` command: it takes signals before anything else, and ends with one line. What it can
do is in contents.py.
"""

import codecs
import contextlib
import gc
import io
import json
import os
import signal
import sys
import threading
import traceback
from types import FrameType

from dpscope.profiling.store.errors import FAULT, READER_GONE, DpscopeError
from dpscope.profiling.store.shown_text import complain

_CLEANED_UP_S = 5.0  # after a signal


class _Stopped(BaseException):
    """A signal ends the command; as with Ctrl-C nothing may catch it, and what was begun is cleaned
    up.
    """


def main() -> None:
    """Entry point: a user's mistake or an error of the system is one line on standard error and
    status 2; Ctrl-C is 130; a fault of dpscope is its traceback and FAULT, so that no gate takes it
    for a result.

    SIGTERM and SIGHUP, where no job takes them, are a line and status 128 + their number.
    """
    _open_standard_files()
    try:
        try:
            _take_signals()  # one may come at once
            _print_in_any_encoding()
            # some terminals and CI systems set it where the width is unknown
            if os.environ.get("COLUMNS") == "0":
                del os.environ["COLUMNS"]
            # New objects before cycles are searched for: at the usual 700 an eighth of reading a
            # trace.
            gc.set_threshold(100_000)
            from dpscope.launch import contents  # takes most of the time until a command begins

            contents.app()
        finally:
            sys.stdout.flush()  # what cannot be written is known here, not when Python ends
    except DpscopeError as error:
        complain(str(error))
        sys.exit(error.exit_status)
    except _Stopped as stopped:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        _end_at_once(stopped.args[0])
    except UnicodeEncodeError as error:
        # pyarrow and the files that dpscope writes take UTF-8 alone
        _discard_output()
        before, after = (
            error.object[: error.start].rpartition("\n")[2],
            error.object[error.start :].partition("\n")[0],
        )
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
    except Exception:
        _discard_output()
        traceback.print_exc()
        complain(
            "this is a fault of dpscope, not of your files: please report the lines above together with the command"
        )
        sys.exit(FAULT)
    finally:
        # its bindings call what is not freed at the end a leak, on standard error
        if "torch" not in sys.modules:
            # the process ends: searching the rest for cycles takes a quarter of a short command's
            # time
            gc.freeze()


def _open_standard_files() -> None:
    """Open standard files that are closed (`>&-`) on /dev/null: the next file that is opened would
    get their number.
    """
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
    """Take SIGTERM and SIGHUP from the first moment on, where they are not ignored, as under
    nohup.
    """
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that was forked from this one
            os._exit(128 + number)
        # Python drops an exception that is raised while it frees an object or calls back: then this
        # ends the command.
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
    """Print what standard output's encoding lacks as JSON's escapes, and the micro sign of units as
    u.

    In the locale C a name of any bytes is printed as these bytes, as before.
    """
    if not isinstance(sys.stdout, io.TextIOWrapper) or sys.stdout.errors not in (
        "strict",
        "surrogateescape",
    ):
        return
    as_bytes = sys.stdout.errors == "surrogateescape"

    def escaped(character: str) -> bytes:
        if as_bytes and "\udc80" <= character <= "\udcff":
            return character.encode("ascii", "surrogateescape")
        return b"u" if character == "µ" else json.dumps(character)[1:-1].encode()

    def handle(error: UnicodeError) -> tuple[bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        return b"".join(map(escaped, error.object[error.start : error.end])), error.end

    codecs.register_error("escaped", handle)
    # a pipe in place of a file, whose position is then asked for, after the change
    with contextlib.suppress(OSError):
        sys.stdout.reconfigure(errors="escaped")


def _discard_output() -> None:
    """Discard what Python would write to standard output when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> str:
    """A system error in one line; a missing permission is one to read where the file exists and
    this user cannot read it.
    """
    path, reason = error.filename, error.strerror or str(error)
    if path is None:
        return f"cannot write: {reason}; make room there, or choose another place"
    if not isinstance(error, PermissionError):
        return f"{path}: {reason}; choose another place"
    if os.path.lexists(path) and not os.access(
        path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
    ):
        return f"cannot read {path}: {reason}; change its permissions, or name another"
    return f"cannot write {path}: {reason}; choose another folder"


if __name__ == "__main__":
    main()
