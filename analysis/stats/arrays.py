"""The array type of what is fitted and replayed."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
