"""How a command that measured ends: with its report, and a status that says whether all went well."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol

import typer

from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from rich.console import Console


class EndedJobs(Protocol):
    """How the jobs of a command ended."""

    @property
    def ok(self) -> bool:
        """Whether every job that was started has its result."""

    @property
    def exit_status(self) -> int:
        """0 if so, 128 + N when signal N stopped it, else 1."""


def exit_after(outcome: EndedJobs, show: Callable[[], bool], console: "Console") -> NoReturn:
    """Show what was measured and leave the command; `show` says whether the numbers can be relied on.

    A report that cannot be made is an error of its own only where every job ended well: else it is the failed jobs' doing.
    """
    sound = False
    try:
        sound = show()
    except DpscopeError as error:  # the settings were sound: what failed, failed while measuring
        if outcome.ok:
            raise
        console.print(f"\n{error}", style="bold red", highlight=False, soft_wrap=True)
    raise typer.Exit(outcome.exit_status or int(not sound))
