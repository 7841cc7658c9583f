"""How the tests on GPUs run dpscope's commands; without a GPU the same on the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpscope.launch.jobs.devices import DeviceType
from tests.helpers.gpu_checks import Analysis
from tests.helpers.paths import ROOT


@dataclass(frozen=True)
class Bench:
    """Where the tests work, and how they run dpscope's commands."""

    folder: Path
    gpus: int
    kind: DeviceType = "cuda"

    def dpscope(
        self, *arguments: object, limit_s: float = 300.0, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """A command of dpscope, run to its end."""
        return subprocess.run(
            [sys.executable, "-m", "dpscope.launch.cli", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def run(
        self, name: str, *options: object, limit_s: float = 300.0, variables: Mapping[str, str] | None = None
    ) -> Path:
        """A run folder of `dpscope run` with these options, ResNet-18 for CIFAR unless they name another model."""
        out = self.folder / name
        model = () if "--model" in options else ("--model", "resnet18_cifar")
        common = ("run", "--device", self.kind, *model, "--no-calibrate", "--quiet", "--out", out)
        ended = self.dpscope(*common, *options, limit_s=limit_s, variables=variables)
        assert ended.returncode in (0, 1), ended.stderr[-2000:]
        assert out.exists(), ended.stderr[-2000:]
        return out

    def analysis(self, run: Path) -> Analysis:
        """What `dpscope analyze` says about a run."""
        ended = self.dpscope("analyze", run, "--format", "json")
        assert ended.stdout.lstrip().startswith("{"), ended.stderr[-2000:]
        content: Analysis = json.loads(ended.stdout)
        return content


def late_ranks(bench: Bench, model: str, batch_size: int) -> list[str]:
    """Findings about late ranks of DDP on two devices; eight traced steps, since in two a rank may be last by chance."""
    flags = ("--strategy", "ddp", "--devices", "2", "--model", model, "--batch-size", batch_size, "--samples", "1024")
    run = bench.run("late", *flags, "--steps", "15", "--traced-steps", "8", "--repeats", "1")
    return [one["message"] for one in bench.analysis(run)["findings"] if one["code"] == "straggler"]
