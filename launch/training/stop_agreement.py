"""The agreement of a training's processes on when to stop together."""

import time

import torch
from torch import Tensor, distributed

from dpscope.launch.jobs.stop_request import StopRequest

_PAUSE_S = 0.5
_LONGEST_PAUSE_STEPS = 50  # a device's queue hides how long steps take


def host_group() -> distributed.ProcessGroup | None:
    """A gloo group of all processes of the job; None for a single process.

    Every process must create it, in the same order as its other groups.
    """
    if not distributed.is_initialized():
        return None
    group = distributed.new_group(backend="gloo")
    assert isinstance(group, distributed.ProcessGroup)
    return group


class StopAgreement:
    """Agreement of a job's processes on whether any of them was requested to stop, so that all stop after the same step.

    About twice a second, after the same steps, they exchange their states by gloo during the next step: no device waits, and they
    agree within a second or two steps after a signal. A single process uses its own state.
    """

    def __init__(self, request: StopRequest, group: distributed.ProcessGroup | None) -> None:
        """`group` is a `host_group`."""
        self._request = request
        self._group = group
        self._exchange: tuple[Tensor, distributed.Work] | None = None  # in progress
        self._exchange_began_s = time.monotonic()
        self._steps = 0  # since then
        self._pause_steps = 1  # between two exchanges

    def reached(self) -> bool:
        """Whether to stop now, the same on every process; all must call this equally often.

        Raises RuntimeError when a process is lost, whatever the devices still wait for.
        """
        if self._group is None:
            return self._request.requested
        self._steps += 1
        if self._exchanged():
            return True
        if self._steps >= self._pause_steps:
            self._start_exchange()
        return False

    def settle(self) -> bool:
        """As `reached`, with the current states: the processes wait for each other."""
        if self._group is None:
            return self._request.requested
        if self._exchanged():
            return True
        self._start_exchange()
        return self._exchanged()

    def _start_exchange(self) -> None:
        now_s = time.monotonic()
        step_s = (now_s - self._exchange_began_s) / max(1, self._steps)
        pause_steps = min(_LONGEST_PAUSE_STEPS, max(1, int(_PAUSE_S / max(step_s, 1e-9))))
        # The maximum over processes: whether one was requested to stop, and the shortest pause.
        state = torch.tensor([int(self._request.requested), -pause_steps])
        work = distributed.all_reduce(state, distributed.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._exchange, self._exchange_began_s, self._steps = (state, work), now_s, 0

    def _exchanged(self) -> bool:
        """Wait for the exchange in progress, if any; whether a process was requested to stop."""
        if self._exchange is None:
            return False
        (state, work), self._exchange = self._exchange, None
        work.wait()
        requested, negative_pause = state.tolist()
        self._pause_steps = -negative_pause
        return bool(requested)
