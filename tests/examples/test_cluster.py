"""examples/cluster without a cluster: manifests parse, their commands are planned as each pod would, scripts are sound shell."""

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpscope.launch.cli import app
from dpscope.launch.jobs.node_place import Address, NodePlace, node_place
from tests.helpers.paths import ROOT

yaml: Any = importlib.import_module("yaml")  # it has come with wandb
CLUSTER = ROOT / "examples" / "cluster"


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def options_of(command: list[str]) -> dict[str, str]:
    return dict(zip(command[2::2], command[3::2], strict=True))


def place_in(command: list[str], variables: dict[str, str]) -> NodePlace | None:
    options = options_of(command)
    return node_place(options["--nodes"], None, options.get("--rendezvous"), variables)


def planned(command: list[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> str:
    """The plan of the first pod's command, on CPU processes in place of GPUs; the others leave printing to it."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = {**options_of(command), "--devices": "1,2x2", "--device": "cpu", "--batch-size": "2"}
    options.pop("--rendezvous", None)
    ended = CliRunner().invoke(app, ["run", *(part for pair in options.items() for part in pair), "--dry-run"])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_pods_of_an_indexed_job_meet_at_the_first_one_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    service, job = manifests("kubernetes_indexed_job.yaml")
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    # a pod of an indexed job is called <job>-<index>.<subdomain>, where a headless service of that name selects it
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["publishNotReadyAddresses"]
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    variables = {"JOB_COMPLETION_INDEX": "1"}
    assert place_in(container["command"], variables) == NodePlace(2, 1, Address(first, 29500))
    assert spec["completions"] == int(options_of(container["command"])["--nodes"])
    assert "ddp-d4-n2-b2" in planned(container["command"], monkeypatch, variables | {"JOB_COMPLETION_INDEX": "0"})
    _check_volumes(pod)


def test_a_pytorch_job_tells_its_pods_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = manifests("kubernetes_pytorch_job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    count = sum(one["replicas"] for one in replicas.values())
    variables = {"WORLD_SIZE": str(count), "RANK": "1", "MASTER_ADDR": "dpscope-master-0", "MASTER_PORT": "23456"}
    for one in replicas.values():
        pod = one["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"  # the operator sets the variables of the container of this name
        expected = NodePlace(2, 1, Address("dpscope-master-0", 23456))
        assert place_in(container["command"], variables) == expected
        assert "ddp-d4-n2-b2" in planned(container["command"], monkeypatch, variables | {"RANK": "0"})
        _check_volumes(pod)


def _check_volumes(pod: dict[str, Any]) -> None:
    """What is mounted is there, and --out lies on it."""
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in pod["volumes"]}
    assert Path(options_of(container["command"])["--out"]).is_relative_to(mounts["shared"])
    assert mounts["memory"] == "/dev/shm"  # loader workers need more than the 64 MB that a pod has


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(path.name for path in CLUSTER.glob("*.s*")))
def test_scripts_are_sound_shell(name: str) -> None:
    checked = subprocess.run(["bash", "-n", str(CLUSTER / name)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
