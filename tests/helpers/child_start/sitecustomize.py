"""Imported first by every Python process that a test starts: importing torch and ending take a
third less CPU time.

Each of these processes lives for seconds and imports torch, whose 300,000 objects live as long as
it does. At Python's own thresholds the garbage collector visits them dozens of times during the
import and again at exit.

Where the test's process has a server (tests/helpers/fork_server.py), a torchrun and its ranks, a
command of dpscope that starts jobs, forked_ranks.py and modules that import torch run in forks of
it, in which torch is imported already; where DPSCOPE_TEST_FORK_READERS is set, also the commands
that read what a job left. Within `light_jobs` torchrun becomes light_torchrun.py.
"""

import atexit
import gc
import os
import sys

_HELPERS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FORKED_RANKS, _LIGHT_TORCHRUN = (
    os.path.join(_HELPERS, name) for name in ("forked_ranks.py", "light_torchrun.py")
)
_OWN_PROCESS = os.path.join(os.path.dirname(_HELPERS), "user_models", "scripts", "own_launcher.py")
_COMMANDS = ("attach", "calibrate", "detect", "doctor", "equal", "run", "train")
_READERS = ("analyze", "bundle", "compare", "merge", "whatif")
_MODULES = (
    *("dpscope.launch.attach", "pytest", "tests.gpu.plain_script"),
    *("tests.helpers.paced_ddp", "tests.helpers.sweeps"),
)
_PROGRAMS = "tests.virtual_gpu.programs."
_OF_RANKS = (
    "attach",
    "jobs.all_reduce_check",
    "worker",
)  # modules, which tie their life to torchrun's


def _program_to_fork(arguments: list[str]) -> list[str] | None:
    """What to run in a fork for a Python process with these arguments; None: the process itself
    runs it.
    """
    if arguments[:2] == ["-m", "dpscope.launch.torchrun"]:
        light = "DPSCOPE_TEST_LIGHT_TORCHRUN" in os.environ and {
            "--nnodes=1",
            "--max-restarts=0",
        } <= {*arguments}
        return [_LIGHT_TORCHRUN, *arguments[2:]] if light else arguments
    forked = _COMMANDS + _READERS * ("DPSCOPE_TEST_FORK_READERS" in os.environ)
    command = (
        arguments[:2] == ["-m", "dpscope.launch.cli"] and arguments[2:3] and arguments[2] in forked
    )
    module = arguments[:1] == ["-m"] and (
        arguments[1] in _MODULES or arguments[1].startswith(_PROGRAMS)
    )
    script = arguments[:1] == [_FORKED_RANKS] or arguments[:1] == [_OWN_PROCESS]
    return arguments if command or module or script else None


def _rank_to_fork(arguments: list[str]) -> list[str] | None:
    """The same of a process that torchrun may have started, unbuffered."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or arguments[:1] != ["-u"]:
        return None
    program = arguments[1:]
    modules = [["-m", f"dpscope.launch.{name}"] for name in _OF_RANKS]
    by_path = program[0].endswith(os.path.join("launch", "worker.py"))
    return program if program[:2] in modules or by_path else None


def _run_in_fork(server: str, program: list[str], rank: bool) -> None:
    """Have the server run a program in this process's place, and end as that ends."""
    import json
    import signal
    import socket

    if rank:
        from dpscope.launch.jobs.parent_death import die_with_job

        die_with_job()
    request = {
        "program": program,
        "rank": rank,
        "command": sys.orig_argv,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    files = [
        0,
        1,
        2,
        *(os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "mnt")),
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(server)
        socket.send_fds(connection, [json.dumps(request).encode()], files)
        fork = int(connection.recv(100))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda received, _frame: os.kill(fork, received))
        status = int(connection.recv(100) or -signal.SIGKILL)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


gc.set_threshold(200_000, 20, 20)
atexit.register(gc.freeze)
server = os.environ.get("DPSCOPE_TEST_FORK_SERVER")
server_of_ranks = server or os.environ.get("DPSCOPE_TEST_RANKS_FORK_SERVER")
if server_of_ranks and (rank := _rank_to_fork(sys.orig_argv[1:])):
    _run_in_fork(server_of_ranks, rank, rank=True)
elif server and (program := _program_to_fork(sys.orig_argv[1:])):
    _run_in_fork(server, program, rank=False)
