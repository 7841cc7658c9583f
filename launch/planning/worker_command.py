"""The command that measures one cell by hand, in a folder that need not exist yet. Imports no torch."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dpscope.launch.planning.cells import threads_per_process
from dpscope.launch.planning.run_config import flag_name
from dpscope.profiling.records.config import MAY_CHANGE, Measurement, Optimizer, ResolvedConfig, RunConfig, Workload
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.settings import idle_settings, settings_of

WORKER_SETTINGS = tuple(
    name
    for part in (Workload, Optimizer, Measurement)
    for name in part.__struct_fields__
    if name not in MAY_CHANGE  # only a sweep needs them; the rest of a run's settings is in the cell
)


def standalone_worker_command(config: ResolvedConfig, cell: Cell, repeat: int, out: Path) -> list[str]:
    """torchrun and a worker with flags for everything in which `config`, which is resolved, departs from the defaults.

    The threads are those of the whole run, which a worker that sees one cell cannot know.
    """
    strategy = cell.traits.stands_for or cell.strategy
    flags = ["--strategy", strategy, "--batch-size", str(cell.batch_size)]
    flags += ["--devices", str(cell.devices)] if cell.traits.threaded else []
    left_out = {*idle_settings(config), *(["amp"] if cell.options.amp else [])}
    flags += _flags(config, RunConfig(), [name for name in WORKER_SETTINGS if name not in left_out])
    flags += _flags(cell.options, CellOptions(), CellOptions.__struct_fields__)
    flags += ["--threads", str(threads_per_process(config.matrix))]
    return [
        sys.executable,
        *("-m", "torch.distributed.run", *_meeting(cell.nodes), f"--nproc-per-node={cell.processes // cell.nodes}"),
        *("-m", "dpscope.launch.worker", "--out", str(out), *flags, "--repeat", str(repeat)),
    ]


def _meeting(nodes: int) -> tuple[str, ...]:
    """How torchrun's processes meet; over several nodes the same command is given on each, with the first one's name."""
    if nodes == 1:
        return ("--standalone",)
    return (f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST0:29500", "--rdzv-id=1")


def _flags(chosen: msgspec.Struct, defaults: msgspec.Struct, names: Sequence[str]) -> list[str]:
    values, usual = settings_of(chosen), settings_of(defaults)
    flags: list[str] = []
    for name in names:
        if values[name] != usual[name]:
            flags += [flag_name(name)] if values[name] is True else [flag_name(name), str(values[name])]
    return flags
