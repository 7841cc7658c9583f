"""A command that is started on several nodes: node 0 does what it says, the others what node 0 needs of them."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import typer

from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from rich.console import Console

    from dpscope.launch.jobs.starting import JobStarter
    from dpscope.launch.nodes.place import NodePlace

_NODE_S_OWN = ("node_rank", "out")  # and compared in another way


def this_node(
    nodes: str | None, node_rank: int | None, rendezvous: str | None, plan_alone: bool = False
) -> "NodePlace | None":
    """This node's place by the command's options and its environment; None where it is alone.

    Of a command that only plans it is told how many nodes there are, and no more is asked; where a launcher has started this on
    several, all but the first one end here.
    """
    if nodes is None:
        return None
    from dpscope.launch.nodes.place import launched_rank, node_place

    if not plan_alone:
        return node_place(nodes, node_rank, rendezvous, os.environ)
    if node_rank is None and (rank := launched_rank(os.environ)):
        typer.echo(f"Node {rank}: node 0 prints the plan.")
        raise typer.Exit
    return node_place(nodes, 0, "host0", os.environ)


@contextmanager
def on_all_nodes(
    place: "NodePlace | None", out: Path, given: Mapping[str, object], device: str, console: "Console"
) -> "Iterator[JobStarter]":
    """What starts the command's jobs, on this node or on all of them, which are met first.

    Any other node than the first does its part of the jobs instead and ends with the status that the first one tells. `given`
    are the options that must be the same everywhere.
    """
    from dpscope.launch.jobs.starting import THIS_HOST

    if place is None:
        yield THIS_HOST
        return

    def note(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    options = {f"--{name.replace('_', '-')}": str(value) for name, value in given.items() if name not in _NODE_S_OWN}
    options["--out"] = str(out)
    if place.rank > 0:
        raise typer.Exit(_follow(place, out, options, device, console))
    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.jobs.out_folder import check_writable
    from dpscope.launch.nodes.meeting import met
    from dpscope.launch.nodes.team import Team

    check_writable(out)
    with met(place, out, options, note) as members:
        team = Team(socket.gethostname(), members)
        team.check_alike(resolve_devices(cast(Literal["auto", "cuda", "cpu"], device)).kind)
        try:
            yield team
        except DpscopeError as error:
            team.dismiss(error.exit_status, f"Node 0: {error}")
            raise


def _follow(place: "NodePlace", out: Path, options: Mapping[str, str], device: str, console: "Console") -> int:
    from dpscope.launch.jobs.devices import resolve_devices
    from dpscope.launch.nodes.follower import Follower
    from dpscope.launch.nodes.joining import found
    from dpscope.launch.nodes.messages import Unable

    def note(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    connection, leader = found(place, out, options, note)
    try:
        try:
            gpus = resolve_devices(cast(Literal["auto", "cuda", "cpu"], device)).count
        except DpscopeError as error:
            connection.send(Unable(str(error)))
            raise
        return Follower(place.rank, out, connection, leader, gpus, note).follow()
    finally:
        connection.close()
