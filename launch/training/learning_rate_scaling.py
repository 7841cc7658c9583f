"""By what the learning rate follows the batch. Imports no torch."""

import math

from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.training import LearningRateScaling, TrainConfig


def scaled_learning_rate(config: TrainConfig, cell: Cell) -> float:
    """The rate a cell learns with, before warm-up and milestones."""
    return config.optimizer.learning_rate * scaling_factor(config.learning_rate_scaling, batch_growth(config, cell))


def batch_growth(config: TrainConfig, cell: Cell) -> int:
    """A cell's global batch over that of the single device it is compared with: 1 under strong scaling."""
    return cell.devices if config.matrix.scaling == "weak" else 1


def scaling_factor(scaling: LearningRateScaling, growth: float) -> float:
    """By what a learning rate grows when the global batch does.

    linear: P. Goyal et al., Accurate, Large Minibatch SGD (arXiv:1706.02677), which holds while batches are small against
    the gradient's noise; sqrt: A. Krizhevsky, One weird trick (arXiv:1404.5997), which keeps the noise's variance.
    """
    return {"none": 1.0, "sqrt": math.sqrt(growth), "linear": growth}[scaling]
