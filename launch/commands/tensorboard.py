"""`dpscope tensorboard`: a run's TensorBoard folder, written and served until interrupted."""

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from dpscope.launch.commands import options
from dpscope.launch.commands.analyze import runs_among
from dpscope.launch.commands.command import Help, Idle, argument, open_console, option
from dpscope.launch.jobs.parent_death import JOB_TOKEN_VARIABLE
from dpscope.profiling.store.errors import DpscopeError

_REAPED_EVERY_S = 1.0
HELP = Help(examples=("runs/mine", "traces/ --out board/ --port 0"))

IDLE = (
    Idle("link", options.trainings_alone, "trainings alone hold no measured steps"),
    Idle("out", options.any_run, "a run's TensorBoard folder lies in the run's own"),
)


def tensorboard(
    paths: list[Path] = argument(
        "a run folder, or trace files and folders of them", metavar="PATH ..."
    ),
    host: str = option("the address to listen on", default="localhost"),
    port: int = option("0 takes a free one", default=6006),
    link: options.Link = None,
    out: Path | None = option(
        "for traces: where the folder goes; a run's goes into the run folder"
    ),
) -> None:
    stated = options.read_link(link)
    check_address(host, port)
    if not runs_among(paths):
        from dpscope.analysis.text.terminal import progress
        from dpscope.analysis.traces.ranks.readers import find_traces

        with progress("Searching for traces"):
            find_traces(paths)  # TensorBoard shows events
    console = open_console()
    console.print("Writing the TensorBoard folder ...", highlight=False)
    from dpscope.analysis.output.tensorboard import write_tensorboard

    folder = write_tensorboard(paths, stated, out)
    console.print(
        "Starting TensorBoard, which takes seconds, on a busy machine up to a minute ...",
        highlight=False,
    )

    def announce(address: str) -> None:
        console.print(
            f"TensorBoard: {address} (folder {folder}; Ctrl-C ends it)",
            highlight=False,
            soft_wrap=True,
        )

    with contextlib.suppress(KeyboardInterrupt), _guard_of_children():
        serve(folder, host, port, announce)


def serve(folder: Path, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve a TensorBoard folder until interrupted; `announce` is called with the address.

    Port 0 takes a free one. Raises DpscopeError when the port is taken.
    """
    from tensorboard import program  # takes seconds

    # torch-tb-profiler calls it an error when a step's last collective ends after the step, as on
    # CPUs it may.
    os.environ.setdefault("TORCH_PROFILER_LOG_LEVEL", "CRITICAL")
    server = program.TensorBoard()
    # load_fast is a second process that would outlive a killed parent.
    arguments = [
        "--logdir",
        str(folder),
        "--host",
        host,
        "--port",
        str(port),
        "--load_fast",
        "false",
    ]
    arguments += ["--reload_interval", "1"]  # seconds; trainings are watched while they run
    server.configure(argv=["tensorboard", *arguments])
    try:
        address = server.launch()
    except program.TensorBoardServerException as error:
        raise DpscopeError(
            f"--port {port}: TensorBoard cannot start there: {error}; give another, or 0"
        ) from error
    announce(address)
    while True:
        # waits for the profiler plugin's processes that have ended
        multiprocessing.active_children()
        time.sleep(_REAPED_EVERY_S)


def _guard_of_children() -> subprocess.Popen[bytes]:
    """A process that ends what this one starts from now on once this one has ended, however: the
    plugin's loaders would go on.
    """
    token = f"{JOB_TOKEN_VARIABLE}={uuid.uuid4().hex}"
    code = f"import sys; sys.stdin.read(); from dpscope.launch.jobs.torchrun import end_processes; end_processes({token!r})"
    guard = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,  # its end is this process's
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )
    os.environ[JOB_TOKEN_VARIABLE] = token.partition("=")[2]
    return guard


def check_address(host: str, port: int) -> None:
    """Raise DpscopeError unless TensorBoard can listen there; before it starts, since its plugin
    starts processes first.
    """
    if not 0 <= port < 1 << 16:
        raise DpscopeError(f"--port {port}: a port is a number from 0 to 65535; 0 takes a free one")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
    except OSError as error:
        raise DpscopeError(
            f"--host {host}: {error.strerror}; give an address of this machine"
        ) from error
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(place)
        except OSError as error:
            raise DpscopeError(
                f"--port {port}: TensorBoard cannot listen there on {host}: {error.strerror}; give another, or 0"
            ) from error
