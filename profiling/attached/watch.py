"""`watch_steps`: one line in a script's loop, for loops whose steps no torch optimizer ends."""

import atexit
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings, print_note

_Batch = TypeVar("_Batch")


class Active:
    """The session of this process, if it is attached to."""

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
    """Yield the batches of a loader and measure the loop's steps, one per batch.

        for batch in watch_steps(loader, out="runs/mine"):

    The run folder `out` is read like that of `dpscope run`; under `dpscope attach --steps-by call`
    it is already set. The same loop may be entered many times, such as once per epoch. Raises
    ValueError without `out`.
    """
    session = Active.session
    if session is None:
        if out is None:
            raise ValueError("watch_steps needs out, the run folder, such as out='runs/mine'")
        if warmup < 2 or min(steps, traced_steps, 1 if batch_size is None else batch_size) < 1:
            raise ValueError(
                "watch_steps needs a warmup of 2 or more, and steps, traced_steps and batch_size above 0"
            )
        settings = AttachSettings(
            out=Path(out), script=" ".join(sys.argv), warmup_steps=warmup, steps=steps, traced_steps=traced_steps,
            steps_by="call", batch_size=batch_size, code=Path(sys.argv[0]).absolute().parent,
        )  # fmt: skip
        # the tracer's progress messages are not the script's
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        session = Active.session = Session(settings, print_note)
        atexit.register(session.close, "the script ended")
    for batch in loader:
        yield batch
        session.step_called()
