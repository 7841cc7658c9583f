"""How the tests on GPUs run dpscope's commands; without a GPU the same on the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpscope.launch.jobs.devices import DeviceType
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.store.files import read_json
from tests.helpers.fork_server import FIGURES
from tests.helpers.gpu_checks import Analysis
from tests.helpers.paths import ROOT
from tests.helpers.words import words

_SHORT = words("--steps 15 --traced-steps 2 --repeats 1")
_BUSY = ("--batch-size", "512")
_OPTION = ("--devices", "1", "--batch-size", "128", *_SHORT)
_TWICE = words("--steps 15 --traced-steps 2 --repeats 2")  # one repeat gives no interval
_ON_ALL = ("--batch-size", "128", *_SHORT, "--no-calibrate")

OPTIONS: dict[str, tuple[str, ...]] = {
    "amp": ("--strategy", "single", "--amp", "bf16,fp16"),
    "channels_last": ("--strategy", "single", "--model", "tests.gpu.models:channels_last"),
    "loader": words("--strategy single --data fake --samples 4096 --workers 2 --pin-memory"),
    "accumulation": ("--strategy", "ddp", "--accumulate", "2"),
    "hooks": ("--strategy", "ddp", "--comm-hook", "fp16,powersgd"),
    "compile": ("--strategy", "single,ddp", "--compile", "default"),
}
"""Of a short run on one device each."""
ALL = "all"  # the machine's GPUs, as a device count of a run
OPTIONS_ON_ALL: dict[str, tuple[str, ...]] = {
    "amp": ("--strategy", "ddp,fsdp", "--amp", "bf16"),
    "loader": words("--strategy ddp --data fake --samples 4096 --workers 2 --pin-memory"),
    "accumulation": ("--strategy", "ddp", "--accumulate", "2"),
    "hooks": ("--strategy", "ddp", "--comm-hook", "fp16,powersgd"),
    "buckets": (
        "--strategy",
        "ddp",
        "--bucket-mb",
        "1,25",
        "--ddp-args",
        "gradient_as_bucket_view=true static_graph=true",
    ),
    "compile": ("--strategy", "ddp", "--compile", "default"),
}
"""Of a short run on all devices each."""

EVERY = "single,dp,ddp,replicate,fsdp,hsdp"
_LEAST_FOR_HSDP = 4  # two groups of two

# At batch 32 the host's launches bound many GPUs, at 512 the GPU is busy. A late rank takes eight
# traced steps: in two a rank may be last by chance.
RUNS: dict[str, tuple[str, ...]] = {
    "single": words("--strategy single --devices 1 --batch-size 32,512 --steps 30 --traced-steps 3 --repeats 2"),
    "ddp": ("--strategy", "single,ddp", "--devices", "2", *_BUSY, *_SHORT, "--no-calibrate"),
    "overlap": (
        *words("--strategy ddp --devices 2 --overlap on,off --nccl-engine legacy,default --no-calibrate"), *_BUSY, *_SHORT,
    ),
    "data_parallel": ("--strategy", "single,dp", "--devices", "2", *_BUSY, *_SHORT, "--no-calibrate"),
    "late": words("--strategy ddp --devices 2 --steps 15 --traced-steps 8 --repeats 1 --samples 1024 --no-calibrate"),
    "last_device": (*words("--strategy single --devices 1 --batch-size 128"), *_SHORT),
    **{f"option_{name}": (*flags, *_OPTION) for name, flags in OPTIONS.items()},
    **dict.fromkeys(
        ("compared", "compared_again"),
        ("--strategy", "ddp", "--devices", ALL, "--batch-size", "128", *_TWICE, "--no-calibrate"),
    ),
    "all": ("--strategy", EVERY, "--devices", f"1,{ALL}", *_ON_ALL),
    **{f"all_{name}": (*flags, "--devices", ALL, *_ON_ALL) for name, flags in OPTIONS_ON_ALL.items()},
}  # fmt: skip
"""Options of each run, by the name of its folder."""
LATE_RANK = ("--model", "tests.gpu.models:late_on_rank_1", "--batch-size", "32")
CALIBRATION = {
    "devices": "2",
    "collectives": "all_reduce",
    "min_bytes": "64MiB",
    "max_bytes": "64MiB",
}
CALIBRATION_OF_ALL = {
    "devices": ALL, "collectives": "all_reduce,reduce_scatter,all_gather", "min_bytes": "64KiB", "max_bytes": "16MiB",
    "iterations": "5",
}  # fmt: skip
PATIENCE = float(os.environ.get("DPSCOPE_GPU_PATIENCE", "1"))
"""A factor of all time limits, for GPUs whose host is slow or shared."""


@dataclass(frozen=True)
class Bench:
    """Where the tests work, and how they run dpscope's commands."""

    folder: Path
    gpus: int
    kind: DeviceType = "cuda"
    virtual: bool = False  # whether the devices are those of tests/virtual_gpu

    def dpscope(
        self, *arguments: object, limit_s: float = 300.0, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """A command of dpscope, run to its end."""
        command = [sys.executable, "-m", "dpscope.launch.cli", *map(str, arguments)]
        figures = {} if self.virtual else {FIGURES: "1"}
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **figures, **(variables or {})}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=limit_s * PATIENCE, check=False,
        )  # fmt: skip

    def run_command(self, name: str, *more: str) -> list[str]:
        """The run of RUNS, and `more` options; ResNet-18 for CIFAR unless they name another
        model.
        """
        options = [self._counted(option) for option in (*RUNS[name], *more)]
        model = [] if "--model" in options else ["--model", "resnet18_cifar"]
        return ["run", "--device", self.kind, *model, *options, "--out", str(self.folder / name)]

    def _counted(self, option: str) -> str:
        if option == EVERY:
            return EVERY if self.gpus >= _LEAST_FOR_HSDP else EVERY.removesuffix(",hsdp")
        return option.replace(ALL, str(self.gpus)) if option in (ALL, f"1,{ALL}") else option

    def run(self, name: str, *more: str, variables: Mapping[str, str] | None = None) -> Path:
        """The folder of that run, once it is measured."""
        out = self.folder / name
        ended = self.dpscope(*self.run_command(name, *more), "--quiet", variables=variables)
        assert ended.returncode in (0, 1), ended.stderr[-2000:]
        assert out.exists(), ended.stderr[-2000:]
        return out

    def calibration(self, name: str, settings: Mapping[str, str], limit_s: float) -> Calibration:
        """What `dpscope calibrate` measures with these settings."""
        out = self.folder / f"{name}.json"
        flags = [
            part
            for name, value in settings.items()
            for part in (f"--{name.replace('_', '-')}", self._counted(value))
        ]
        ended = self.dpscope(
            "calibrate", "--device", self.kind, *flags, "--out", out, limit_s=limit_s
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        return read_json(out, Calibration)

    def analysis(self, run: Path) -> Analysis:
        """The analysis of a run by `dpscope analyze`."""
        ended = self.dpscope("analyze", run, "--format", "json")
        assert ended.stdout.lstrip().startswith("{"), ended.stderr[-2000:]
        content: Analysis = json.loads(ended.stdout)
        return content


def late_ranks(bench: Bench, *more: str) -> list[str]:
    """Findings about late ranks of DDP on two devices, with a model that makes one late."""
    findings = bench.analysis(bench.run("late", *more))["findings"]
    return [one["message"] for one in findings if one["code"] == "straggler"]
