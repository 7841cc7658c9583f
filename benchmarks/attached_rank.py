"""One rank of benchmarks/attached_scripts.py: a script from its first line to its last, bare and attached by turns.

torchrun ... benchmarks/attached_rank.py OUT TURNS SCRIPT [ARGUMENTS]

TURNS is JSON, for each run "bare" or "attached" and a port of its own. Where the clocks stood at the end of each step of run K
goes to OUT/<K>_<rank>.json, as [wall clock, processor time] in nanoseconds; an attached one's run folder is OUT/run<K>.
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
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, register_optimizer_step_post_hook

from dpscope.launch.attach.script import run_script
from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings

WARMUP = 10
ENDLESS = 1_000_000  # timed steps: the script ends before, within the timed window, and nothing is traced


def run(command: list[str], ended: Callable[[str], None]) -> list[tuple[int, int]]:
    """Run the script without its output; the clocks at the end of each step of its first optimizer."""
    first: list[Optimizer] = []
    clocks_ns: list[tuple[int, int]] = []

    def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if not first:
            first.append(optimizer)
        if first[0] is optimizer:
            clocks_ns.append((time.perf_counter_ns(), time.process_time_ns()))

    hook = register_optimizer_step_post_hook(stepped)
    gc.collect()  # the last run's is not this one's to collect
    with contextlib.redirect_stdout(io.StringIO()):
        run_script(command, ended)
    hook.remove()
    return clocks_ns


def run_attached(command: list[str], out: Path) -> list[tuple[int, int]]:
    """The same, attached to as `python -m dpscope.launch.attach` does it."""
    notes: list[str] = []
    session = Session(AttachSettings(out, " ".join(command), warmup_steps=WARMUP, steps=ENDLESS), notes.append)
    session.listen()
    clocks_ns = run(command, session.close)
    assert session.saved, notes
    return clocks_ns


def main() -> None:
    out, turns, command = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # each run makes a store, at a port of its own
    for index, (way, port) in enumerate(turns):
        os.environ["MASTER_PORT"] = port
        assert not _global_optimizer_post_hooks, "the last run left a hook"
        clocks_ns = run_attached(command, out / f"run{index}") if way == "attached" else run(command, lambda how: None)
        (out / f"{index}_{os.environ['RANK']}.json").write_text(json.dumps(clocks_ns))


if __name__ == "__main__":
    main()
