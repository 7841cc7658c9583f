"""The checkpoints of a running training: where it resumes, when it is saved, and when its processes stop together."""

import math
import time
from datetime import UTC, datetime

import msgspec
import torch
from torch import Tensor, distributed

from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.training.cells import TrainJob
from dpscope.launch.training.checkpoint_state import read_checkpoint, restore, save_checkpoint
from dpscope.launch.training.loop import TrainState
from dpscope.launch.training.resume import Resumption, resumption
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.training import CheckpointDescription
from dpscope.profiling.store.errors import DpscopeError

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


class TrainCheckpoints:
    """The hooks of a training's loop: they save it after every epoch, every `checkpoint_steps`, and when it is stopped.

    Every process of the job has one.
    """

    def __init__(
        self,
        job: TrainJob,
        begun: CheckpointDescription,
        place: TorchrunPlace,
        devices: tuple[torch.device, ...],
        stop: StopRequest,
    ) -> None:
        """`begun` describes the training before its first step."""
        self._job = job
        self._folder = job.checkpoints
        self._training = begun
        self._place = place
        self._devices = devices
        self._group = host_group()
        self._agreement = StopAgreement(stop, self._group)
        self._stopping = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Differences from the conditions under which the training began."""
        return self._training.findings

    def go_on(self, state: TrainState) -> None:
        """Restore a training that has not begun from its checkpoint, if it has one; raises as `resumption` does."""
        found = resumption(self._job)
        if found is not None:
            self._take_over(state, found)
        self._check_same_place(state)
        if self._place.rank == 0:
            self._folder.remove_unfinished()

    def pause_after_step(self, state: TrainState) -> bool:
        """Whether a checkpoint is due or a process was requested to stop."""
        self._stopping = self._agreement.reached()
        every = self._training.config.checkpoint_steps
        return self._stopping or (every is not None and state.steps % every == 0)

    def paused(self, state: TrainState) -> bool:
        """Save the training in the middle of an epoch; returns whether a process was requested to stop."""
        self._save(state, best=False)
        return self._stopping

    def after_epoch(self, state: TrainState) -> bool:
        """Save the end of an epoch; returns whether a process was requested to stop."""
        *earlier, last = (record.test_accuracy for record in state.records)
        self._save(state, best=last > max(earlier, default=-math.inf))
        return self._agreement.settle()

    def _save(self, state: TrainState, best: bool) -> None:
        description = msgspec.structs.replace(
            self._training,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            epochs=state.epochs,
            step=state.steps,
            test_accuracy=state.records[-1].test_accuracy if state.records else None,
        )
        save_checkpoint(self._folder, state, self._devices, description, self._group, best)

    def _take_over(self, state: TrainState, found: Resumption) -> None:
        content = read_checkpoint(found.path)
        state.step.learn_graph()
        restore(state, self._devices, self._place, found, content, self._job.cell)
        self._training = msgspec.structs.replace(self._training, findings=(*found.had.findings, *found.findings))

    def _check_same_place(self, state: TrainState) -> None:
        """Raise DpscopeError unless every process of the job continues from the same step."""
        if self._group is None:
            return
        places: list[tuple[int, int] | None] = [None] * self._place.world_size
        distributed.all_gather_object(places, (state.epochs, state.steps), group=self._group)
        if len(set(places)) != 1:
            raise DpscopeError(
                f"{self._folder.path}: the processes read different checkpoints there; --out must be a folder that all "
                "nodes share"
            )
