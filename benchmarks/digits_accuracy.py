"""Nine trainings on real digits: one device, DP and DDP on two, three seeds each. Do they learn,
and the same?

    .venv/bin/python benchmarks/digits_accuracy.py [--out runs/digits]

Fails unless the median test accuracy of every strategy is 98% or more, no two differ by more than
one point, and all nine trainings took less than five minutes (a machine of two cores with nothing
else to do).
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from dpscope.profiling.store.training_folders import TrainFolder

LEAST_ACCURACY_PERCENT = 98.0
LARGEST_DIFFERENCE_POINTS = 1.0
LONGEST_S = 300.0
SETTINGS = (
    "--device", "cpu", "--strategy", "single,dp,ddp", "--devices", "2", "--data", "digits", "--model", "resnet8_cifar",
    "--batch-size", "32", "--epochs", "12", "--lr", "0.05", "--warmup-epochs", "1", "--milestones", "7,10",
    "--seeds", "0,1,2",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    out = parser.parse_args().out
    began_s = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "dpscope.launch.cli",
        "train",
        *SETTINGS,
        "--fresh",
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True)
    took_s = time.monotonic() - began_s
    medians = median_accuracies(out)
    difference = max(medians.values()) - min(medians.values())
    shown = ", ".join(f"{strategy} {accuracy:.2f}%" for strategy, accuracy in medians.items())
    sys.stdout.write(
        f"\nMedian test accuracies: {shown}; {difference:.2f} points apart; {took_s:.0f} s in all.\n"
    )
    reached = min(medians.values()) >= LEAST_ACCURACY_PERCENT
    sys.exit(0 if reached and difference <= LARGEST_DIFFERENCE_POINTS and took_s < LONGEST_S else 1)


def median_accuracies(out: Path) -> dict[str, float]:
    """Percent after the last epoch, the median over seeds, by strategy."""
    log = TrainFolder(out).log()
    last = max(record.epoch for record in log.epochs)
    found: dict[str, list[float]] = {}
    for record in log.epochs:
        if record.epoch == last:
            found.setdefault(record.strategy, []).append(record.test_accuracy)
    return {strategy: statistics.median(accuracies) for strategy, accuracies in found.items()}


if __name__ == "__main__":
    main()
