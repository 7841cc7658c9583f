"""The command that measures one cell by hand, in a folder that need not exist yet. Imports no torch."""

import sys
from pathlib import Path

from dpscope.launch.planning.cells import threads_per_process
from dpscope.launch.planning.idle_settings import idle_fields
from dpscope.launch.planning.run_config import flag_name
from dpscope.profiling.records.run import Cell, CellOptions, ResolvedConfig, RunConfig

# What a worker takes from its cell, or what only a sweep needs.
_NOT_OF_A_WORKER = (
    "strategies",
    "devices",
    "batch_sizes",
    "batch_growth",
    "scaling",
    "download",
    "repeats",
    "timeout_s",
    "calibrate",
    "link",
    "target_efficiency",
    "amp_variants",
    *(field for field in CellOptions.__struct_fields__ if field != "amp"),
)


def standalone_worker_command(config: ResolvedConfig, cell: Cell, repeat: int, out: Path) -> list[str]:
    """torchrun and a worker with flags for everything in which `config`, which is resolved, departs from the defaults.

    The threads are those of the whole run, which a worker that sees one cell cannot know.
    """
    strategy = "dp" if cell.strategy == "dp-host" else cell.strategy
    flags = ["--strategy", strategy, "--batch-size", str(cell.batch_size)]
    flags += ["--devices", str(cell.devices)] if strategy == "dp" else []
    left_out = {*_NOT_OF_A_WORKER, *idle_fields(config), *(["amp"] if cell.options.amp else [])}
    flags += _flags(config, RunConfig(), [name for name in RunConfig.__struct_fields__ if name not in left_out])
    flags += _flags(cell.options, CellOptions(), CellOptions.__struct_fields__)
    flags += ["--threads", str(threads_per_process(config))]
    return [
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cell.processes}"),
        *("-m", "dpscope.launch.worker", "--out", str(out), *flags, "--repeat", str(repeat)),
    ]


def _flags(
    values: RunConfig | CellOptions, defaults: RunConfig | CellOptions, fields: list[str] | tuple[str, ...]
) -> list[str]:
    flags: list[str] = []
    for field in fields:
        value = getattr(values, field)
        if value != getattr(defaults, field):
            flags += [flag_name(field)] if value is True else [flag_name(field), str(value)]
    return flags
