"""How often the interval of `contention_ratio` holds a planted slowdown: 200 generated jobs for each factor.

`python benchmarks/contention.py [CASES]` from the root of the repository prints a line per factor, with and without input sizes.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).parents[1]))

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.contended import Contended, write_contended_job

FACTORS = (1.0, 1.05, 1.3)


def line(factor: float, shapes: bool, cases: int) -> str:
    """Shares of the intervals that hold the factor, and that hold 1."""
    inside, significant, widths, errors = 0, 0, [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(cases):
            options = Contended(factor=factor, shapes=shapes, seed=1000 + seed)
            found = analyze_traces(write_contended_job(Path(folder), options)).contentions.every
            if found is None or found.ratio_interval is None:
                continue
            low, high = found.ratio_interval
            inside += low <= factor <= high
            significant += found.is_significant
            widths.append((high - low) / 2)
            errors.append(abs(found.ratio - factor))
    share = binomtest(inside, cases).proportion_ci(0.95)
    sizes = "with input sizes" if shapes else "without input sizes"
    return (
        f"factor {factor:.2f}, {sizes}: {inside} of {cases} inside (95% interval {share.low:.0%} to {share.high:.0%}), "
        f"significant in {significant}, median half width {np.median(widths):.3f}, median error {np.median(errors):.4f}"
    )


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for known in (True, False):
        for planted in FACTORS:
            sys.stdout.write(f"{line(planted, known, wanted)}\n")
            sys.stdout.flush()
