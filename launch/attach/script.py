"""Runs a Python script in this process as Python would, with the measurement around it."""

import builtins
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from dpscope.profiling.attached.settings import RAISED


def run_script(
    command: Sequence[str], ended: Callable[[str], None], folder: Path | None = None
) -> None:
    """Run a script with its arguments (or a module: -m NAME) as ``__main__``; `ended` gets the way
    it ends, before it does.

    `folder` is its working folder, by default the current one; paths in the command are relative to
    the current one. Output and exit status are the script's: an exception is printed from the
    script's first frame on, and ends this process with status 1.
    """
    exit_at_once = os._exit
    process_id = os.getpid()

    def exit_after_saving(status: int) -> NoReturn:
        if os.getpid() == process_id:  # not a forked child, such as a loader worker
            ended(f"the script called os._exit({status})")
        exit_at_once(status)

    os._exit = exit_after_saving
    try:
        _execute(command, folder)
    except SystemExit as error:
        ended(f"the script exited with status {error.code}")
        raise
    except KeyboardInterrupt:
        ended("the script was interrupted")
        raise
    except BaseException as error:
        ended(f"{RAISED} {type(error).__name__}")
        error.__traceback__ = _from_the_script_on(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    else:
        ended("the script ended")
    finally:
        os._exit = exit_at_once


def _execute(command: Sequence[str], folder: Path | None) -> None:
    path = command[0]
    is_module = path == "-m"
    if is_module:
        sys.argv = list(command[1:])
        sys.path[0] = os.getcwd()
    else:
        if folder is not None:
            path = os.path.abspath(path)
        sys.argv = [path, *command[1:]]
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        path = os.path.join(os.getcwd(), path)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    if is_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    # As in Python, the script's definitions stay until the end, for exit handlers and spawned
    # processes.
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    vars(main).update(
        {"__file__": path, "__builtins__": builtins, "__spec__": None, "__loader__": None}
    )
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, vars(main))


def _from_the_script_on(trace: TracebackType | None) -> TracebackType | None:
    runners = (run_script.__code__.co_filename, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in runners:
        trace = trace.tb_next
    return trace
