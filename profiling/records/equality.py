"""The types of files of `dpscope equal`: settings, jobs, and the record of each process. Imports no
torch.

R/equality/settings.json                       EqualitySettings, written before anything runs
R/equality/<cell>/log.txt                      of the cell's torchrun job
R/equality/<cell>/<training>/rank_<r>.json     RankRecord
R/equality/<cell>/<training>/rank_<r>.npz      arrays, named below
R/equality.json                                the comparison, written by analysis

Arrays of a process that trained k steps on P parameters, S samples in all, in the order of
RankRecord's lists:

loss                      k        float64: mean over the process's samples, before the step
gradient_hash, weight_hash      k x P  uint64: of all bytes of a tensor; equal hashes count as equal bits
gradient_norm, weight_norm      k x P  float64: Euclidean norms of whole tensors
gradient.<p>, weight.<p>  k x m    the stored elements of parameter p: all, or STORED_ELEMENTS drawn once for all trainings;
                                   gradients as the optimizer gets them (reduced), weights after the step
sample_step, sample_index  S       a row for each sample that the loader handed out: its step and its index in the data set
"""

from pathlib import Path
from typing import Literal

from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.quantities import Amount, Count, Positive
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.stored import Stored

EQUALITY_FOLDER = "equality"
EQUALITY_NAME = "equality.json"

STORED_ELEMENTS = 2048  # of a parameter and step; fewer if it has fewer

Precision = Literal["float32", "float64"]
TrainingKind = Literal["compared", "rounding"]
"""k steps from the seed: `compared` is the strategy itself. `rounding` repeats the reference with
each weight moved to a neighbouring number before the first step: its differences show how rounding
grows.
"""


class EqualityJob(Stored, frozen=True):
    """One torchrun job: a cell and its consecutive trainings."""

    cell: Cell
    trainings: tuple[TrainingKind, ...]

    def folder(self, out: Path) -> Path:
        return out / EQUALITY_FOLDER / self.cell.name


class EqualityConfig(Stored, frozen=True):
    """The settings shared with `dpscope run`; `matrix.batch_sizes` holds only the global batch."""

    workload: Workload
    optimizer: Optimizer
    matrix: ResolvedMatrix
    steps: Positive
    timeout_s: Amount  # of one strategy's job


class EqualitySettings(Stored, frozen=True):
    """All settings of a comparison, resolved."""

    config: EqualityConfig
    device: Literal["cuda", "cpu"]
    threads_per_process: Positive
    precision: Precision
    jobs: tuple[EqualityJob, ...]  # the reference first

    @property
    def devices(self) -> int:
        """Devices of the strategies that use several."""
        return self.config.matrix.counts[0]

    @property
    def global_batch_size(self) -> int:
        return self.config.matrix.batch_sizes[0]

    @property
    def steps(self) -> int:
        return self.config.steps


class ParameterRecord(Stored, frozen=True):
    """A trained parameter, with its name in the unwrapped model."""

    name: str
    elements: Count
    stored: Count  # elements stored at every step


class RankRecord(Stored, frozen=True):
    """`rank_<r>.json`: describes the arrays in `rank_<r>.npz`."""

    rank: Count
    steps: Positive
    parameters: tuple[ParameterRecord, ...]
    random_layers: tuple[str, ...]  # such as dropout, switched off


def rank_paths(training: Path, rank: int) -> tuple[Path, Path]:
    """The record and the arrays of one process of a training, whose folder is named after its
    kind.
    """
    return training / f"rank_{rank}.json", training / f"rank_{rank}.npz"
