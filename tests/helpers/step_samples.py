"""Step times drawn at random: cells whose repeats have a given spread."""

import numpy as np

from dpscope.analysis.stats.samples import Samples

STEPS = 15  # of a repeat
STEP_NOISE = 0.03
STEP_US = 1000.0
ALIKE = (0.05,) * 6  # six cells whose repeats spread alike...
UNLIKE = (0.01, 0.01, 0.02, 0.03, 0.05, 0.08)  # ...and six that do not


def drawn_cell(
    spread: float, repeats: int, generator: np.random.Generator, step_us: float = STEP_US
) -> list[Samples]:
    """Step times of a cell: each repeat has its own level, the steps in it their own noise, all
    normal.
    """
    levels = 1 + spread * generator.standard_normal(repeats)
    return [
        step_us * level * (1 + STEP_NOISE * generator.standard_normal(STEPS)) for level in levels
    ]
