"""Does a script's step take as long attached as bare, and as long as that of dpscope's own loop?
Five scripts.

    python benchmarks/attached_scripts.py [--block-pairs 600] [--pairs 12] [--scripts
    plain_loop,own_trainer] [--processes 1,2]

The scripts are those of tests/user_models/scripts, at widths at which a step of one process takes 5
to 10 ms. Each is measured by torchrun (gloo) with one process and with two, in two ways:

- blocks: the script runs once, attached to, and every few steps dpscope is taken out of them and put back, in the order A B B A.
  Bare and attached steps then use the same memory within some milliseconds of each other, so little is left between them but
  what dpscope does. A pair is two neighbouring blocks, without the first steps of each.
- whole runs: one process runs the script from its first line to its last again and again, bare and attached in the order A B B A.
  What dpscope does outside the steps would show here, too, but two runs differ by some percent anyhow. Compared are the steps
  that dpscope timed with the same steps of the bare run: each run's median. A pair is two runs side by side.

Two clocks are read at each of the first optimizer's steps, by a hook of
benchmarks/attached_rank.py: the wall clock, and the processor's time of the training's thread, in
which all of dpscope's work is done. Ranks are averaged. The result is the median of the pairs'
ratios with its 95% interval (bootstrap over pairs).

Of blocks, the processor's ratio is what the thread computes more in the attached one as a share of
the step by the wall clock: of two processes a third of the step is waiting for the other.

Within 1% is a script whose whole interval of blocks is, by the wall clock, or where noise makes
that interval wider by the processor's time, which other programs disturb less; and whose whole runs
do not show that it is above. Where the interval is too wide as well, nothing is decided: that is
printed, and is no pass. What dpscope stores of each step of a whole run must be what the hook saw,
but for some microseconds: the last line has the largest difference of a run's medians.

Last, the plain loop against `dpscope run` of the same model, batch size and optimizer, as separate
commands in the same order: by the wall clock, and for two processes the bytes that each rank
communicates in a step, which must be equal. Both train on a batch that is there: a loader of the
script's would be part of its steps.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# for the scripts' model, and what tests use too
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow.parquet

from benchmarks.attached_rank import BLOCK_STEPS, LEFT_OUT, WARMUP, block_is_attached
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.stats.samples import DRAWS, interval
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.ranks import free_port

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "user_models" / "scripts"
MOST_SHARE = 0.01
FEWEST_PAIRS = 6  # fewer all fall on one side by chance more often than 1 time in 20
SIZES: dict[str, tuple[str, ...]] = {
    "plain_loop": ("--epochs", "2", "--steps", "35", "--width", "800"),
    "accumulation": ("--steps", "70", "--width", "96"),
    "two_optimizers": ("--steps", "70", "--width", "2000", "--batch-size", "128"),
    "own_trainer": (
        "--epochs",
        "2",
        "--steps",
        "35",
        "--width",
        "800",
        "--batch-size",
        "32",
        "--workers",
        "0",
    ),
    "compiled_gpt": ("--steps", "70", "--width", "112", "--backend", "aot_eager"),
}
WIDTH = 1500  # of the plain loop compared with dpscope's own
FIRST_AND_SECOND = ((0, 1), (1, 0))  # by turns: A B B A

CLOCKS = ("wall clock", "processor")


@dataclass(frozen=True)
class Ratio:
    """The median of the pairs' ratios of a second step to a first, and the first's median.

    Its 95% interval, or the smallest and the largest of too few pairs for one.
    """

    first_us: float
    value: float
    low: float
    high: float
    pairs: int

    @property
    def decided(self) -> bool:
        return self.pairs >= FEWEST_PAIRS and (
            self.high <= 1 + MOST_SHARE or self.low > 1 + MOST_SHARE
        )

    @property
    def text(self) -> str:
        interval_name = "95%" if self.pairs >= FEWEST_PAIRS else "all"
        return (
            f"{self.value - 1:+.2%} ({interval_name}: {self.low - 1:+.2%} to {self.high - 1:+.2%})"
        )


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Of each pair's second step to its first."""
    logs = np.log([second / first for first, second in pairs])
    drawn = np.exp(np.median(np.random.default_rng(0).choice(logs, (DRAWS, len(logs))), axis=1))
    low, high = (
        interval(drawn)
        if len(pairs) >= FEWEST_PAIRS
        else (float(np.exp(logs.min())), float(np.exp(logs.max())))
    )
    first_us = statistics.median(first for first, _ in pairs)
    return Ratio(first_us, math.exp(float(np.median(logs))), low, high, len(pairs))


@dataclass(frozen=True)
class Compared:
    """A script's attached steps compared with its bare ones."""

    blocks: tuple[Ratio, ...]  # by each clock
    runs: tuple[Ratio, ...]
    # the largest difference between dpscope's median step of a run and the hook's
    difference_us: float

    @property
    def verdict(self) -> str:
        """By the blocks' wall clock if noise lets it, else by their processor's time; whole runs
        can only say no.
        """
        if any(ratio.decided and ratio.low > 1 + MOST_SHARE for ratio in self.runs):
            return "MORE THAN 1% in whole runs"
        for clock, ratio in zip(CLOCKS, self.blocks, strict=True):
            if ratio.decided:
                return (
                    f"{'within' if ratio.high <= 1 + MOST_SHARE else 'MORE THAN'} 1% by the {clock}"
                )
        return "not decided: noise is larger than 1%"


def compare_ways(script: str, processes: int, block_pairs: int, pairs: int) -> Compared:
    """A script's attached steps to its bare ones."""
    order = [
        ("bare", "attached")[one]
        for index in range(pairs + 1)
        for one in FIRST_AND_SECOND[index % 2]
    ]
    with tempfile.TemporaryDirectory() as folder:
        _run_turns(Path(folder, "runs"), order, processes, script)
        found = [
            _pair(Path(folder, "runs"), index, processes) for index in range(1, pairs + 1)
        ]  # the first: a rehearsal
        steps = WARMUP + (2 * block_pairs + 1) * BLOCK_STEPS
        epochs = ("--epochs", "1") if "--epochs" in SIZES[script] else ()
        _run_turns(
            Path(folder, "blocks"), ["blocks"], processes, script, *epochs, "--steps", str(steps)
        )
        blocks = _block_pairs(Path(folder, "blocks"), processes)
    return Compared(
        tuple(ratio_of([one[clock] for one in blocks]) for clock in (0, 1)),
        tuple(ratio_of([one[clock] for one, _ in found]) for clock in (0, 1)),
        max(difference_us for _, difference_us in found),
    )


def _run_turns(out: Path, ways: Sequence[str], processes: int, script: str, *further: str) -> None:
    out.mkdir()
    turns = json.dumps([(way, str(free_port())) for way in ways])
    torchrun = [sys.executable, "-m", "dpscope.launch.torchrun", f"--nproc-per-node={processes}"]
    rank = [
        str(ROOT / "benchmarks" / "attached_rank.py"),
        str(out),
        turns,
        str(SCRIPTS / f"{script}.py"),
    ]
    subprocess.run(
        [*torchrun, *rank, *SIZES[script], *further], check=True, stderr=subprocess.DEVNULL
    )


def _block_pairs(out: Path, processes: int) -> list[tuple[tuple[float, float], ...]]:
    """(bare, attached) microseconds a step of two neighbouring blocks, by each clock, averaged over
    ranks.
    """
    ranks = [json.loads((out / f"0_{rank}.json").read_text()) for rank in range(processes)]
    # of the step before the first block on
    ends_us = np.mean(ranks, axis=0)[WARMUP + BLOCK_STEPS - 1 :] / 1e3
    blocks = (len(ends_us) - 1) // BLOCK_STEPS
    last = ends_us[BLOCK_STEPS::BLOCK_STEPS][:blocks]
    # by block and clock
    steps_us = (last - ends_us[LEFT_OUT::BLOCK_STEPS][:blocks]) / (BLOCK_STEPS - LEFT_OUT)
    step_us = float(
        np.median(
            [steps_us[block, 0] for block in range(blocks) if not block_is_attached(block + 1)]
        )
    )
    pairs = []
    for first in range(0, blocks - 1, 2):
        bare, attached = sorted((first, first + 1), key=lambda block: block_is_attached(block + 1))
        more_us = steps_us[attached, 1] - steps_us[bare, 1]
        pairs.append(((steps_us[bare, 0], steps_us[attached, 0]), (step_us, step_us + more_us)))
    return pairs


def _pair(out: Path, index: int, processes: int) -> tuple[list[tuple[float, float]], float]:
    """(bare, attached) by each clock, averaged over ranks, and by how much dpscope's own wall clock
    is off at most.
    """
    bare, attached = (2 * index + FIRST_AND_SECOND[index % 2].index(way) for way in (0, 1))
    medians, off = [], 0.0
    for rank in range(processes):
        kept_us = _kept_steps_us(out / f"run{attached}", rank)
        assert len(kept_us) >= 20, "too few steps were timed"
        runs = [
            np.diff(json.loads((out / f"{run}_{rank}.json").read_text()), axis=0) / 1e3
            for run in (bare, attached)
        ]
        # the difference of two ends is the second one's step
        at = [WARMUP - 1 + step for step in kept_us]
        medians.append([np.median(steps[at], axis=0) for steps in runs])
        off = max(off, abs(statistics.median(kept_us.values()) - medians[-1][1][0]))
    mean = np.mean(medians, axis=0)  # by way and clock
    return [(float(mean[0, clock]), float(mean[1, clock])) for clock in (0, 1)], off


def _kept_steps_us(run: Path, rank: int) -> dict[int, float]:
    """Microseconds of each step that dpscope kept, by its number after the warm-up."""
    (planned,) = RunFolder(run).manifest().plan
    ((_, folder),) = RunFolder(run).done_repeats(planned.cell)
    table = pyarrow.parquet.read_table(folder.samples_path(0, rank)).to_pydict()
    return dict(zip(table["step"], table["step_us"], strict=True))


def plain_model() -> tuple[object, tuple[int, int, int], int]:
    """The plain loop's model for `dpscope run`."""
    from tests.user_models.scripts.plain_loop import CLASSES, make_model

    return make_model(WIDTH), (3, 16, 16), CLASSES


def compare_built_in(pairs: int) -> dict[int, tuple[Ratio, bool]]:
    """By processes: `dpscope run`'s loop to the plain loop attached to, and whether ranks
    communicate equal bytes a step.
    """
    windows = (
        "--devices",
        "1,2",
        "--warmup",
        str(WARMUP),
        "--steps",
        "60",
        "--traced-steps",
        "2",
        "--quiet",
        "--out",
    )
    script = (
        str(SCRIPTS / "plain_loop.py"),
        "--epochs",
        "1",
        "--steps",
        "90",
        "--width",
        str(WIDTH),
        "--one-batch",
    )
    training = (
        "--batch-size",
        "8",
        "--lr",
        "0.01",
        "--weight-decay",
        "0",
        "--model",
        "benchmarks.attached_scripts:plain_model",
    )
    cells = (
        "--strategy",
        "single,ddp",
        "--no-ddp-alone",
        "--no-calibrate",
        "--repeats",
        "1",
        "--device",
        "cpu",
    )
    found: dict[int, list[tuple[Job, Job]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(pairs):
            outs = [f"{folder}/{way}{index}" for way in ("built_in", "attached")]
            commands = (
                ("run", *cells, *training, *windows, outs[0]),
                ("attach", *windows, outs[1], "--", *script),
            )
            for one in FIRST_AND_SECOND[index % 2]:
                _dpscope(*commands[one])
            built_in, attached = (
                {data.cell.devices: data for data in load_run(Path(out)).measured} for out in outs
            )
            for count, both in found.items():
                both.append((built_in[count], attached[count]))
    return {
        count: (
            ratio_of([(_step_us(first), _step_us(second)) for first, second in both]),
            count == 1 or len({_bytes_a_step(one) for pair in both for one in pair}) == 1,
        )
        for count, both in found.items()
    }


def _dpscope(*arguments: str) -> None:
    """Run a command; status 1 is a finding against what was measured."""
    command = [sys.executable, "-m", "dpscope.launch.cli", *arguments]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # dpscope sets its own loop's threads: a core's for each process
    if (
        subprocess.run(
            command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL
        ).returncode
        > 1
    ):
        raise SystemExit(f"failed: {shlex.join(command)}")


def _step_us(cell: Job) -> float:
    (steps,) = cell.step_samples()
    return float(np.median(steps))


def _bytes_a_step(cell: Job) -> frozenset[float]:
    """What each rank communicated in each whole traced step: one number where all did the same."""
    return frozenset(cell.collectives.groupby(["rank", "step"])["bytes"].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--block-pairs", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=12, help="of whole runs")
    parser.add_argument("--scripts", default=",".join(SIZES))
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--built-in-pairs", type=int, default=4, help="0: none")
    arguments = parser.parse_args()
    counts = [int(one) for one in arguments.processes.split(",")]
    verdicts, off_us, equal_bytes = [], 0.0, True
    for script in arguments.scripts.split(","):
        for count in counts:
            found = compare_ways(script, count, arguments.block_pairs, arguments.pairs)
            verdicts.append(found.verdict)
            off_us = max(off_us, found.difference_us)
            (wall, processor), (runs, _) = found.blocks, found.runs
            _print(
                f"{_named(script, count)} bare {wall.first_us / 1e3:.2f} ms a step, attached {wall.text} by the wall clock, "
                f"{processor.text} by the processor, {wall.pairs} pairs of blocks; whole runs {runs.text}, {runs.pairs} pairs: "
                f"{found.verdict}"
            )
    for count, (ratio, equal) in (
        compare_built_in(arguments.built_in_pairs).items() if arguments.built_in_pairs else ()
    ):
        equal_bytes &= equal
        bytes_text = "" if count == 1 else f"; bytes a step {'equal' if equal else 'DIFFER'}"
        _print(
            f"{_named('plain_loop', count)} dpscope run {ratio.first_us / 1e3:.2f} ms a step, attached {ratio.text}, "
            f"{ratio.pairs} pairs{bytes_text}"
        )
    within = sum(one.startswith("within") for one in verdicts)
    above = sum(one.startswith("MORE") for one in verdicts)
    _print(
        f"attached is within 1% of bare in {within} of {len(verdicts)}, above in {above}, not decided in "
        f"{len(verdicts) - within - above}; dpscope's medians are within {off_us:.1f} us of the hook's"
    )
    sys.exit(0 if within == len(verdicts) and equal_bytes else 1)


def _named(script: str, count: int) -> str:
    return f"{f'{script} x {count}':18}"


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
