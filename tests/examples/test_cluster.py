"""examples/cluster without a cluster: manifests parse, their commands are planned as each pod
would, scripts are sound shell.
"""

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpscope.launch.contents import app
from dpscope.launch.jobs.node_place import Address, NodePlace, node_place
from tests.helpers.paths import ROOT

yaml: Any = importlib.import_module("yaml")  # it has come with wandb
CLUSTER = ROOT / "examples" / "cluster"


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def options_of(command: list[str]) -> dict[str, str]:
    return dict(zip(command[2::2], command[3::2], strict=True))


def check_place(
    pod: dict[str, Any], variables: dict[str, str], host: str, port: int
) -> dict[str, Any]:
    """The container of the second of two pods, which finds the first one; what is mounted is there,
    and --out lies on it.
    """
    (container,) = pod["containers"]
    options = options_of(container["command"])
    found = node_place(options["--nodes"], None, options.get("--rendezvous"), variables)
    assert found == NodePlace(2, 1, Address(host, port))
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in pod["volumes"]}
    assert Path(options["--out"]).is_relative_to(mounts["shared"])
    assert mounts["memory"] == "/dev/shm"  # loader workers need more than the 64 MB that a pod has
    assert isinstance(container, dict)
    return container


def planned(command: list[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> str:
    """The plan of the first pod's command, on CPU processes in place of GPUs; the others leave
    printing to it.
    """
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = {**options_of(command), "--devices": "1,2x2", "--device": "cpu", "--batch-size": "2"}
    options.pop("--rendezvous", None)
    ended = CliRunner().invoke(
        app, ["run", *(part for pair in options.items() for part in pair), "--dry-run"]
    )
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_pods_of_an_indexed_job_meet_at_the_first_one_s_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, job = manifests("kubernetes_indexed_job.yaml")
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    # a pod of an indexed job is called <job>-<index>.<subdomain>, where a headless service of that
    # name selects it
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["publishNotReadyAddresses"]
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    container = check_place(pod, {"JOB_COMPLETION_INDEX": "1"}, first, 29500)
    assert spec["completions"] == int(options_of(container["command"])["--nodes"])
    assert "ddp-d4-n2-b2" in planned(
        container["command"], monkeypatch, {"JOB_COMPLETION_INDEX": "0"}
    )


def test_a_pytorch_job_tells_its_pods_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = manifests("kubernetes_pytorch_job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    count = sum(one["replicas"] for one in replicas.values())
    variables = {
        "WORLD_SIZE": str(count),
        "RANK": "1",
        "MASTER_ADDR": "dpscope-master-0",
        "MASTER_PORT": "23456",
    }
    for one in replicas.values():
        container = check_place(one["template"]["spec"], variables, "dpscope-master-0", 23456)
        # the operator sets the variables of the container of this name
        assert container["name"] == "pytorch"
        assert "ddp-d4-n2-b2" in planned(
            container["command"], monkeypatch, variables | {"RANK": "0"}
        )


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(path.name for path in CLUSTER.glob("*.s*")))
def test_scripts_are_sound_shell(name: str) -> None:
    checked = subprocess.run(
        ["bash", "-n", str(CLUSTER / name)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
