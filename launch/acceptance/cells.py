"""Cells measured as anybody would: one device with and without DDP, and the options of both. Findings must be empty."""

from typing import Any

from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, equals, none_of
from dpscope.launch.acceptance.workplace import PREPARED_RUN, Workplace, last_line

SMALL = ("--model", "resnet18_cifar", "--batch-size", "32", "--timeout", "120")
ALLOWED = ("wide_spread", "few_host_cores", "device_shared", "device_state_unknown", "bf16_emulated", "single_repeat")
"""Warnings that say something of the machine, of its load or of what a check asks for, and nothing of dpscope."""

CHECKED_OPTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("amp", ("--strategy", "single", "--amp", "bf16,fp16")),
    ("tf32", ("--strategy", "single", "--model", "dpscope.launch.acceptance.models:tf32")),
    ("channels_last", ("--strategy", "single", "--model", "dpscope.launch.acceptance.models:channels_last")),
    ("loader", ("--strategy", "single", "--data", "fake", "--samples", "1024", "--workers", "2", "--pin-memory")),
    ("accumulation", ("--strategy", "ddp", "--accumulate", "2")),
    ("static_graph", ("--strategy", "ddp", "--static-graph")),
    ("bucket_view", ("--strategy", "ddp", "--gradient-as-bucket-view")),
    ("compile", ("--strategy", "single,ddp", "--compile", "default")),
    ("hooks", ("--strategy", "ddp", "--comm-hook", "fp16,powersgd")),
)
"""What is measured besides, a run for each."""


def single_and_ddp(place: Workplace) -> list[CheckVerdict]:
    """One device alone, and DDP at world size 1, which must not cost much more."""
    run = place.shared / PREPARED_RUN
    sizes = ("--steps", "30", "--traced-steps", "3", "--repeats", "2")
    verdicts = measured(place, "b", run, ("--strategy", "single,ddp", *SMALL, *sizes))
    if verdicts[0].status == "FAIL":
        return verdicts
    steps = {row["strategy"]: row["step_us"] for row in place.analysis(run)["cells"]}
    share = None if None in (steps.get("ddp"), steps.get("single")) else steps["ddp"] / steps["single"] - 1
    return [*verdicts, at_most("b.ddp_over_single", share, 0.25, "%", "DDP on one device costs more than the limit")]


def options(place: Workplace) -> list[CheckVerdict]:
    """A short run of every option; those of which none is the number of devices."""
    sizes = ("--steps", "10", "--traced-steps", "1", "--repeats", "1")
    verdicts: list[CheckVerdict] = []
    for name, flags in CHECKED_OPTIONS:
        common = tuple(part for part in SMALL if "--model" not in flags or part not in ("--model", "resnet18_cifar"))
        verdicts += measured(place, f"c.{name}", place.folder / name, (*flags, *common, *sizes))
    return verdicts


def measured(place: Workplace, name: str, run: Any, flags: tuple[str, ...]) -> list[CheckVerdict]:
    """A run of one device: whether it ended well, whether all its cells did, and what was found."""
    ended = place.dpscope("run", "--device", place.kind, "--devices", "1", *flags, "--quiet", "--out", run)
    if not run.exists() or ended.returncode not in (0, 1):
        return [equals(f"{name}.run", f"status_{ended.returncode}", "status_0", last_line(ended.stderr))]
    return judged(name, place.analysis(run))


def judged(name: str, analysis: dict[str, Any]) -> list[CheckVerdict]:
    """Of a run's analysis: every cell measured, and no finding but those that are allowed."""
    status = [str(row["status"]) for row in analysis["cells"]]
    found = [one for one in analysis["findings"] if one["severity"] != "info" and one["code"] not in ALLOWED]
    return [
        equals(f"{name}.cells", ",".join(sorted(set(status))), "ok"),
        none_of(f"{name}.findings", [one["code"] for one in found], "; ".join(one["message"] for one in found)[:300]),
    ]
