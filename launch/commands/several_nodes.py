"""A command started on several nodes: node 0 runs it, the others do their part of its jobs."""

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import typer

from dpscope.launch.commands.options import NodeOptions
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.shown_text import complain

if TYPE_CHECKING:
    from rich.console import Console

    from dpscope.launch.jobs.job_queue import JobStarter
    from dpscope.launch.jobs.node_place import NodePlace
    from dpscope.launch.jobs.torchrun import Job
    from dpscope.launch.nodes.board import NodeInfo

_NODE_S_OWN = ("node_rank", "wait_for_nodes", "out")  # and compared in another way
_WAIT_S = 300.0  # people start the command on one node after another
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def this_node(options: NodeOptions, plan_alone: bool = False) -> "NodePlace | None":
    """This node's place by the command's options and its environment; None where it is alone.

    A command that only plans needs no more than the number of nodes; where a launcher has started
    it on several, all but the first one end here.
    """
    nodes, node_rank, rendezvous = options.nodes, options.node_rank, options.rendezvous
    if nodes is None:
        return None
    from dpscope.launch.jobs.node_place import launched_rank, node_place

    if not plan_alone:
        place = node_place(nodes, node_rank, rendezvous, os.environ)
        if place is not None and _LOG_LEVEL not in os.environ:
            # A store that cannot be reached prints no C++ stack; the jobs' processes get the user's
            # own level.
            os.environ[_LOG_LEVEL] = "FATAL"
            import torch.distributed  # noqa: F401

            del os.environ[_LOG_LEVEL]
        return place
    if node_rank is None and (rank := launched_rank(os.environ)):
        typer.echo(f"Node {rank}: node 0 prints the plan.")
        raise typer.Exit
    return node_place(nodes, 0, "host0", os.environ)


@contextmanager
def on_all_nodes(
    place: "NodePlace | None",
    request: NodeOptions,
    device: str,
    console: "Console",
    folder: Path | None = None,
) -> "Iterator[JobStarter]":
    """What starts the command's jobs, on this node or on all of them, which meet first.

    Any other node than the first does its part of the jobs instead and ends with the status of the
    first one. The options must be the same on all nodes. The nodes share `folder`, by default the
    run folder.
    """
    from dpscope.launch.jobs.job_queue import THIS_HOST

    if place is None:
        yield THIS_HOST
        return

    def note(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.jobs.out_folder import check_writable
    from dpscope.launch.nodes.board import NodeStart
    from dpscope.launch.nodes.team import follow, led

    out = folder or request.out
    wait_s = request.wait_for_nodes or _WAIT_S
    start = NodeStart(place, out, note, wait_s, functools.partial(_plan, out))
    terms = _terms(place, request, out)
    if place.rank > 0:
        with _ended_at_once():
            raise typer.Exit(follow(start, functools.partial(_node_info, place, device, terms)))
    check_writable(out)
    kind = resolve_devices(cast(Literal["auto", "cuda", "cpu"], device)).kind
    with led(start, {**terms, "device": kind}) as team:
        yield team


def _terms(place: "NodePlace", request: NodeOptions, out: Path) -> dict[str, str]:
    """What must be the same on all nodes, the kind of device excepted."""
    terms = {"dpscope": version("dpscope"), "node count": str(place.count), "--out": str(out)}
    for name, value in request.given.items():
        if name not in _NODE_S_OWN:
            terms[f"--{name.replace('_', '-')}"] = str(value)
    return terms


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """End the process with the block where torch still holds a thread in a call: its return would
    abort Python's own end.
    """
    from dpscope.launch.nodes.board import THREAD_NAME

    try:
        yield
    except (typer.Exit, DpscopeError) as error:
        if not any(thread.name == THREAD_NAME for thread in threading.enumerate()):
            raise
        if isinstance(error, DpscopeError):
            complain(str(error))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_status if isinstance(error, DpscopeError) else error.exit_code)


def _node_info(place: "NodePlace", device: str, terms: dict[str, str]) -> "NodeInfo":
    """What this node is; raises DpscopeError where it cannot take part."""
    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.nodes.board import NodeInfo
    from dpscope.profiling.machine.environment import collect_environment
    from dpscope.profiling.machine.interfaces import connection_to, host_at
    from dpscope.profiling.machine.nvml import open_nvml

    try:
        devices = resolve_devices(cast(Literal["auto", "cuda", "cpu"], device))
    except DpscopeError as error:
        raise DpscopeError(f"node {place.rank} cannot take part: {error}") from error
    on_gpus = devices.kind == "cuda"
    environment = collect_environment(open_nvml() if on_gpus else None, on_gpus=on_gpus)
    here, node0 = connection_to(place.address.port)
    return NodeInfo(
        host_at(place.rank, here, environment), node0, {**terms, "device": devices.kind}
    )


def _plan(out: Path) -> "list[Job]":
    """The jobs over several nodes that the run folder plans: every node derives the same, and none
    is sent a command.
    """
    from dpscope.launch.learning.equal_run import planned_comparisons
    from dpscope.launch.learning.train_plan import planned_trainings
    from dpscope.launch.measuring.calibration_run import planned_calibrations
    from dpscope.launch.measuring.run import planned_cells

    jobs: list[Job] = []
    for planned in (planned_calibrations, planned_comparisons, planned_cells, planned_trainings):
        with suppress(DpscopeError):  # what another command and version left in the folder
            jobs += planned(out)
    return [job for job in jobs if job.nodes > 1]
