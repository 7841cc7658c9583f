"""What several processes of a script did together, and which cells a script still lacks."""

import shlex
from collections.abc import Sequence

import pandas as pd

from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, Manifest, RankResult


def trained_alone(cell: Cell, steps: pd.DataFrame) -> Finding:
    """An error: no process of the cell communicated in the traced steps."""
    return AttachCode.TRAINED_ALONE.finding(
        f"{cell.name}: each process trained alone: no collective in {counted(steps['step'].nunique(), 'traced step')} of "
        f"{counted(cell.devices, 'process')}, and no DDP or FSDP around the model"
    )


def input_findings(cell: Cell, ranks: Sequence[RankResult]) -> list[Finding]:
    """A warning if processes of one job trained on the same samples, by the checksums of their first inputs."""
    attached = [rank.attached for rank in ranks if rank.attached is not None]
    if cell.traits.one_process or len(attached) < 2:
        return []
    checksums = [one.inputs for one in attached if one.inputs is not None]
    distinct = len(set(checksums)) if len(checksums) == len(attached) else len(attached)
    if any(one.model_parallel for one in attached):
        return [
            AttachCode.MODEL_PARALLEL.finding(
                f"{cell.name}: parameters are sharded without FSDP{_same(distinct, attached)}"
            )
        ]
    if distinct == len(attached):
        return []
    code = AttachCode.MODEL_PARALLEL if cell.traits.transport == "unknown" else AttachCode.SAME_INPUTS
    return [code.finding(f"{cell.name}: {_inputs(distinct, len(attached))}")]


def _same(distinct: int, attached: Sequence[object]) -> str:
    return f"; {_inputs(distinct, len(attached))}" if distinct < len(attached) else ""


def _inputs(distinct: int, processes: int) -> str:
    inputs = "the same inputs" if distinct == 1 else f"{distinct} different inputs"
    return f"{processes} processes trained on {inputs} in the first steps"


def no_single_device(manifest: Manifest, without: Sequence[str], out: str) -> list[Finding]:
    """A warning if these cells of a script have no single-device cell to be compared with."""
    if manifest.script is None or not without:
        return []
    command = f"dpscope attach --devices single --out {shlex.quote(out)} -- {manifest.script}"
    return [
        AttachCode.NO_SINGLE_DEVICE.finding(
            f"{', '.join(without)}: no single-device cell with the same options, so efficiency and speedup are missing",
            f"run the script on one device without torchrun, into the same folder: {command}",
        )
    ]
