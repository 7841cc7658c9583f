"""The checkpoints of a training that runs: what it goes on from, and when it is saved."""

import math
from datetime import UTC, datetime

import msgspec
import torch
from torch import distributed

from dpscope.launch.jobs.place import TorchrunPlace
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.training.checkpoint_state import read_checkpoint, restore, save_checkpoint
from dpscope.launch.training.job import TrainJob
from dpscope.launch.training.loop import TrainState
from dpscope.launch.training.resume import Resumption, resumption
from dpscope.launch.training.stop_agreement import StopAgreement, host_group
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.training import CheckpointDescription
from dpscope.profiling.store.errors import DpscopeError


class TrainCheckpoints:
    """Saves a training after every epoch, every so many steps, and after any step when a process of it is told to stop.

    These are the hooks of its loop. Every process of its job has one.
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
        """What differs because the training was begun under other conditions."""
        return self._training.findings

    def go_on(self, state: TrainState) -> None:
        """Bring a training that has not begun to where its checkpoint is, if it has one; raises as `resumption` does."""
        found = resumption(self._job)
        if found is not None:
            self._take_over(state, found)
        self._check_same_place(state)
        if self._place.rank == 0:
            self._folder.remove_unfinished()

    def pause_after_step(self, state: TrainState) -> bool:
        """Whether a checkpoint is due, or a process was told to stop."""
        self._stopping = self._agreement.reached()
        every = self._training.config.checkpoint_steps
        return self._stopping or (every is not None and state.steps % every == 0)

    def paused(self, state: TrainState) -> bool:
        """Save the training in the middle of an epoch; whether a process was told to stop."""
        self._save(state, best=False)
        return self._stopping

    def after_epoch(self, state: TrainState) -> bool:
        """Save the epoch's end; whether a process was told to stop."""
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
        """Raise DpscopeError unless every process of the job goes on from the same place."""
        if self._group is None:
            return
        places: list[tuple[int, int] | None] = [None] * self._place.world_size
        distributed.all_gather_object(places, (state.epochs, state.steps), group=self._group)
        if len(set(places)) != 1:
            raise DpscopeError(
                f"{self._folder.path}: the processes read different checkpoints there; --out must be a folder that all "
                "nodes share"
            )
