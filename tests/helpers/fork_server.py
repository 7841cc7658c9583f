"""A process that has imported torch and forks into the programs that tests start: the import takes
two seconds of CPU time.

    python -m tests.helpers.fork_server LISTENER OWNER

`forks` starts one for this process, with which it ends; workers of pytest-xdist share one, which
ends with the process that started them. A program that child_start hands to it runs in a fork,
which has the environment, folder, files and command line of the process that was started, also in
/proc, and gets its signals. The fork ends with that process, which ends as the fork does. What
importing torch computes, such as its number of threads, is the server's. A run's report has no
figures, which take two seconds of CPU time, unless FIGURES is set.
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from dpscope.launch.jobs import parent_death
from tests.helpers.forked_ranks import import_for_ranks, run_program
from tests.helpers.paths import ROOT

_IMPORTED = (
    *("torch.distributed.run", "matplotlib.figure", "pandas", "pyarrow.parquet"),
    *("dpscope.analysis.output.run_screen", "dpscope.analysis.report.build"),
    *("dpscope.analysis.figures.draw", "dpscope.analysis.what_if.answer", "scipy.stats"),
    *("dpscope.launch.measuring.task", "dpscope.launch.measuring.cell", "torch.utils.flop_counter"),
    "dpscope.launch.learning.train",
)
_NAMESPACES = ("net", "uts", "mnt")
VARIABLE = "DPSCOPE_TEST_FORK_SERVER"  # the socket
RANKS_ALONE = "DPSCOPE_TEST_RANKS_FORK_SERVER"
FIGURES = "DPSCOPE_TEST_FIGURES"
_FOLDERS = "dpscope-forks-"
_RESERVED = "x" * 60_000  # room in /proc for a fork's command line and environment
_LONGEST_REQUEST = 200_000


@contextlib.contextmanager
def forks(variable: str = VARIABLE) -> Iterator[None]:
    """Meanwhile, processes that this one starts become forks where child_start says so; pytest
    within pytest has its server. With RANKS_ALONE those that torchrun starts, and torchrun does not.
    """
    if variable in os.environ:
        yield
        return
    os.environ[variable] = server()
    try:
        yield
    finally:
        del os.environ[variable]


@functools.cache
def server(*changes: tuple[str, str]) -> str:
    """The socket of the server whose environment has these changes, such as libraries to load
    first.
    """
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same in all workers
    if session is None:
        folder, owner = Path(tempfile.mkdtemp(prefix=_FOLDERS)), os.getpid()
    else:
        folder, owner = Path(tempfile.gettempdir(), f"{_FOLDERS}{session}"), os.getppid()
        folder.mkdir(exist_ok=True)
    path = folder / str(zlib.crc32(repr(changes).encode()))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _start(str(path), owner, dict(changes))
    return str(path)


def _start(path: str, owner: int, changes: dict[str, str]) -> None:
    """A server that listens at `path` until the process `owner` ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)  # those who ask meanwhile wait until torch is imported
        numbers = [listener.fileno(), os.pidfd_open(owner)]
        command = [sys.executable, "-m", __name__, *map(str, numbers), _RESERVED]
        subprocess.Popen(
            command,
            pass_fds=numbers,
            cwd=ROOT,
            env={**os.environ, **changes, "ROOM": _RESERVED},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(numbers[1])


def main() -> None:
    listener, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    import_for_ranks()
    _import_for_commands()
    run_program(_serve(listener, owner))


def _import_for_commands() -> None:
    """What torchrun, workers and the commands that make a report import."""
    from dpscope.launch.commands.command import load_command

    for module in _IMPORTED:
        importlib.import_module(module)
    for command in ("run", "analyze"):
        load_command(command, "")  # imports more
    gc.freeze()


def _serve(listener: socket.socket, owner: int) -> list[str]:
    """Fork for each request, and tell who asked how the fork ended; in a fork, return its program.
    Ends with the owner.
    """
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    clients: dict[int, socket.socket] = {}
    watched: list[socket.socket | int] = [listener, woken, owner]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if owner in ready:
            shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
            os._exit(0)
        if listener in ready:
            client = listener.accept()[0]
            message, files, _, _ = socket.recv_fds(client, _LONGEST_REQUEST, 3 + len(_NAMESPACES))
            if not message:  # ended meanwhile
                continue
            process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for connection in (listener, woken, waker, *clients.values()):
                    connection.close()
                os.close(owner)
                return _become(client, files, **json.loads(message))
            clients[process] = client
            with contextlib.suppress(OSError):
                client.send(str(process).encode())
            for file in files:
                os.close(file)
        if woken in ready:
            woken.recv(4096)
            for process in list(clients):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    with contextlib.suppress(OSError), clients.pop(process) as client:
                        client.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(
    client: socket.socket,
    files: list[int],
    program: list[str],
    rank: bool,
    command: list[str],
    folder: str,
    environment: dict[str, str],
) -> list[str]:
    """Take the place of the process that asked, whose standard files and namespaces are `files`;
    returns its program.
    """
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    # its end closes the connection, whose SIGIO ends this process
    fcntl.fcntl(client, fcntl.F_SETFL, os.O_ASYNC)
    client.detach()
    os.setsid()
    for namespace in files[3:]:
        if os.fstat(namespace).st_ino not in {
            os.stat(f"/proc/self/ns/{kind}").st_ino for kind in _NAMESPACES
        }:
            assert ctypes.CDLL(None).setns(namespace, 0) == 0, (
                "cannot enter the namespace of the process that asked"
            )
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR is asked for again
    sys.path[1:1] = [
        one
        for one in environment.get("PYTHONPATH", "").split(os.pathsep)
        if one and one not in sys.path
    ]
    _show_in_proc(command, environment)
    if FIGURES not in environment:
        from dpscope.analysis.figures import draw

        draw.RUN_FIGURES = ()
    if rank:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # as by -u
        _skip_once("die_with_job")  # the process that asked, torchrun's child, has called it
    return program


def _skip_once(name: str) -> None:
    """The first who calls this function of `parent_death` finds it without effect."""
    function = getattr(parent_death, name)
    setattr(parent_death, name, lambda: setattr(parent_death, name, function))


def _show_in_proc(command: list[str], environment: dict[str, str]) -> None:
    """Overwrite what /proc shows of this process: both lie in its memory, one after the other."""
    with open("/proc/self/stat") as file:
        start, arguments_end, _, end = map(int, file.read().split()[-5:-1])
    texts = [
        [part.encode() + b"\0" for part in of]
        for of in (command, [f"{k}={v}" for k, v in environment.items()])
    ]
    arguments, variables = (b"".join(of) for of in texts)
    room = arguments_end - start, end - arguments_end
    assert len(arguments) <= room[0], "the command line is longer than the room for it"
    assert len(variables) <= room[1], "the environment is larger than the room for it"
    ctypes.memmove(start, arguments.ljust(room[0], b"\0"), room[0])
    ctypes.memmove(arguments_end, variables.ljust(room[1], b"\0"), room[1])


if __name__ == "__main__":
    main()
