"""What a sweep shows while it runs: one live line per cell with its state and the time left. Imports no torch."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from dpscope.profiling.run_types import CellResult

_MARKS = {"ok": "[green]ok[/]", "skipped": "[yellow]skipped[/]", "interrupted": "[yellow]interrupted[/]"}


class SweepProgress:
    """A context: a live line while a cell runs, a lasting one when it has ended; plain lines without a terminal."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._title = ""
        self._started = 0.0
        self._state: str | None = None
        self._time_left_s = 0.0
        # Without a terminal the live line would be repeated at every refresh.
        self._live = Live(get_renderable=self._line, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> "SweepProgress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def start(self, number: int, name: str, repeat: int, time_left_s: float) -> None:
        """A cell's repeat begins, the `number`-th job; `time_left_s` is that of the whole sweep."""
        self._title = f"[{number}/{self._total}] {name} repeat {repeat}"
        self._started = time.monotonic()
        self._state = None
        self._time_left_s = time_left_s
        if not self._console.is_terminal:
            self._console.print(Text(f"{self._title}: started, about {duration_text(time_left_s)} left"))

    def state(self, state: str | None) -> None:
        """The running cell is in this pass; None before its first."""
        self._state = state

    def finish(self, result: CellResult) -> None:
        """The running cell has ended."""
        mark = _MARKS.get(result.status, f"[red]{result.status.replace('_', ' ')}[/]")
        message = f": {escape(result.message)}" if result.message else ""
        self._console.print(
            f"{escape(self._title)}: {mark} in {duration_text(result.duration_s)}{message}", soft_wrap=True
        )
        self._title = ""

    def _line(self) -> Text:
        if not self._title:
            return Text("")
        elapsed = time.monotonic() - self._started
        left = max(0.0, self._time_left_s - elapsed)
        state = self._state or "starting"
        return Text(f"{self._title}: {state}, {duration_text(elapsed)}; about {duration_text(left)} left")


def duration_text(seconds: float) -> str:
    """Seconds as `42 s` or `3 min 05 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
