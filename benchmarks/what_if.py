"""How wrong `dpscope whatif` is on public series of step times that were held out. Prints a line for each level.

python benchmarks/what_if.py [RUN ...]      # every measured DDP cell of the runs is replayed, and the others predicted from it
"""

import sys
import time
from pathlib import Path

from what_if_replay import lines as replay_lines

from dpscope.analysis.what_if.step_model import TableFit, fit_table, predict_step
from dpscope.analysis.what_if.step_table import MeasuredStep, read_step_table
from dpscope.analysis.what_if.table_answer import Score, score

SERIES = Path(__file__).resolve().parents[1] / "tests" / "data" / "scaling"
FITTED_UP_TO = 8


def main() -> None:
    sys.stdout.write(
        "series, fitted on -> predicted: step (worst) | overhead | exposed | inside 90% | half width | simple rules"
        + "\n"
    )
    for name in ("cifar10", "imagenet"):
        rows = read_step_table(SERIES / f"ddp_t4_{name}.csv")
        for first, last in ((9, 16), (13, 16), (16, 16)):
            _line(f"T4 {name}", rows, FITTED_UP_TO, first, last)
        for most, first, last in ((4, 5, 8), (4, 9, 16), (2, 3, 4), (2, 5, 8), (2, 9, 16)):
            _line(f"T4 {name}", rows, most, first, last)
    for model in ("resnet50", "resnet101"):
        rows = [
            one
            for one in read_step_table(SERIES / "ddp_v100_pytorch_benchmark.csv")
            if ("model", model) in one.identity
        ]
        _line(f"V100 {model}", rows, 4, 8, 8)
        _line(f"V100 {model}", rows, 8, 16, 16)
    submitted = read_step_table(SERIES / "mlperf_ddp.csv")
    for identity in dict.fromkeys(one.identity for one in submitted):
        mine = [one for one in submitted if one.identity == identity]
        counts = sorted({one.ranks for one in mine})
        if len(counts) > 1:
            _line(f"MLPerf {' '.join(value for _, value in identity[:2])}", mine, counts[0], counts[1], counts[-1])
    for line in replay_lines([Path(one) for one in sys.argv[1:]]):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _line(name: str, rows: list[MeasuredStep], most: int, first: int, last: int) -> None:
    began = time.perf_counter()
    fit = fit_table([one for one in rows if one.ranks <= most])
    took = time.perf_counter() - began
    held = [one for one in rows if first <= one.ranks <= last]
    where = f"{name}, up to {most} -> {first} to {last}"
    if not isinstance(fit, TableFit):
        sys.stdout.write(f"{where}: refused: {fit}" + "\n")
        return
    pairs = [(one, predict_step(fit, one)) for one in held]
    refused = {one.reason for _, one in pairs if one.step_us is None}
    if refused:
        sys.stdout.write(f"{where}: refused: {'; '.join(map(str, refused))}" + "\n")
        return
    sys.stdout.write(f"{where}: {_text(score(fit, pairs))} | {len(held)} rows, fit {took:.1f} s" + "\n")


def _text(one: Score) -> str:
    rules = ", ".join(f"{rule} {_percent(off)}" for rule, off in one.rules.items())
    return " | ".join(
        (
            f"{_percent(one.step_error)} ({_percent(one.worst_step_error)})",
            *map(_percent, (one.overhead_error, one.exposed_error, one.inside, one.half_width)),
            rules,
        )
    )


def _percent(share: float | None) -> str:
    return "NA" if share is None else f"{100 * share:.1f}%"


if __name__ == "__main__":
    main()
