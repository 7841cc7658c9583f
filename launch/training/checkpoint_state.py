"""The checkpoints of a running training: what is saved of it, collected from all processes and
restored in each.

Everything is a tensor or a plain Python value, so that `torch.load(weights_only=True)` reads it:

    description    CheckpointDescription, as plain values model          state of the unwrapped
    model, with the same keys under every strategy and precision optimizer, schedule, scaler ranks
    per rank: random generators, buffers that DDP does not synchronise epochs         list of
    EpochRecord, as plain values

Tensors that FSDP shards are saved whole, so that a checkpoint is one file.
`torch.distributed.checkpoint` gathers and distributes the model's. It cannot load every optimizer
(torch 2.14: `set_optimizer_state_dict` raises for SGD without momentum and for parameters without
gradient), so the optimizer's tensors are gathered and distributed here.
"""

import math
import pickle
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dpscope.launch.jobs.process_group import all_ranks_numbers, gather_states
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.training.cells import TrainJob
from dpscope.launch.training.loop import TrainState
from dpscope.launch.workload.strategies import is_sharded
from dpscope.profiling.records.training import CheckpointDescription, EpochRecord
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import remove_temporaries

_PAUSE_S = 0.5
_LONGEST_PAUSE_STEPS = 50  # a device's queue hides how long steps take

Content = dict[str, Any]


class TrainCheckpoints:
    """Saves a training after every epoch and restores it; agrees on when it stops.

    Every process of the job has one and calls the same methods in the same order. Rank 0 writes.
    """

    def __init__(
        self,
        job: TrainJob,
        begun: CheckpointDescription,
        place: TorchrunPlace,
        devices: tuple[torch.device, ...],
        stop: StopRequest,
    ) -> None:
        """`begun` describes the training before its first step; `devices` are this process's."""
        self._job, self._folder, self._training = job, job.checkpoints, begun
        self._place, self._devices = place, devices
        self._group = host_group()
        self._agreement = StopAgreement(stop, self._group)

    def go_on(self, state: TrainState) -> None:
        """Restore a training that has not begun from its checkpoint, if it has one; raises as
        `find_resumption` does.

        Raises DpscopeError unless every process of the job continues after the same epoch.
        """
        if (had := self._job.find_resumption()) is not None:
            content = read_checkpoint(self._folder.last)
            state.step.learn_graph()
            self._restore(state, had, content)
        if self._group is not None:
            places = all_ranks_numbers((state.epochs,), torch.device("cpu"), self._group)
            if len(set(places)) != 1:
                raise DpscopeError(
                    f"{self._folder.path}: the processes read different checkpoints there; --out must be a folder that all "
                    "nodes share"
                )
        if self._place.rank == 0:
            remove_temporaries(self._folder.path)

    def stopped_after_step(self) -> bool:
        """Whether a process was requested to stop. On CUDA the step is queued, not finished."""
        return self._agreement.reached()

    def after_epoch(self, state: TrainState) -> bool:
        """Save the end of an epoch; returns whether a process was requested to stop."""
        *earlier, last = (record.test_accuracy for record in state.records)
        self._save(state, best=last > max(earlier, default=-math.inf))
        return self._agreement.settle()

    def _save(self, state: TrainState, best: bool) -> None:
        wrapped, rank = state.step.model, self._place.rank
        model = whole_model_state(state.model, is_sharded(wrapped))
        optimizer = whole_optimizer_state(state.step.optimizer)
        apart = isinstance(wrapped, DistributedDataParallel) and not wrapped.broadcast_buffers
        own = {
            "generators": rng_states(self._devices),
            "buffers": {name: buffer.cpu() for name, buffer in state.model.named_buffers()}
            if apart
            else None,
        }
        ranks = [own] if self._group is None else gather_states(own, self._group)
        if rank > 0:
            return
        description = msgspec.structs.replace(
            self._training,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            epochs=state.epochs,
            test_accuracy=state.records[-1].test_accuracy,
        )
        content = {
            "description": msgspec.to_builtins(description),
            "model": model,
            "optimizer": optimizer,
            "schedule": state.schedule.state_dict(),
            "scaler": state.step.scaler.state_dict(),
            "ranks": ranks,
            "epochs": msgspec.to_builtins(state.records),
        }
        self._folder.write(description, lambda file: torch.save(content, file), best)

    def _restore(self, state: TrainState, had: CheckpointDescription, content: Content) -> None:
        """Restore a checkpoint's state in a process that has not begun; raises DpscopeError if the
        model is another one.
        """
        own = content["ranks"][self._place.rank]
        try:
            load_model_state(state.model, content["model"], is_sharded(state.step.model))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise DpscopeError(
                f"{self._folder.last} does not fit the model: {reason[:300]}; start over with --fresh"
            ) from error
        if own["buffers"] is not None:
            state.model.load_state_dict(own["buffers"], strict=False)
        state.epochs = had.epochs
        state.records = msgspec.convert(content["epochs"], list[EpochRecord])
        state.step.scaler.load_state_dict(content["scaler"])
        load_optimizer_state(state.step.optimizer, content["optimizer"])
        state.schedule.load_state_dict(content["schedule"])
        state.sums.clear()  # `learn_graph` has added its samples
        set_rng_states(own["generators"], self._devices)


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
    """Agreement of a job's processes on whether any of them was requested to stop, so that all stop
    after the same step.

    About twice a second, after the same steps, they exchange their states by gloo during the next
    step: no device waits, and they agree within a second or two steps after a signal. A single
    process uses its own state.
    """

    def __init__(self, request: StopRequest, group: distributed.ProcessGroup | None) -> None:
        """`group` is a `host_group`."""
        self._request, self._group = request, group
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
        work = distributed.all_reduce(
            state, distributed.ReduceOp.MAX, group=self._group, async_op=True
        )
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


def whole_model_state(model: nn.Module, sharded: bool) -> Content:
    """State of a model. Every process must call this; of a sharded model, rank 0 gets all and the
    others nothing.
    """
    if not sharded:
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def load_model_state(model: nn.Module, state: Content, sharded: bool) -> None:
    """Restore the state of a model, which every process has whole; raises RuntimeError if it is
    another model's.
    """
    if not sharded:
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def whole_optimizer_state(optimizer: Optimizer) -> Content:
    """State of an optimizer. Every process must call this; only rank 0 gets the sharded tensors,
    gathered on the host.
    """
    keep = not distributed.is_initialized() or distributed.get_rank() == 0

    def gathered(value: Any) -> Any:
        if not hasattr(value, "full_tensor"):
            return value
        full = value.full_tensor()
        return full.cpu() if keep else None

    state = optimizer.state_dict()
    values = {
        place: {name: gathered(one) for name, one in held.items()}
        for place, held in state["state"].items()
    }
    return {**state, "state": values}


def load_optimizer_state(optimizer: Optimizer, state: Content) -> None:
    """Restore the state of an optimizer, which every process has whole: tensors are sharded as
    their parameters are.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def distributed_like(value: Any, parameter: Any) -> Any:
        if not (
            hasattr(parameter, "full_tensor")
            and isinstance(value, Tensor)
            and value.shape == parameter.shape
        ):
            return value
        from torch.distributed.tensor import distribute_tensor

        own = value.to(parameter.device)
        return distribute_tensor(
            own, parameter.device_mesh, parameter.placements, src_data_rank=None
        )

    values = {
        place: {name: distributed_like(one, parameters[place]) for name, one in held.items()}
        for place, held in state["state"].items()
        if place < len(parameters)
    }
    optimizer.load_state_dict({**state, "state": {**state["state"], **values}})


def read_checkpoint(path: Path) -> Content:
    """The content of a checkpoint that was verified; raises DpscopeError when it holds what torch
    does not load safely.
    """
    try:
        content: Content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DpscopeError(
            f"{path}: the state of the model holds other things than tensors and plain values, which are not loaded "
            f"({str(error).splitlines()[0]}); start over with --fresh, and return only weights from get_extra_state"
        ) from error
    return content


def rng_states(devices: Sequence[torch.device]) -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators, and of each CUDA device among `devices`,
    in their order.
    """
    numpy_state: Any = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**inner, "key": inner["key"].tolist()}},
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
    }


def set_rng_states(states: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Restore what `rng_states` returned; further CUDA devices keep their states."""
    random.setstate(states["python"])
    inner = states["numpy"]["state"]
    key = np.array(inner["key"], dtype=np.uint32)
    np.random.set_state({**states["numpy"], "state": {**inner, "key": key}})
    torch.set_rng_state(states["torch"])
    cuda = [device for device in devices if device.type == "cuda"]
    for device, state in zip(cuda, states["cuda"], strict=False):
        torch.cuda.set_rng_state(state, device)
