"""`dpscope` on two hosts: one command on each; cells over both, and losses. A training that is
preempted and goes on: test_slurm.py. Skips without root.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpscope.analysis.costs.calibration_files import load_calibration
from dpscope.analysis.costs.calibration_fit import find_fit
from dpscope.analysis.costs.node_rates import rate_between, rate_within
from dpscope.launch.nodes.board import LOST_S
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.hosts import INTERFACE, Host, several_hosts, why_no_hosts
from tests.helpers.node_commands import LIMIT_S, TINY, NodeCommand
from tests.helpers.paths import ROOT, USER_MODELS
from tests.helpers.sweeps import (
    command_of,
    half_written,
    parent_of,
    processes_of,
    torchruns_of,
    wait_until,
)
from tests.helpers.words import words

RATE_MBIT = 200
LARGEST_BYTES = 4 << 20
OVER_BOTH = Cell(strategy="ddp", devices=2, batch_size=2, nodes=2)
ENDS_WITHIN_S = 30  # of whatever was lost


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if (why := why_no_hosts()) is not None:
        pytest.skip(why)
    with several_hosts(2, rate=f"{RATE_MBIT}mbit") as made:
        yield made


def over_ssh(
    hosts: list[Host], folder: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Run the script for ssh unchanged, with a stand-in for ssh that runs the command on the host
    of that name.
    """
    enter = "\n".join(
        f'  {one.name}) exec ip netns exec {one.namespace} {named(one)} bash -c "$3" ;;'
        for one in hosts
    )
    programs = {
        "ssh": f'#!/bin/bash\n[ "$1" = -tt ] || exit 90\ncase "$2" in\n{enter}\nesac\nexit 91\n',
        "dpscope": f'#!/bin/bash\nexec {sys.executable} -m dpscope.launch.cli "$@"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return subprocess.run(
        [
            str(ROOT / "examples/cluster/over_ssh.sh"),
            " ".join(one.name for one in hosts),
            *arguments,
        ],
        cwd=USER_MODELS,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def named(host: Host) -> str:
    """The command that gives a shell the host's own name."""
    return f"unshare --uts sh -c 'echo {host.name} > /proc/sys/kernel/hostname && exec \"$@\"' sh"


@pytest.fixture(scope="module")
def run(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NodeCommand]:
    """A run folder with a calibration, started by the script for ssh, and a run of both hosts, and
    how the run went.
    """
    out = tmp_path_factory.mktemp("nodes") / "run"
    sizes = words("--min-bytes 1MiB --max-bytes 4MiB --iterations 4 --warmup 1")
    layouts = words("--device cpu --devices 2,2x1 --collectives all_reduce")
    timed = over_ssh(hosts, out.parent, "calibrate", *layouts, *sizes, "--out", str(out))
    assert timed.returncode == 0, timed.stdout + timed.stderr
    options = ("--strategy", "single,ddp", "--no-ddp-alone", "--devices", "1,2x1")
    measured = NodeCommand(hosts, out, "run", *TINY, *options)
    assert measured.wait() == [0, 0], measured.everything()
    return out, measured


def test_cells_are_measured_on_one_node_and_over_both(run: tuple[Path, NodeCommand]) -> None:
    out, command = run
    manifest = RunFolder(out).manifest()
    assert [one.cell.name for one in manifest.plan] == ["single-d1-b2", "ddp-d2-n2-b2"]
    assert manifest.config.matrix.layouts == ("2x1",)
    assert all(len(RunFolder(out).done_repeats(one.cell)) == 1 for one in manifest.plan)
    ranks = RunFolder(out).repeat(OVER_BOTH, 0).ranks()
    assert [(one.rank, one.node, one.world_size) for one in ranks] == [(0, 0, 2), (1, 1, 2)]
    assert [one.environment and one.environment.hostname for one in ranks] == [None, "host2"]
    log = RunFolder(out).repeat(OVER_BOTH, 0).log_path.read_text()
    assert "--- node 1 (host2) ---" in log
    assert half_written(out) == []
    assert "ddp-d2-n2-b2 repeat 0: started" in command.printed(1)
    assert "2 devices over 2 nodes" in " ".join(command.printed(0).split())
    # gloo gets its interface from dpscope alone; by its host's name it would find none
    hosts = manifest.hosts
    assert [(one.node, one.hostname, one.address, one.interface) for one in hosts] == [
        (0, "host1", "10.199.8.1", INTERFACE),
        (1, "host2", "10.199.8.2", INTERFACE),
    ]
    assert {one.interface_chosen_by for one in hosts} == {"the route between the nodes"}
    # gloo's own connections, as the kernel has them
    assert [one.interfaces for one in ranks] == [(INTERFACE,)] * 2
    assert hosts[1].environment is not None
    assert hosts[1].environment.hostname == "host2"


@pytest.mark.timed
def test_calibration_finds_the_rate_between_hosts_and_within_one(
    run: tuple[Path, NodeCommand],
) -> None:
    """2 and 2x1 are both two devices: the layout distinguishes them. An all-reduce of two moves S
    per host: rate = S / t.

    No transfer is faster than the link, and the fastest shows its rate. The others also wait for
    this machine's processors: what the calibration reports is compared with the median of the same
    times.
    """
    calibration = load_calibration(run[0])
    assert calibration.settings is not None
    assert (calibration.settings.devices, calibration.settings.layouts) == ((2,), ("2x1",))
    times_us = {
        nodes: point.times_us
        for nodes in (1, 2)
        for point in calibration.on_nodes(nodes).points
        if point.size_bytes == LARGEST_BYTES
    }
    medians_gb_per_s = {
        nodes: LARGEST_BYTES / statistics.median(times) / 1e3 for nodes, times in times_us.items()
    }
    assert LARGEST_BYTES / min(times_us[2]) / 1e3 == pytest.approx(RATE_MBIT / 8e3, rel=0.05)
    assert medians_gb_per_s[1] > 2 * medians_gb_per_s[2]
    assert find_fit(calibration.on_nodes(2), "all_reduce", 2) != find_fit(
        calibration.on_nodes(1), "all_reduce", 2
    )
    assert [one.hostname for one in calibration.hosts] == ["host1", "host2"]
    between, within = rate_between(calibration), rate_within(calibration)
    assert between is not None
    assert within is not None
    assert (str(between.place), str(within.place)) == ("2x1", "2")
    assert between.gb_per_s == pytest.approx(medians_gb_per_s[2])
    page = (run[0] / "report" / "report.html").read_text()
    assert f"{between.gb_per_s:.3g} GB/s (bus bandwidth of all_reduce" in page


SLOW = words("--strategy ddp --devices 2x1 --warmup 5 --steps 100000 --model tiny_models:slow")


def slow_run(hosts: list[Host], out: Path) -> NodeCommand:
    """A run whose one cell is in its timed pass, which takes longer than what is done to it."""
    command = NodeCommand(hosts, out, "run", *TINY, *SLOW)
    progress = RunFolder(out).repeat(OVER_BOTH, 0).path / "progress.txt"
    wait_until(lambda: progress.exists() and progress.read_text() == "timed", timeout_s=150)
    return command


def ended(command: NodeCommand) -> tuple[list[int], str]:
    """Exit statuses, and the status and message of the cell's result."""
    began_s = time.monotonic()
    statuses = command.wait(ENDS_WITHIN_S)
    assert time.monotonic() - began_s < ENDS_WITHIN_S
    wait_until(lambda: processes_of(command.out) == [], timeout_s=15)
    result = RunFolder(command.out).repeat(OVER_BOTH, 0).result()
    return statuses, "no result" if result is None else f"{result.status}: {result.message}"


def test_a_network_that_disappears_ends_the_cell_on_both_hosts_naming_the_other(
    hosts: list[Host], tmp_path: Path
) -> None:
    command = slow_run(hosts, tmp_path / "run")
    hosts[1].cut()
    try:
        statuses, message = ended(command)
    finally:
        hosts[1].reconnect()
    assert statuses == [1, 1]
    assert message.startswith(
        f"crashed: node 1 (host2) was lost: it was silent for {LOST_S:g} s (in its timed pass)"
    )
    assert "the same command on all nodes, without --fresh, resumes" in message
    assert "node 1 (host2) was lost" in command.printed(0)
    silent = f"node 0 (10.199.8.1:29500) was lost: it was silent for {LOST_S:g} s"
    assert silent in command.printed(1)


def test_another_command_in_the_same_folder_is_refused_on_all_hosts_and_leaves_the_first_alone(
    hosts: list[Host], tmp_path: Path
) -> None:
    """Only the holder of a folder ends processes left in it: on both hosts those of the first
    command live on.
    """
    first = slow_run(hosts, tmp_path / "run")
    before = processes_of(first.out)
    logs = tmp_path / "second"
    logs.mkdir()
    second = NodeCommand(hosts, first.out, "run", *TINY, *SLOW, port=29600, logs=logs)
    assert second.wait(90) == [2, 2], second.everything()
    for node in (0, 1):
        assert "another dpscope is writing it" in second.printed(node)
    assert set(before) <= set(processes_of(first.out))
    first.send(signal.SIGTERM, 0)
    statuses, message = ended(first)
    assert statuses == [143, 143]
    assert message.startswith("interrupted: stopped in its timed pass; the same command")


@pytest.mark.parametrize("victim", ["node 0", "rank 1"])
def test_a_killed_agent_or_worker_ends_everything_on_both_hosts(
    hosts: list[Host], tmp_path: Path, victim: str
) -> None:
    """An agent that is killed on node 1 is as silent as a cut network."""
    command = slow_run(hosts, tmp_path / "run")
    if victim == "rank 1":
        torchruns = [
            torchrun
            for torchrun in torchruns_of(command.out)
            if b"--node-rank=1" in command_of(torchrun)
        ]
        (worker,) = [
            process for process in processes_of(command.out) if parent_of(process) in torchruns
        ]
        os.kill(worker, signal.SIGKILL)
    else:
        command.send(signal.SIGKILL, 0)
    statuses, message = ended(command)
    if victim == "node 0":  # the process that writes the result is gone
        assert (statuses, message) == ([-9, 1], "no result")
        assert "node 0 (10.199.8.1:29500) was lost: dpscope has exited there" in command.printed(1)
        return
    assert statuses == [1, 1]
    expected = "crashed: rank 1 was killed by signal 9 (SIGKILL, often the kernel's out-of-memory killer) on node 1 (host2)"
    assert message.startswith(expected)
