"""How wrong the method is on the run's other cells: each is predicted from the base and compared
with its measured time.
"""

import math
from dataclasses import dataclass, replace
from statistics import median

import msgspec
import numpy as np

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.what_if.band import ASSUMED_ERROR, NINE_OF_TEN
from dpscope.analysis.what_if.bases import Question, devices_per_node
from dpscope.analysis.what_if.predict import predict
from dpscope.analysis.what_if.scenario import DEFAULT_BUCKET, Prediction, Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import CellOptions

_ASSUMED_CELLS = 4.0  # cells that the assumed error counts for


@dataclass(frozen=True)
class CellError:
    """A measured cell and its prediction, which does not use its time."""

    cell: str
    variant: str
    measured_us: float
    prediction: Prediction
    same_us: float  # the base's own step

    @property
    def error(self) -> float | None:
        predicted_us = self.prediction.step_us
        return None if predicted_us is None else predicted_us / self.measured_us - 1


@dataclass(frozen=True)
class CellErrors:
    """Of every other cell of a run that a scenario describes."""

    cells: tuple[CellError, ...]

    @property
    def known(self) -> list[CellError]:
        return [cell for cell in self.cells if cell.error is not None]

    @property
    def half_band(self) -> float | None:
        """Half a 90% band of the method, in logarithms: the assumed one corrected by these errors;
        None without any.
        """
        if not self.known:
            return None
        squares = _ASSUMED_CELLS * (ASSUMED_ERROR / NINE_OF_TEN) ** 2
        squares += sum(math.log1p(judged.error or 0.0) ** 2 for judged in self.known)
        return NINE_OF_TEN * math.sqrt(squares / (_ASSUMED_CELLS + len(self.known)))

    @property
    def sentence(self) -> str:
        """The method's error, next to that of assuming that nothing changes."""
        if not self.cells:
            return (
                f"Error: {ASSUMED_ERROR:.0%} assumed; no other cell of this run tests the method."
            )
        if not (errors := [abs(judged.error or 0.0) for judged in self.known]):
            return f"Error: {ASSUMED_ERROR:.0%} assumed; none of {counted(len(self.cells), 'other cell')} could be predicted."
        same = [abs(judged.same_us / judged.measured_us - 1) for judged in self.known]
        return (
            f"Error on {counted(len(errors), 'other cell')} of this run: median {median(errors):.1%}, worst {max(errors):.1%}, "
            f"included in the bands. Assuming that nothing changes: median {median(same):.1%}."
        )


def with_cell_errors(question: Question) -> tuple[Question, CellErrors]:
    """The question with the band that its run's own cells give, and their errors."""
    if question.run is None or question.cell is None:
        return question, CellErrors(())
    errors = errors_of_cells(question, question.run)
    return replace(question, base=replace(question.base, method_error=errors.half_band)), errors


def errors_of_cells(question: Question, run: RunData) -> CellErrors:
    """Every other measured cell of the base's strategy on several devices that a scenario of it
    describes, predicted.
    """
    assert question.cell is not None
    options, strategy = _unvaried(question.cell.cell.options), question.cell.cell.strategy
    alike = [
        cell for cell in run.measured if cell.cell.strategy == strategy and not cell.no_scaling
    ]
    several = [cell for cell in alike if cell.cell.devices > 1]
    others = [
        cell
        for cell in several
        if cell.cell.name != question.base.name and _unvaried(cell.cell.options) == options
    ]
    return CellErrors(tuple(_cell_error(question, data) for data in others if data.step_samples()))


def _unvaried(options: CellOptions) -> CellOptions:
    """A cell's options without those that a scenario sets: cells that differ in what is left are
    other programs.
    """
    return msgspec.structs.replace(
        options, overlap="on", bucket_mb=None, comm_hook="none", accumulate=1
    )


def _cell_error(question: Question, data: Job) -> CellError:
    base, cell = question.base, data.cell
    scenario = Scenario(
        devices=cell.devices,
        per_node=devices_per_node(data),
        batch_size=cell.batch_size,
        bucket_mb=DEFAULT_BUCKET if cell.options.bucket_mb is None else cell.options.bucket_mb,
        overlap=cell.options.overlap == "on",
        hook=cell.options.comm_hook,
        accumulate=cell.options.accumulate,
    )
    return CellError(
        cell=cell.name,
        variant=cell.variant,
        measured_us=float(np.median(np.concatenate(data.step_samples()))),
        prediction=predict(base, scenario, question.costs),
        same_us=base.step_us,
    )
