"""What is shown while jobs run: one live line with the state of the running one and the time left. Imports no torch."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dpscope.profiling.records.run import CellStatus

_STYLES = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}


class SweepProgress:
    """A context: a live line while a job runs, which stays if it does not end well; plain lines without a terminal."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._title = ""
        self._started = 0.0
        self._state: str | None = None
        self._time_left_s: float | None = None
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

    def start(self, number: int, name: str, time_left_s: float | None) -> None:
        """The `number`-th job begins; `time_left_s` is that of all that are left, None while unknown."""
        self._title = f"[{number}/{self._total}] {name}"
        self._started = time.monotonic()
        self._state = None
        self._time_left_s = time_left_s
        if not self._console.is_terminal:
            left = "" if time_left_s is None else f", about {duration_text(time_left_s)} left"
            self._console.print(Text(f"{self._title}: started{left}"))

    def state(self, state: str | None) -> None:
        """How far the running job is, such as its pass; None before its first."""
        self._state = state

    def finish(self, status: CellStatus, duration_s: float, message: str) -> None:
        """The running job has ended; `message` says why it is not ok."""
        if status != "ok" or not self._console.is_terminal:
            mark = (status.replace("_", " "), _STYLES.get(status, "red"))
            reason = f": {message}" if message else ""
            line = Text.assemble(f"{self._title}: ", mark, f" in {duration_text(duration_s)}{reason}")
            self._console.print(line, soft_wrap=True)
        self._title = ""

    def _line(self) -> Text:
        if not self._title:
            return Text("")
        elapsed = time.monotonic() - self._started
        state = self._state or "starting"
        left = (
            "" if self._time_left_s is None else f"; about {duration_text(max(0.0, self._time_left_s - elapsed))} left"
        )
        return Text(f"{self._title}: {state}, {duration_text(elapsed)}{left}")


def duration_text(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 05 s` or `3 h 26 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
