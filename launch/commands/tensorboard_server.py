"""Starts TensorBoard in this process and keeps it until interrupted."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from tensorboard import program

from dpscope.profiling.store.errors import DpscopeError


def serve(folder: Path, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve a TensorBoard folder; tells `announce` the address, returns never but by an interrupt.

    Port 0 takes a free one. Raises DpscopeError when the port is taken.
    """
    # torch-tb-profiler calls it an error when a step's last collective ends after the step, as on CPUs it may.
    os.environ.setdefault("TORCH_PROFILER_LOG_LEVEL", "CRITICAL")
    server = program.TensorBoard()
    # load_fast is a second process that would outlive a killed parent.
    arguments = ["--logdir", str(folder), "--host", host, "--port", str(port), "--load_fast", "false"]
    arguments += ["--reload_interval", "1"]  # seconds; trainings are watched while they run
    server.configure(argv=["tensorboard", *arguments])
    try:
        address = server.launch()
    except program.TensorBoardServerException as error:
        raise DpscopeError(f"--port {port}: TensorBoard cannot start there: {error}; give another, or 0") from error
    announce(address)
    threading.Event().wait()
