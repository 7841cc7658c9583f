"""`watch_steps`: one line in a script's own loop, for loops that no optimizer of torch's tells the steps of."""

import atexit
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings

_Batch = TypeVar("_Batch")


class Active:
    """The session of this process, where it was attached to."""

    session: Session | None = None


def watch_steps(
    loader: Iterable[_Batch],
    out: str | Path | None = None,
    *,
    warmup: int = 10,
    steps: int = 50,
    traced_steps: int = 3,
    batch_size: int | None = None,
) -> Iterator[_Batch]:
    """Yield the batches of a loader and measure the steps that the loop makes of them, one for each batch.

        for batch in watch_steps(loader, out="runs/mine"):

    The measurement lies in the run folder `out` and is read like one of `dpscope run`. A script that `dpscope attach
    --steps-by call` runs has an `out` already. The same loop may be entered many times, an epoch each. Raises ValueError
    where there is no `out`.
    """
    session = Active.session
    if session is None:
        if out is None:
            raise ValueError("watch_steps needs out, the run folder, such as out='runs/mine'")
        if warmup < 2 or steps < 1 or traced_steps < 1:
            raise ValueError("watch_steps needs a warmup of 2 or more, and steps and traced_steps above 0")
        settings = AttachSettings(
            out=Path(out), script=" ".join(sys.argv), warmup_steps=warmup, steps=steps, traced_steps=traced_steps,
            steps_by="call", batch_size=batch_size, code=Path(sys.argv[0]).absolute().parent,
        )  # fmt: skip
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not the script's
        session = Active.session = Session(settings, _note)
        session.listen()
        atexit.register(session.close, "the script ended")
    for batch in loader:
        yield batch
        session.step_called()


def _note(text: str) -> None:
    sys.stderr.write(f"dpscope: {text}\n")
