"""How well does a calibration predict DDP's all-reduces? Calibrate first, then train with and
without overlap, and compare.

    python benchmarks/prediction.py [--repeats 5] [--devices 2] [--batch-size 32] [--steps 10]
    [--out FOLDER]

CIFAR's ResNet-18. Per bucket: the median over repeats of a repeat's median transfer, with the
repeats' range, next to the calibration's prediction, which knows the size alone. Without overlap it
is to be right within 25%; with overlap the distance is what computing at the same time costs the
all-reduces (on a CPU they share the cores), and no error of the calibration.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TOLERANCE = 0.25
DPSCOPE = (sys.executable, "-m", "dpscope.launch.cli")


class Bucket(NamedTuple):
    """One size of all-reduce in one cell; `measured_us` has a median per repeat."""

    cell: str
    size_bytes: float
    measured_us: list[float]
    predicted_us: float

    @property
    def relative_error(self) -> float:
        return self.predicted_us / statistics.median(self.measured_us) - 1


def measure(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Calibrate, run, and the analysis by `dpscope analyze`."""
    devices = str(arguments.devices)
    run_options = {
        "--strategy": "single,ddp", "--overlap": "on,off", "--devices": f"1,{devices}", "--out": str(out),
        "--batch-size": str(arguments.batch_size), "--repeats": str(arguments.repeats), "--steps": str(arguments.steps),
    }  # fmt: skip
    _dpscope(
        "calibrate",
        "--collectives",
        "all_reduce,broadcast",
        "--devices",
        devices,
        "--out",
        str(out),
    )
    _dpscope("run", *(part for option in run_options.items() for part in option))
    analyzed = subprocess.run(
        [*DPSCOPE, "analyze", str(out), "--format", "json"], check=False, stdout=subprocess.PIPE
    )
    report: dict[str, Any] = json.loads(analyzed.stdout)
    return report


def _dpscope(*arguments: str) -> None:
    """Run a command; status 1 is a finding against the run, which its output shows."""
    status = subprocess.run([*DPSCOPE, *arguments], check=False, stdout=sys.stderr).returncode
    if status > 1:
        raise SystemExit(status)


def buckets(report: dict[str, Any]) -> Iterator[Bucket]:
    """Every size of all-reduce that was measured and predicted, the largest of a cell first."""
    whole = {_step(row) for row in report["steps"] if not row["partial_window"]}
    transfers: dict[tuple[str, float], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in report["collectives"]:
        if row["kind"] == "all_reduce" and row["transfer_us"] is not None and _step(row) in whole:
            transfers[row["cell"], row["bytes"]][row["repeat"]].append(row["transfer_us"])
    for row in report["predictions"]:
        repeats = transfers.get((row["cell"], row["size_bytes"]))
        if row["kind"] == "all_reduce" and repeats and row["predicted_us"] is not None:
            medians = [statistics.median(values) for values in repeats.values()]
            yield Bucket(row["cell"], row["size_bytes"], medians, row["predicted_us"])


def _step(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return row["cell"], row["repeat"], row["rank"], row["step"]


def lines(found: list[Bucket]) -> Iterator[str]:
    """The table, and whether the buckets without overlap are predicted well enough."""
    yield f"{'cell':28} {'bucket':>9} {'measured':>10} {'repeats':>16} {'predicted':>10} {'error':>7}"
    for one in found:
        low, high = min(one.measured_us) / 1e3, max(one.measured_us) / 1e3
        yield (
            f"{one.cell:28} {one.size_bytes / 1e6:6.1f} MB {statistics.median(one.measured_us) / 1e3:7.2f} ms "
            f"{low:7.2f}-{high:.2f} ms {one.predicted_us / 1e3:7.2f} ms {one.relative_error:+7.1%}"
        )
    alone = [one for one in found if one.cell.endswith("overlap-off")]
    worst = max((abs(one.relative_error) for one in alone), default=None)
    if worst is None:
        yield "without overlap: nothing was measured"
    else:
        yield f"without overlap: {worst:.1%} off at most, {'within' if worst <= TOLERANCE else 'beyond'} {TOLERANCE:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--out", type=Path, help="keep the run here; a temporary folder unless given"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpscope-prediction-") as scratch:
        report = measure(arguments, arguments.out or Path(scratch) / "run")
    for line in lines(list(buckets(report))):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
