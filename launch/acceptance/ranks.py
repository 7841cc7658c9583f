"""Two ranks on one GPU: NCCL's kernels where NCCL lets, gloo with tensors of the GPU, one of them out of memory."""

import statistics
import time
from typing import Any

import torch

from dpscope.launch.acceptance.two_ranks import TwoRanksAnswer
from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, equals, none_of, skipped
from dpscope.launch.acceptance.workplace import Workplace
from dpscope.launch.calibration.worker import TimedCollectives
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.profiling.records.run import DdpCounters
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import JobFolder

MODULE = "dpscope.launch.acceptance.two_ranks"
_JOB_S = 80.0
_OVER_S = 60.0  # within which a job must be over that lacks memory
_LEFT_BYTES = 64 << 20  # of a GPU's memory that may be gone afterwards
_REFUSES = ("duplicate gpu detected", "invalid usage", "invalid device")
ERRORS = ("trace_incomplete", "no_kernels", "events_of_no_step", "bucket_mismatch", "span_exceeded", "span_mismatch")


def two_nccl_ranks(place: Workplace) -> list[CheckVerdict]:
    """Real all-reduce kernels of two ranks: their bytes are the gradients', matched across ranks, as DDP counts them."""
    outcome = place.torchrun(2, MODULE, "ddp", _backend(place), place.kind, limit_s=_JOB_S)
    if refusal := _refused(outcome):
        return [skipped("g.two_nccl_ranks", refusal)]
    return _trained("g", place, outcome)


def two_gloo_ranks(place: Workplace) -> list[CheckVerdict]:
    """gloo reduces tensors of a GPU: the ranks must agree afterwards."""
    outcome = place.torchrun(2, MODULE, "ddp", "gloo", place.kind, limit_s=_JOB_S)
    if outcome.status != "ok":
        return [equals("h.job", outcome.status, "ok", outcome.message)]
    answer = read_json(JobFolder(place.folder).result_path, TwoRanksAnswer)
    return [equals("h.job", outcome.status, "ok"), at_most("h.parameters_differ", answer.difference, 0.0, "")]


def out_of_memory(place: Workplace) -> list[CheckVerdict]:
    """One rank takes all memory while the other waits for it: told, over in a minute, and nothing of it left on the GPU."""
    free_before = _free_bytes(place)
    began_s = time.monotonic()
    outcome = place.torchrun(2, MODULE, "memory", "gloo", place.kind, limit_s=_OVER_S + 20)
    took_s = time.monotonic() - began_s
    verdicts = [
        equals("j.told", outcome.status, "out_of_memory", outcome.message),
        at_most("j.over_after", took_s, _OVER_S, "s"),
    ]
    if free_before is not None:
        lost = max(0, free_before - (_free_bytes(place) or 0))
        verdicts.append(at_most("j.left_on_gpu", lost / 2**20, _LEFT_BYTES / 2**20, "MiB"))
    return verdicts


def calibration(place: Workplace) -> list[CheckVerdict]:
    """All-reduces of two ranks on one GPU are timed: larger ones take longer, two at once longer than one."""
    outcome = place.torchrun(2, MODULE, "calibrate", _backend(place), place.kind, limit_s=_JOB_S)
    if refusal := _refused(outcome):
        return [skipped("m.calibration", refusal)]
    if outcome.status != "ok":
        return [equals("m.job", outcome.status, "ok", outcome.message)]
    return judged_calibration(read_json(JobFolder(place.folder).result_path, TimedCollectives))


def judged_calibration(timed: TimedCollectives) -> list[CheckVerdict]:
    """Whether the times of a calibration make sense."""
    medians = [statistics.median(point.times_us) for point in sorted(timed.points, key=lambda one: one.size_bytes)]
    names = [one.reason for one in timed.left_out]
    verdicts = [none_of("m.left_out", names)]
    grows = len(medians) > 1 and medians[-1] > medians[0]
    verdicts.append(equals("m.larger_takes_longer", grows, True, ", ".join(f"{one:.4g} us" for one in medians)))
    for one in timed.contention:
        share = statistics.median(one.alone_us) / statistics.median(one.two_in_flight_us)
        verdicts.append(at_most("m.one_of_two_at_once", share, 1.1, "", "two at once took less time than one alone"))
        slower = statistics.median(one.compute_alone_us) / statistics.median(one.compute_beside_us)
        verdicts.append(at_most("m.compute_alone_of_beside", slower, 1.1, "", "compute is faster beside a collective"))
    return verdicts


def _backend(place: Workplace) -> str:
    return "nccl" if place.kind == "cuda" else "gloo"


def _refused(outcome: JobOutcome) -> str | None:
    """What NCCL says where it lets no two ranks share a GPU, None where it does."""
    said = " ".join((outcome.message, *outcome.log_tail))
    refused = outcome.status != "ok" and any(sign in said.lower() for sign in _REFUSES)
    return f"NCCL does not let two ranks share a GPU: {outcome.message}" if refused else None


def _free_bytes(place: Workplace) -> int | None:
    return torch.cuda.mem_get_info(0)[0] if place.kind == "cuda" else None


def _trained(letter: str, place: Workplace, outcome: JobOutcome) -> list[CheckVerdict]:
    if outcome.status != "ok":
        return [equals(f"{letter}.job", outcome.status, "ok", outcome.message)]
    answer = read_json(JobFolder(place.folder).result_path, TwoRanksAnswer)
    analysis = place.analysis(place.folder / "traces")
    return [
        equals(f"{letter}.job", outcome.status, "ok", outcome.message),
        at_most(f"{letter}.parameters_differ", answer.difference, 0.0, ""),
        *judged_traces(letter, analysis, answer.gradient_bytes, answer.counters, place.kind == "cuda"),
    ]


def judged_traces(
    letter: str, analysis: dict[str, Any], gradient_bytes: int, counters: tuple[DdpCounters, ...], on_device: bool
) -> list[CheckVerdict]:
    """Of two ranks' traces: on devices, as many bytes as there are gradients, each matched, DDP's own buckets."""
    whole = {(row["rank"], row["step"]) for row in analysis["steps"] if not row["partial_window"]}
    reduced = [
        row for row in analysis["collectives"] if row["kind"] == "all_reduce" and (row["rank"], row["step"]) in whole
    ]
    if not reduced:
        raise DpscopeError(f"the traces of check {letter} hold no all-reduce in a whole step")
    moved = sum(row["bytes"] or 0 for row in reduced) / len(whole)
    buckets = sorted(row["bytes"] for row in reduced if row["rank"] == 0) if reduced else []
    counted = sorted(size for one in counters if (0, one.step) in whole for size in one.bucket_bytes)
    findings = [one["code"] for one in analysis["findings"] if one["code"] in ERRORS]
    return [
        equals(f"{letter}.ranks", len({row["rank"] for row in reduced}), 2),
        equals(f"{letter}.on_device", all(row["device"] is not None for row in reduced), on_device),
        at_most(f"{letter}.bytes_against_gradients", abs(moved / gradient_bytes - 1), 0.0, "%"),
        equals(f"{letter}.unmatched", sum(row["transfer_us"] is None for row in reduced), 0),
        equals(
            f"{letter}.buckets_as_counted", "equal" if buckets == counted else f"{buckets}", "equal", f"DDP: {counted}"
        ),
        none_of(f"{letter}.findings", findings),
    ]
