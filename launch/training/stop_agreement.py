"""One answer of all processes of a job to the question whether to stop, so that they do so after the same step."""

import time

import torch
from torch import Tensor, distributed

from dpscope.launch.jobs.stop_request import StopRequest

_PAUSE_S = 0.5
_LONGEST_PAUSE_STEPS = 50  # a device's queue hides how long steps take


def host_group() -> distributed.ProcessGroup | None:
    """A group of all processes of the job that talk by gloo, whatever their devices; None for a process alone.

    Every process must make it, in the same order as its other groups.
    """
    if not distributed.is_initialized():
        return None
    group = distributed.new_group(backend="gloo")
    assert isinstance(group, distributed.ProcessGroup)
    return group


class StopAgreement:
    """Whether any process of the job was told to stop.

    The processes ask each other about twice a second, after the same steps, by gloo while the next step computes: no
    device waits for it, and they agree less than a second or two steps after a signal. Alone, a process asks nobody.
    """

    def __init__(self, request: StopRequest, group: distributed.ProcessGroup | None) -> None:
        """`group` is a `host_group`."""
        self._request = request
        self._group = group
        self._asked: tuple[Tensor, distributed.Work] | None = None
        self._asked_at_s = time.monotonic()
        self._steps = 0  # since then
        self._pause_steps = 1  # from one question to the next

    def reached(self) -> bool:
        """Whether to stop now, the same on every process; each must ask as often as the others.

        Raises RuntimeError when a process is lost, whatever the devices still wait for.
        """
        if self._group is None:
            return self._request.requested
        self._steps += 1
        if self._answer():
            return True
        if self._steps >= self._pause_steps:
            self._ask()
        return False

    def settle(self) -> bool:
        """As `reached`, with what the processes know by now: they wait for each other."""
        if self._group is None:
            return self._request.requested
        if self._answer():
            return True
        self._ask()
        return self._answer()

    def _ask(self) -> None:
        now_s = time.monotonic()
        step_s = (now_s - self._asked_at_s) / max(1, self._steps)
        pause_steps = min(_LONGEST_PAUSE_STEPS, max(1, int(_PAUSE_S / max(step_s, 1e-9))))
        # The maximum over processes: whether one was told to, and the shortest pause that one of them wants.
        question = torch.tensor([int(self._request.requested), -pause_steps])
        work = distributed.all_reduce(question, distributed.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._asked, self._asked_at_s, self._steps = (question, work), now_s, 0

    def _answer(self) -> bool:
        if self._asked is None:
            return False
        (answer, work), self._asked = self._asked, None
        work.wait()
        requested, negative_pause = answer.tolist()
        self._pause_steps = -negative_pause
        return bool(requested)
