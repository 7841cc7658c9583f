"""One rank of benchmarks/attached_scripts.py: a script from its first line to its last, bare and
attached by turns.

torchrun ... benchmarks/attached_rank.py OUT TURNS SCRIPT [ARGUMENTS]

TURNS is JSON, for each run "bare", "attached" or "blocks", and a port. Where the clocks stood at
the end of each step of run K goes to OUT/<K>_<rank>.json, as [wall clock, processor time of the
thread] in nanoseconds; an attached one's run folder is OUT/run<K>.

"blocks" is one attached run in which dpscope is taken out of the steps and put back every
BLOCK_STEPS of them: what lies in the model's class and among torch's hooks of optimizers. The
clocks are read before each optimizer's step, where that is done.
"""

import contextlib
import gc
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dpscope.launch.attach.script import run_script
from dpscope.profiling.attached.model_calls import ModelCalls
from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings

WARMUP = 10
BLOCK_STEPS = 8
LEFT_OUT = 4  # of them, its first: there the switch itself and the caches that it emptied show
ENDLESS = 1_000_000  # timed steps: the script ends before, within the timed window


Clocks = list[tuple[int, int]]


def run(
    command: list[str], ended: Callable[[str], None], read: Callable[..., None] | None = None
) -> Clocks:
    """Run the script without its output; the clocks at the end of each step of its first optimizer,
    or where `read` is called.
    """
    first: list[Optimizer] = []
    clocks_ns: Clocks = []

    def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if not first:
            first.append(optimizer)
        if first[0] is optimizer:
            clocks_ns.append((time.perf_counter_ns(), time.thread_time_ns()))
            if read is not None:
                read(len(clocks_ns))

    hook = (
        register_optimizer_step_post_hook if read is None else register_optimizer_step_pre_hook
    )(stepped)
    gc.collect()  # the last run's is not this one's to collect
    with contextlib.redirect_stdout(io.StringIO()):
        run_script(command, ended)
    hook.remove()
    return clocks_ns


def run_attached(command: list[str], out: Path, blocks: bool = False) -> Clocks:
    """The same, attached to as `python -m dpscope.launch.attach` does it."""
    notes: list[str] = []
    session = Session(
        AttachSettings(out, " ".join(command), warmup_steps=WARMUP, steps=ENDLESS, traced_steps=0),
        notes.append,
    )
    clocks_ns = run(command, session.close, Switch() if blocks else None)
    assert session.saved, notes
    return clocks_ns


class Switch:
    """Takes dpscope out of every second block of steps after the warm-up: `called` with each step's
    number, from 1.
    """

    def __init__(self) -> None:
        self._hooks = dict(_global_optimizer_post_hooks)
        self._calls: ModelCalls | None = None
        self._modules: list[nn.Module] = []
        assert self._hooks, "nothing is attached"

    def __call__(self, step: int) -> None:
        if step <= WARMUP or (step - WARMUP) % BLOCK_STEPS:
            return
        if self._calls is None:
            (self._calls,) = (found for found in gc.get_objects() if type(found) is ModelCalls)
            self._modules = self._calls.modules
        _global_optimizer_post_hooks.clear()
        self._calls.stop()
        if block_is_attached((step - WARMUP) // BLOCK_STEPS):
            _global_optimizer_post_hooks.update(self._hooks)
            self._calls.watch(self._modules)


def block_is_attached(index: int) -> bool:
    """Of blocks from 1 on: A B B A."""
    return index % 4 in (0, 1)


def main() -> None:
    out, turns, command = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # each run makes a store, at its own port
    for index, (way, port) in enumerate(turns):
        os.environ["MASTER_PORT"] = port
        assert not _global_optimizer_post_hooks, "the last run left a hook"
        if way == "bare":
            clocks_ns = run(command, lambda how: None)
        else:
            clocks_ns = run_attached(command, out / f"run{index}", blocks=way == "blocks")
        (out / f"{index}_{os.environ['RANK']}.json").write_text(json.dumps(clocks_ns))


if __name__ == "__main__":
    main()
