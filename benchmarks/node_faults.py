"""A node lost at random moments: how long until the command has ended everywhere, what is left of
it, and whether it resumes.

    python benchmarks/node_faults.py --moments 10

Two hosts as network namespaces (root, iproute2). A run of one cell over both meets, at a random
moment of each kind of fault: kill -9 of one node's dpscope, of the first node's (rank 0's), or the
network gone. For every fault a line: seconds until both commands had ended, processes that were
left after 10 more seconds, and whether the same command then completed the run. Of a node that is
lost before the two have met cannot be known to be lost: the other one waits for it as for a late
one.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.helpers.hosts import Host, several_hosts, why_no_hosts
from tests.helpers.node_commands import TINY, NodeCommand
from tests.helpers.sweeps import processes_of

LIMIT_S = 30.0  # until everything must have ended
WAIT_FOR_NODES_S = 60.0
FAULTS = ("kill node 1", "kill node 0", "cut the network")
OPTIONS = ("--strategy", "ddp", "--devices", "2x1", "--wait-for-nodes", f"{WAIT_FOR_NODES_S:g}")


def report(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """The exit status: 1 where something hung, was left, or did not resume."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moments", type=int, default=10, help="of each kind of fault")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if (why := why_no_hosts()) is not None:
        report(f"not run: {why}")
        return 0
    random.seed(arguments.seed)
    bad = 0
    with several_hosts(2, rate="1gbit") as hosts:
        usual_s = _usual_s(hosts)
        report(
            f"seed {arguments.seed}, load {os.getloadavg()[0]:.1f}; undisturbed: {usual_s:.1f} s"
        )
        for fault in FAULTS:
            took = [
                _one(hosts, fault, random.uniform(0.3, usual_s)) for _ in range(arguments.moments)
            ]
            bad += sum(not one.well for one in took)
            seconds = [one.ended_s for one in took if one.had_met]
            if seconds:
                report(
                    f"{fault}: ended after {statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s at most\n"
                )
    report("all ended, nothing was left, all resumed" if not bad else f"{bad} went wrong")
    return int(bad > 0)


def _usual_s(hosts: list[Host]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        command = NodeCommand(hosts, Path(folder) / "run", "run", *TINY, *OPTIONS)
        command.processes[1].wait(timeout=300)
        took_s = time.monotonic() - began_s  # node 0 writes the report afterwards, alone
        assert command.wait() == [0, 0], command.everything()
        return took_s


@dataclass(frozen=True)
class Fault:
    """How one went: seconds until both had ended, whether the nodes had met before, and whether all
    was well.
    """

    ended_s: float
    had_met: bool
    well: bool


def _one(hosts: list[Host], fault: str, after_s: float) -> Fault:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = NodeCommand(hosts, out, "run", *TINY, *OPTIONS)
        time.sleep(after_s)
        had_met = "has joined" in command.printed(0)
        began_s = time.monotonic()
        if fault == "cut the network":
            hosts[1].cut()
        else:
            command.send(signal.SIGKILL, int(fault.removeprefix("kill node ")))
        try:
            statuses: object = command.wait(LIMIT_S if had_met else LIMIT_S + WAIT_FOR_NODES_S)
        except subprocess.TimeoutExpired:
            statuses = "hung"
        finally:
            hosts[1].reconnect()
        ended_s = time.monotonic() - began_s
        left = _left(out)
        for process in command.processes:
            process.kill()
        again = NodeCommand(hosts, out, "run", *TINY, *OPTIONS)
        resumed = again.wait() == [0, 0]
        met = "" if had_met else ", before they had met"
        well = isinstance(statuses, list) and not left and resumed
        report(
            f"  {fault} after {after_s:.1f} s{met}: exit statuses {statuses}, {ended_s:.1f} s, {len(left)} processes left, "
            f"{'resumed' if resumed else 'not resumed: ' + again.everything()[-500:]}"
        )
        return Fault(ended_s, had_met, well)


def _left(out: Path) -> list[int]:
    deadline = time.monotonic() + 10
    while (left := processes_of(out)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


if __name__ == "__main__":
    sys.exit(main())
