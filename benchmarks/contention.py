"""How often the interval of `contention_ratio` holds a planted slowdown: 200 generated jobs for
each factor.

`python benchmarks/contention.py [CASES]` from the root of the repository prints a line per factor,
with and without input sizes. `python benchmarks/contention.py --measured` trains with DDP on two
CPU processes instead, with and without overlap: the cost read from the kernels of the run with
overlap, next to how much less compute the run without overlap takes. It takes two minutes.
"""

import json
import math
import subprocess
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


def measured(folder: Path) -> str:
    """The cost of hidden communication on a CPU whose compute shares its cores, by kernels and by
    `--overlap off`.
    """
    command = (sys.executable, "-m", "dpscope.launch.cli")
    settings = "--device cpu --devices 2 --strategy ddp --model gpt_5m --bucket-mb 1 --overlap on,off --batch-size 8"
    counts = "--steps 6 --traced-steps 6 --repeats 3"
    run = str(folder / "run")
    subprocess.run(
        (*command, "run", *settings.split(), *counts.split(), "--out", run),
        check=True,
        capture_output=True,
    )
    printed = subprocess.run(
        (*command, "analyze", run, "--format", "json"), check=True, capture_output=True
    ).stdout
    overlapped, after = json.loads(printed)["cells"]
    halves = [(one["compute_high_us"] - one["compute_low_us"]) / 2 for one in (overlapped, after)]
    less_us = overlapped["compute_us"] - after["compute_us"]
    cost_us, low_us, high_us = (overlapped[f"contention{end}_us"] for end in ("", "_low", "_high"))
    half_us = math.hypot(*halves)
    agree = low_us - half_us <= less_us <= high_us + half_us
    return (
        f"hidden {overlapped['hidden_us'] / 1e3:.1f} ms a step: costs {cost_us / 1e3:.1f} ms by its kernels "
        f"({low_us / 1e3:.1f} to {high_us / 1e3:.1f}), compute is {less_us / 1e3:.1f} ms shorter without overlap "
        f"(± {half_us / 1e3:.1f}): {'they agree' if agree else 'they DISAGREE'}"
    )


if __name__ == "__main__":
    if "--measured" in sys.argv:
        with tempfile.TemporaryDirectory() as place:
            sys.stdout.write(f"{measured(Path(place))}\n")
        sys.exit()
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for known in (True, False):
        for planted in FACTORS:
            sys.stdout.write(f"{line(planted, known, wanted)}\n")
            sys.stdout.flush()
