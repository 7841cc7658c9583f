"""`dpscope whatif` compared with measured steps on shaped links: network namespaces, real gloo, a
paced model. Needs root.

python benchmarks/what_if_network.py [OUT] [--quick] [--delay]

One base is traced (two hosts, link unshaped, 5 MiB buckets). Every other cell is predicted from it
and the link's rate alone, then measured. A rate is taken at 0.985 of what tc shapes to: TCP's and
Ethernet's headers at an MTU of 9000. With --delay: on a link of 1 Gbit/s with 2, then 10 ms, a base
with two sizes of buckets is traced, one device measured alone and the link calibrated (`dpscope
calibrate`: all-reduces by size, and two in flight); other buckets are predicted from these.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from band_tally import Tally
from delay_relay import DEVICE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the hosts, which tests use too

from dpscope.analysis.costs.cost import Links
from dpscope.analysis.what_if.bases import Question, base_of_run
from dpscope.analysis.what_if.predict import predict
from dpscope.analysis.what_if.scenario import Scenario
from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.measuring.run import plan_run
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.links import REACHED_RATE, LinkRate
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.hosts import INTERFACE, Host, several_hosts, why_no_hosts
from tests.helpers.node_commands import NodeCommand

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "tests" / "user_models"
PAYLOAD = 0.985
BATCH = 4
CELL_TIMEOUT_S = 150
AS_THE_BASE = Scenario()
PORT = 29511


@dataclass(frozen=True)
class ShapedCell:
    """What is measured: hosts, the rate of each (Mbit/s, None unshaped), and the worker's further
    options.
    """

    hosts: int = 2
    mbit: int | None = None
    options: tuple[str, ...] = ("--bucket-mb", "5")
    scenario: Scenario = AS_THE_BASE  # its settings besides hosts and rate

    @property
    def name(self) -> str:
        rate = "unshaped" if self.mbit is None else f"{self.mbit} Mbit/s"
        return f"{self.hosts} hosts, {rate}, {' '.join(self.options).replace('--', '')}"

    @property
    def question(self) -> Scenario:
        """As a scenario of the base."""
        if self.mbit is None:
            return self.scenario
        rate = LinkRate(self.mbit / 8e3 * PAYLOAD, f"{self.mbit} Mbit/s", REACHED_RATE)
        merged = {
            name: getattr(self.scenario, name)
            for name in ("bucket_mb", "overlap", "hook", "accumulate")
        }
        return Scenario(devices=self.hosts, per_node=1, links=Links(inter=rate), **merged)


BASE = ShapedCell()
CELLS = (
    ShapedCell(mbit=1000),
    ShapedCell(mbit=500),
    ShapedCell(mbit=200),
    ShapedCell(mbit=1000, options=("--bucket-mb", "2"), scenario=Scenario(bucket_mb=2.0)),
    ShapedCell(mbit=1000, options=("--bucket-mb", "25"), scenario=Scenario(bucket_mb=25.0)),
    ShapedCell(mbit=1000, options=("--overlap", "off"), scenario=Scenario(overlap=False)),
    ShapedCell(
        mbit=500,
        options=("--bucket-mb", "5", "--comm-hook", "fp16"),
        scenario=Scenario(hook="fp16"),
    ),
    ShapedCell(
        mbit=500, options=("--bucket-mb", "5", "--accumulate", "2"), scenario=Scenario(accumulate=2)
    ),
    ShapedCell(hosts=3, mbit=1000),
    ShapedCell(hosts=4, mbit=1000),
    ShapedCell(hosts=4, mbit=500),
    ShapedCell(hosts=3, mbit=500),
)
DELAYS_MS = (2, 10)
DELAYED_BASE = ShapedCell(mbit=1000, options=())
DELAYED = (
    ShapedCell(mbit=1000, options=("--bucket-mb", "2"), scenario=Scenario(bucket_mb=2.0)),
    ShapedCell(mbit=1000, options=("--bucket-mb", "5"), scenario=Scenario(bucket_mb=5.0)),
    ShapedCell(mbit=1000, options=("--bucket-mb", "25"), scenario=Scenario(bucket_mb=25.0)),
)
CALIBRATED = (
    *(
        "--device",
        "cpu",
        "--devices",
        "2x1",
        "--collectives",
        "all_reduce",
        "--iterations",
        "6",
        "--warmup",
        "2",
    ),
    *("--min-bytes", "512KiB", "--max-bytes", "32MiB"),
)
QUICK = CELLS[1], CELLS[3], CELLS[8]


def main(arguments: Sequence[str]) -> int:
    if (why := why_no_hosts()) is not None:
        sys.stdout.write(f"skipped: {why}\n")
        return 0
    places = [one for one in arguments if not one.startswith("--")]
    out = Path(places[0]) if places else Path(tempfile.mkdtemp(prefix="what_if_network_"))
    if "--delay" in arguments:
        return delayed_cells(out)
    measure(BASE, out / "base")
    question = base_of_run(out / "base", None)
    sys.stdout.write(f"base: {question.base.step_us / 1e3:.1f} ms, {BASE.name}\n")
    errors, same, bands = [], [], Tally()
    for index, cell in enumerate(QUICK if "--quick" in arguments else CELLS):
        predicted = predict(question.base, cell.question, question.costs)
        measured = measure(cell, out / f"cell{index}")
        off = (predicted.step_us or float("nan")) / measured - 1
        errors.append(abs(off))
        bands.add(predicted.low_us, predicted.high_us, measured)
        same.append(abs(question.base.step_us / measured - 1))
        sys.stdout.write(f"{cell.name}: {_compared(question, predicted.step_us, measured, off)}\n")
        sys.stdout.flush()
    sys.stdout.write(
        f"{len(errors)} cells: median {100 * np.median(errors):.1f}%, worst {100 * max(errors):.1f}% (wanted <= 4 and 10%) | "
        f"nothing changes {100 * np.median(same):.1f}%\n{bands.line('the replay, shaped links')}\n"
    )
    return 0


@contextlib.contextmanager
def delayed(hosts: Sequence[Host], delay_ms: float) -> Iterator[list[Host]]:
    """Two hosts by another way, 10.199.9.1 and .2, on which every packet takes so long."""
    first, second = hosts
    program = [sys.executable, str(ROOT / "benchmarks/delay_relay.py")]
    relay = subprocess.Popen(
        [*program, first.namespace, second.namespace, str(delay_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert relay.stdin is not None
    assert relay.stdout is not None
    try:
        assert relay.stdout.readline() == b"relaying\n"
        yield [replace(first, address="10.199.9.1"), replace(second, address="10.199.9.2")]
    finally:
        relay.stdin.close()
        relay.wait(timeout=20)


def delayed_cells(out: Path) -> int:
    """Other buckets over a link with a delay, from a base traced there."""
    errors, bands = [], Tally()
    for delay_ms in DELAYS_MS:
        with several_hosts(2) as hosts, delayed(hosts, delay_ms) as late:
            for host in late:
                shaped = (
                    "root",
                    "tbf",
                    "rate",
                    f"{DELAYED_BASE.mbit}mbit",
                    "burst",
                    "80kb",
                    "latency",
                    "20ms",
                )
                subprocess.run(
                    ["tc", "-n", host.namespace, "qdisc", "add", "dev", DEVICE, *shaped], check=True
                )
            base = out / f"delayed{delay_ms}"
            run_cell(DELAYED_BASE, base, late, DEVICE)
            run_cell(DELAYED_BASE, base, late[:1], DEVICE)
            timed = NodeCommand(late, base.resolve(), "calibrate", *CALIBRATED)
            assert timed.wait(CELL_TIMEOUT_S) == [0, 0], timed.everything()
            question = base_of_run(base, None)
            sys.stdout.write(f"{delay_ms} ms, base: {_base_text(question)}\n")
            for index, cell in enumerate(DELAYED):
                predicted = predict(question.base, cell.scenario, question.costs)
                measured = run_cell(cell, out / f"delayed{delay_ms}_cell{index}", late, DEVICE)
                off = (predicted.step_us or float("nan")) / measured - 1
                errors.append(abs(off))
                bands.add(predicted.low_us, predicted.high_us, measured)
                sys.stdout.write(
                    f"{delay_ms} ms, {cell.name}: {_compared(question, predicted.step_us, measured, off)}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(
        f"with delay: median {100 * np.median(errors):.1f}%, worst {100 * max(errors):.1f}% (wanted <= 8%)\n"
        f"{bands.line('the replay, links with a delay')}\n"
    )
    return 0


def _base_text(question: Question) -> str:
    base = question.base
    return (
        f"{base.step_us / 1e3:.1f} ms; two all-reduces in flight take "
        f"{base.interference.slowdown:.2f} times as long as one, computing next to one {1 + base.interference.gamma:.2f} times"
    )


def _compared(
    question: Question, predicted_us: float | None, measured_us: float, off: float
) -> str:
    shown = "NA" if predicted_us is None else f"{predicted_us / 1e3:.1f}"
    rule = 100 * (question.base.step_us / measured_us - 1)
    return f"measured {measured_us / 1e3:.1f} ms, predicted {shown} ({100 * off:+.1f}%), nothing changes {rule:+.1f}%"


def measure(cell: ShapedCell, out: Path) -> float:
    """The median step, microseconds, of a cell that is run on separate hosts."""
    with several_hosts(cell.hosts, rate=None if cell.mbit is None else f"{cell.mbit}mbit") as hosts:
        return run_cell(cell, out, hosts, INTERFACE)


def run_cell(cell: ShapedCell, out: Path, hosts: Sequence[Host], interface: str) -> float:
    """The same on existing hosts, over one of their interfaces."""
    jobs = [
        _started(host, number, hosts, cell, out, interface) for number, host in enumerate(hosts)
    ]
    ended = [job.wait(CELL_TIMEOUT_S) for job in jobs]
    assert not any(ended), f"{cell.name} failed: read {out}"
    run = RunFolder(out)
    folder = next(iter(sorted((out / "cells").glob(f"ddp-d{len(hosts)}-*/repeat0"))))
    planned = next(one.cell for one in run.manifest().plan if one.cell.name == folder.parent.name)
    repeat = run.repeat(planned, 0)
    samples = repeat.samples(repeat.ranks())
    steps = zip(samples["measuring_pass"], samples["step_us"], strict=True)
    return float(
        np.median([step_us for measuring_pass, step_us in steps if measuring_pass == "timed"])
    )


def _started(
    host: Host, number: int, hosts: Sequence[Host], cell: ShapedCell, out: Path, interface: str
) -> "subprocess.Popen[str]":
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(hosts)}",
        "--nproc-per-node=1",
    ]
    torchrun += [
        f"--node-rank={number}",
        f"--master-addr={hosts[0].address}",
        f"--master-port={PORT}",
    ]
    options: dict[str, object] = {
        "strategy": "ddp",
        "devices": f"{len(hosts)}x1",
        "batch_size": str(BATCH),
        "device": "cpu",
        "steps": 10,
        "traced_steps": 4,
        "warmup": 5,
        "model": "paced_models:paced",
        **{
            name.removeprefix("--").replace("-", "_"): value
            for name, value in zip(cell.options[::2], cell.options[1::2], strict=True)
        },
    }
    # of the one cell that these options plan
    name = plan_run(load_config(None, options), out, nodes=len(hosts)).jobs[0].cell.name
    by_hand = Assignment(task="measure", out=str(out), cell=name, options=options, nodes=len(hosts))
    out.parent.mkdir(parents=True, exist_ok=True)
    stated = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": interface,
        "PYTHONPATH": f"{MODELS}:{os.environ.get('PYTHONPATH', '')}",
    }
    with open(out.parent / f"{out.name}_{number}.log", "w") as log:
        return host.start([*torchrun, *by_hand.program("cpu")], env=stated, stdout=log, stderr=log)


if __name__ == "__main__":
    sys.path.insert(0, str(MODELS))  # planning imports the model, as the hosts do
    raise SystemExit(main(sys.argv[1:]))
