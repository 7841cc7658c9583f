"""A real Slurm of two nodes on this machine, in one folder: slurmctld, two slurmd, munged, all on
free ports.

    with slurm_cluster(folder) as cluster:
        job = cluster.submit("script.sbatch", "--batch-size", "2")
        cluster.wait(job)

The nodes claim 64 cores and 8 GPUs each, so that scripts for real clusters are accepted as they
are. Needs root and Debian's slurm-wlm and munge; `why_no_slurm` returns what is missing. Everything
ends with the block; what a killed test process left is ended by the next one.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpscope.launch.jobs.parent_death import dying_with_process
from dpscope.profiling.machine.interfaces import free_port

NODES = (socket.gethostname(), "zz1")  # sorted; the first one is the rendezvous, which is resolved
_NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel", "scontrol", "squeue")
_OWNER = "DPSCOPE_TEST_SLURM"  # in the environment of every process of a cluster: whose it is
_UP_S = 60.0
_CONFIGURATION = """\
ClusterName=dpscope
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
SchedulerParameters=sched_interval=2
PropagateResourceLimits=NONE
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64 RealMemory=4000 Gres=gpu:8
NodeName={other} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=64 RealMemory=4000 Gres=gpu:8
PartitionName=main Nodes={host},{other} Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """Why this machine can start none; None where it can."""
    if os.geteuid() != 0:
        return "needs root: slurmd starts jobs as their users"
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    return f"needs slurm-wlm and munge: {', '.join(missing)} is not installed" if missing else None


@dataclass(frozen=True)
class Cluster:
    """One that runs."""

    folder: Path
    environment: Mapping[str, str]

    def call(self, *command: str, cwd: Path | None = None, **variables: str) -> str:
        """What one of Slurm's commands prints; raises where it fails."""
        environment = {**self.environment, **variables}
        ended = subprocess.run(
            command,
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"
        return ended.stdout.strip()

    def submit(self, script: Path, *arguments: str, cwd: Path, **variables: str) -> str:
        """Submit a script from a folder, with variables in its environment; returns the job's
        id.
        """
        return self.call("sbatch", "--parsable", str(script), *arguments, cwd=cwd, **variables)

    def state(self, job: str) -> dict[str, str]:
        """What scontrol shows of a job: JobState, Restarts, ExitCode, ..."""
        shown = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return dict(part.split("=", 1) for part in shown if "=" in part)

    def wait(
        self, job: str, limit_s: float = 240, until: Sequence[str] = ("COMPLETED", "FAILED")
    ) -> dict[str, str]:
        """The job's state once it is one of `until`."""
        deadline = time.monotonic() + limit_s
        while (state := self.state(job))["JobState"] not in until:
            assert time.monotonic() < deadline, f"job {job} is still {state['JobState']}"
            time.sleep(0.3)
        return state


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose state lies in `folder`."""
    _end(lambda owner: not Path(f"/proc/{owner}").exists())
    ports = [free_port() for _ in range(3)]
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(host=NODES[0], other=NODES[1], ports=ports, folder=folder)
    )
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(
        f"NodeName={','.join(NODES)} Name=gpu File={folder}/gpu[0-7]\n"
    )
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(configuration), _OWNER: str(os.getpid())}
    cluster = Cluster(folder, environment)
    try:
        files = {
            "key-file": "munge.key",
            "socket": "munge.sock",
            "pid-file": "munged.pid",
            "seed-file": "munge.seed",
        }
        options = [f"--{name}={folder / file}" for name, file in files.items()]
        _start(
            cluster, "munged", ["munged", "--force", "--foreground", "--num-threads=2", *options]
        )
        _until(lambda: (folder / "munge.sock").exists(), "munged")
        _start(cluster, "slurmctld", ["slurmctld", "-D", "-f", str(configuration)])
        for node in NODES:
            _start(
                cluster, f"slurmd-{node}", ["slurmd", "-D", "-N", node, "-f", str(configuration)]
            )
        _until(lambda: _idle(cluster), f"the nodes: see {folder}/*.log")
        yield cluster
    finally:
        _end(lambda owner: owner == os.getpid())


def _start(cluster: Cluster, name: str, command: Sequence[str]) -> None:
    with open(cluster.folder / f"{name}.out", "w") as log:
        subprocess.Popen(
            dying_with_process(os.getpid(), command), env={**cluster.environment}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _idle(cluster: Cluster) -> bool:
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    shown = subprocess.run(
        command,
        env={**cluster.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return shown.stdout.split() == ["idle"] * len(NODES)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _UP_S
    while not holds():
        assert time.monotonic() < deadline, f"did not come up: {what}"
        time.sleep(0.2)


def _end(whose: Callable[[int], bool]) -> None:
    """End every process of the clusters whose owner is meant: daemons first, so that nothing is
    restarted.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(25):
            left = [one for one, owner in _processes() if whose(owner)]
            if not left:
                return
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(0.2)


def _processes() -> list[tuple[int, int]]:
    """Ids of clusters' processes, each with its owner's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            owner = re.search(
                rf"(?:^|\0){_OWNER}=(\d+)".encode(), (folder / "environ").read_bytes()
            )
            if owner is not None and int(folder.name) != os.getpid():
                found.append((int(folder.name), int(owner[1])))
    return found
