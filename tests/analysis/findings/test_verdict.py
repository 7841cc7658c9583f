"""The verdict on a run: which strategy, the cost of communication, the shortcuts, what to do next.
Numbers by hand.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dpscope.analysis.cells.comparison import Comparison, StrategyGap, compare
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.scaling import ScalingPoint, ScalingSeries
from dpscope.analysis.findings.answers import Verdict
from dpscope.analysis.findings.ledger_text import Situation, best_action
from dpscope.analysis.findings.verdict import CPU_RUN, SCRIPT_ON_CPU, STAND_IN, run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.traces.ranks.job import planned_job
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.made_rows import made_row
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import run_of, timed_cell, with_ranks


def cell(strategy: str, devices: int, batch: int, **values: Any) -> CellRow:
    """A row: a traced step of 100 ms of which 20 ms are exposed of 30 ms of communication, unless
    `values` differ.
    """
    usual: dict[str, Any] = {
        "step_us": 100e3,
        "step_without_wait_us": 100e3,
        "traced_step_us": 100e3,
        "idle_us": 1e3,
    }
    if devices > 1:
        usual |= {"communication_us": 30e3, "exposed_us": 20e3}
        usual |= {"exposed_wait_us": 0.0, "exposed_transfer_us": 20e3, "exposed_other_us": 0.0}
    name = f"{strategy}-d{devices}-b{batch}"
    row = made_row(name, strategy, devices, batch_size=batch, **(usual | values))
    return replace(row, ledger=ledger(row)) if row.traced_step_us is not None else row


def ledger(row: CellRow) -> Ledger:
    """Of a row: compute is what the other parts leave of the step; broadcasts are all that is
    other.
    """
    parts = {
        name: row.number(f"{name}_us")
        for name in ("exposed_wait", "exposed_transfer", "exposed_other", "idle")
    }
    other, bounds = parts["exposed_other"], row.interval("exposed_us")
    return Ledger(
        traced_step_us=100e3,
        compute_us=100e3 - sum(value for value in parts.values() if value is not None),
        **{f"{name}_us": value for name, value in parts.items()},  # type: ignore[arg-type]
        communication_us=row.communication_us,
        unlaunched_us=row.unlaunched_us,
        other_by_kind_us={"broadcast": other} if other else {},
        intervals={"exposed": bounds} if bounds is not None else {},
    )


def comparison(
    *rows: CellRow, speedups: Mapping[str, Estimate] | None = None, ratio: Estimate | None = None
) -> Comparison:
    """`speedups` by cell; `ratio` is DP's step over DDP's at 4 devices and batch 32."""
    series = tuple(
        ScalingSeries(strategy(name), "", "weak", 32, (ScalingPoint(name, 4, speedup, 0.1),), None)
        for name, speedup in (speedups or {}).items()
    )
    dp, label = (
        ("dp-host", "dp-host") if any(row.strategy == "dp-host" for row in rows) else ("dp", "DP")
    )
    gap = (
        (StrategyGap(f"{dp}-d4-b32", "ddp-d4-b32", 4, 32, label, ratio, *[None] * 6),)
        if ratio
        else ()
    )
    return Comparison({row.cell: row for row in rows}, gap, series)


def answer(
    of: Comparison, device_type: str, findings: Mapping[str, tuple[Finding, ...]] | None = None
) -> Verdict:
    """The verdict on cells that were measured on `device_type`, without their samples and
    traces.
    """
    fields = ("strategy", "devices", "batch_size")
    planned = {
        name: msgspec.convert({field: row.value(field) for field in fields}, Cell)
        for name, row in of.rows.items()
    }
    cells = {
        name: planned_job(cell).with_findings(*(findings or {}).get(name, ()))
        for name, cell in planned.items()
    }
    manifest = msgspec.structs.replace(RunFolder(EXAMPLE_RUN).manifest(), device_type=device_type)
    return run_verdict(RunData(EXAMPLE_RUN, manifest, cells), of)


def strategy(name: str) -> CellStrategy:
    return "ddp" if name.startswith("ddp") else "dp"


SINGLE = cell("single", 1, 32)
DP = cell("dp", 4, 32, step_us=130e3)
DDP = cell("ddp", 4, 32)
FASTER = Estimate(3.6, 3.4, 3.8, 60)
AHEAD = Estimate(1.3, 1.2, 1.4, 60)


def verdict_on(
    *rows: CellRow,
    gain: Estimate | None = FASTER,
    of: str = "ddp-d4-b32",
    ratio: Estimate | None = None,
) -> Verdict:
    """On GPUs; `gain` is the speedup of a cell over one device, `ratio` as in `comparison`."""
    speedups = {of: gain} if gain is not None else None
    return answer(comparison(SINGLE, *rows, speedups=speedups, ratio=ratio), "cuda")


def test_ddp_is_recommended_where_it_is_shown_to_be_faster() -> None:
    found = verdict_on(DP, DDP, ratio=AHEAD)
    assert found.caveat is None
    assert found.which.text == (
        "Use DDP: 3.60x one device's throughput (95% interval 3.40 to 3.80) on 4 devices, batch 32 each. DDP's step is 1.30x as "
        "fast as DP's (95% interval 1.20 to 1.40)."
    )
    assert found.which.basis == "The gain over one device: significant (95% interval)"
    even = verdict_on(DP, DDP, ratio=Estimate(1.05, 0.9, 1.2, 60)).which.text
    assert even.startswith(
        "Use DDP or DP, whichever is simpler: DDP reaches 3.60x one device's throughput"
    )
    assert even.endswith(
        "The difference between DP and DDP is not significant (DP's step takes 1.05x as long, 95% interval 0.90 to 1.20)."
    )


@pytest.mark.parametrize("launch_bound", [True, False])
def test_a_launch_bound_step_is_called_that(launch_bound: bool) -> None:
    """Idle 60 of 100 ms: by the finding of the cell alone, in the cost and in what to do."""
    idle = cell("ddp", 4, 32, idle_us=60e3)
    of = comparison(SINGLE, DP, idle, speedups={"ddp-d4-b32": FASTER}, ratio=AHEAD)
    finding = (TraceCode.LAUNCH_BOUND if launch_bound else TraceCode.DEVICE_IDLE).finding(
        "ddp-d4-b32: idle"
    )
    found = answer(of, "cuda", {"ddp-d4-b32": (finding,)})
    assert found.cost.text.endswith("The step is launch-bound.") == launch_bound
    assert (
        found.action.text.startswith("The step is launch-bound: choose a larger batch")
        == launch_bound
    )
    assert found.action.part == "idle time of the devices"


def test_dp_is_recommended_where_it_wins_and_ddp_against_its_copies_only_where_it_was_not_measured() -> (
    None
):
    copies = cell(
        "dp", 4, 32, exposed_wait_us=None, exposed_transfer_us=None, exposed_other_us=20e3
    )
    found = verdict_on(copies, DDP, of="dp-d4-b32", ratio=Estimate(0.8, 0.75, 0.85, 60))
    assert found.which.text.startswith("Use DP: 3.60x")
    # 1 / 0.8 = 1.25; the ends change places: 1 / 0.85 = 1.18, 1 / 0.75 = 1.33.
    assert found.which.text.endswith(
        "DP's step is 1.25x as fast as DDP's (95% interval 1.18 to 1.33)."
    )
    assert found.action.text.startswith(
        "Raise the batch per device, so that each copy of the model serves more samples"
    )
    assert found.action.text.endswith(
        "Exposed communication: 20.0 ms of a 100.0 ms traced step (20%)."
    )
    alone = verdict_on(copies, of="dp-d4-b32").action.text
    assert alone.startswith("Use DDP: DP copies the model in every step")
    assert alone.endswith("Exposed communication: 20.0 ms of a 100.0 ms traced step (20%).")


def test_a_gain_that_is_none_or_not_significant_and_the_basis_of_each_answer() -> None:
    """An action's bound is a mean of traced steps, which no interval is given of; what is not
    decided is found of the gain.
    """
    means = verdict_on(DDP)
    assert means.action.basis == means.cost.basis == "means of the traced steps, no interval"
    assert means.which.basis == "The gain over one device: significant (95% interval)"
    slower = verdict_on(DDP, gain=Estimate(0.7, 0.6, 0.8, 60))
    assert slower.which.text == (
        "Do not parallelise at this size: DDP reaches 0.70x one device's throughput (95% interval 0.60 to 0.80) on 4 devices, "
        "batch 32 each."
    )
    assert slower.action.text.startswith("Train on one device")
    assert slower.action.basis == "significant (95% interval)"
    undecided = verdict_on(DDP, gain=Estimate(1.1, 0.9, 1.3, 60))
    assert undecided.which.text.startswith("Not decided between DDP and one device: ")
    assert undecided.action.text.startswith(
        "Measure more repeats to decide between DDP and one device (--repeats 5). "
    )
    assert undecided.action.basis == "The gain over one device: not significant (95% interval)"
    once = verdict_on(DDP, gain=Estimate(1.1, None, None, 60))
    assert once.which.basis == once.action.basis
    assert (
        once.action.basis
        == "The gain over one device: too few repeats, or fewer than five steps: no interval"
    )
    untraced = {
        "traced_step_us": None,
        "communication_us": None,
        "exposed_us": None,
        "idle_us": None,
    }
    assert verdict_on(cell("ddp", 4, 32, **untraced)).action.basis == "not measured"


def test_the_cost_of_communication() -> None:
    found = verdict_on(cell("ddp", 4, 32, exposed_low_us=15e3, exposed_high_us=25e3)).cost
    assert found.text == (
        "DDP exposes 20.0 ms of communication in a 100.0 ms traced step (20%; 95% interval 15.0 to 25.0 ms): 0.0 ms waiting for "
        "late ranks, 20.0 ms transfer; 10.0 ms more is hidden behind compute."
    )
    assert found.basis == "significant (95% interval)"
    lost = (
        "communication_us",
        "exposed_us",
        "exposed_wait_us",
        "exposed_transfer_us",
        "exposed_other_us",
    )
    unknown = verdict_on(cell("ddp", 4, 32, **dict.fromkeys(lost))).cost
    assert unknown.text == "It was not measured: the trace of ddp-d4-b32 does not show it."
    assert unknown.basis == "not measured"


def test_broadcasts_of_buffers_are_not_called_transfer() -> None:
    """Of 20 ms exposed 5 ms wait, 6 ms are transfers and 9 ms DDP's broadcasts."""
    row = cell("ddp", 4, 32, exposed_wait_us=5e3, exposed_transfer_us=6e3, exposed_other_us=9e3)
    found = verdict_on(row)
    assert ": 5.0 ms waiting for late ranks, 6.0 ms transfer, 9.0 ms broadcast;" in found.cost.text
    assert found.action.text.startswith(
        "Try DDP without broadcasting buffers (--broadcast-buffers off measures it)"
    )
    assert found.action.text.endswith(
        "Broadcasts of buffers: 9.00 ms of a 100.0 ms traced step (9%)."
    )
    assert (found.action.part, found.action.saves_us) == ("broadcasts of buffers", 9e3)
    of_script = replace(
        comparison(SINGLE, row, speedups={"ddp-d4-b32": FASTER}), knows_options=False
    )
    action = answer(of_script, "cuda").action.text  # torch's argument rather than dpscope's option
    assert action.startswith(
        "Try DDP without broadcasting buffers (DDP's broadcast_buffers=False): each step waits"
    )


def test_the_reason_for_a_missing_interval_is_stated() -> None:
    for count, ending in (
        (4, "but fewer than five steps cannot show it: use --steps 5 or more."),
        (5, "but too few repeats cannot show it: use more repeats (--repeats)."),
    ):
        assert verdict_on(DP, DDP, ratio=Estimate(1.3, None, None, count)).which.text.endswith(
            ending
        )


def test_variants_over_several_nodes_do_not_compete_with_the_plain_cells() -> None:
    plain = replace(cell("ddp", 4, 32), cell="ddp-d4-n2-b32")
    variant = replace(cell("ddp", 4, 32, step_us=90e3), cell="ddp-d4-n2-b32-hook-fp16")
    variants = {"ddp-d4-n2-b32-hook-fp16": "hook-fp16"}
    assert answer(replace(comparison(plain, variant), variants=variants), "cuda").cells == (
        "ddp-d4-n2-b32",
    )
    alone = replace(comparison(variant), variants=variants)
    assert answer(alone, "cuda").cells == ("ddp-d4-n2-b32-hook-fp16",)


def action_of(late: LateRank | None = None, **values: Any) -> str:
    row = cell("ddp", 4, 32, **values)
    return best_action([row], Situation(row, late, on_device=True)).text


def test_the_largest_part_that_can_be_removed_is_named_with_its_length() -> None:
    for values, begins, length in (
        (
            {},
            "Hide or shrink the transfers",
            "Exposed transfer: 20.0 ms of a 100.0 ms traced step (20%).",
        ),
        (
            {"idle_us": 40e3},
            "Check what the host",
            "Idle time of the devices: 40.0 ms of a 100.0 ms traced step (40%).",
        ),
        (
            {"idle_us": 40e3, "unlaunched_us": 30e3},
            "Check what the host does between launches: for 30.0 ms of a step the devices are idle and no work is queued.",
            "Idle time of the devices: 40.0 ms of a 100.0 ms traced step (40%).",
        ),
        (
            {"idle_us": 40e3, "unlaunched_us": 4e3},
            "Check what kernels wait for (other streams, copies): for 36.0 ms of a step work is queued and none runs.",
            "Idle time of the devices: 40.0 ms of a 100.0 ms traced step (40%).",
        ),
        (
            {"step_us": 80e3, "step_without_wait_us": 52e3},
            "Feed the devices",
            "Waiting for the loader: 28.0 ms of an 80.0 ms untraced step (35%).",
        ),
        (
            {"exposed_wait_us": 15e3, "exposed_transfer_us": 5e3},  # jitter
            "No rank is always late.",
            "Waiting for late ranks: 15.0 ms of a 100.0 ms traced step (15%).",
        ),
        (
            {"exposed_wait_us": 9e3, "exposed_transfer_us": 11e3},
            "Hide or shrink the transfers",
            "Exposed transfer: 11.0 ms of a 100.0 ms traced step (11%). Nearly as much is waiting for late ranks (9.00 ms).",
        ),
    ):
        text = action_of(None, **values)
        assert text.startswith(begins)
        assert text.endswith(length)
    assert action_of(exposed_transfer_us=1e3).startswith(
        "Nothing stands out: the largest part that could be removed"
    )


def test_a_late_rank_is_named_and_whether_it_is_idle_itself() -> None:
    """Waiting of 5 ms and broadcasts of 9 ms are both for rank 2, if it is shown: 14 ms over 4
    ranks, 18.7 over the 3 that wait.

    14 ms of transfer are thus not nearly as much (80%). Idle time of 30 ms is more than the 17.1 ms
    that 7 ranks wait for one.
    """
    last = LastRank(2, ranks=4, steps=40, of_steps=40, lateness_us=14e3 * 4 / 3)
    late = LateRank(last, 14e3, 1.0, lateness_us=14e3 * 4 / 3, step_us=100e3, exposed_us=30e3)
    text = action_of(late, exposed_wait_us=5e3, exposed_transfer_us=14e3, exposed_other_us=9e3)
    assert text == (
        "Find out why rank 2 arrives late; a faster link does not shorten this. Each other rank's wait: 18.7 ms of a 100.0 ms "
        "traced step (19%)."
    )
    last = LastRank(7, ranks=8, steps=1, of_steps=1, lateness_us=15e3 * 8 / 7)
    late = LateRank(
        last,
        15e3,
        0.8,
        lateness_us=15e3 * 8 / 7,
        step_us=100e3,
        exposed_us=20e3,
        idle_us=50e3,
        unlaunched_us=40e3,
    )
    itself = "Rank 7, which the others wait for, is itself without a launch for 40.0 ms of a step."
    text = action_of(late, exposed_wait_us=15e3, exposed_transfer_us=5e3)
    doubt = "last in 1 of 1 traced step: too few to exclude chance"
    why = f"Find out why rank 7 arrives late ({doubt}); a faster link does not shorten this."
    assert text.startswith(f"{why} {itself}")
    idle = action_of(late, exposed_wait_us=15e3, exposed_transfer_us=5e3, idle_us=30e3)
    assert idle.startswith(
        f"Check what the host does between launches; the devices are idle. {itself}"
    )


def test_an_unknown_batch_is_not_stated() -> None:
    found = verdict_on(cell("ddp", 4, 1, steps_per_s=10.0), of="ddp-d4-b1").which.text
    assert "on 4 devices." in found
    assert "batch" not in found


def test_a_larger_batch_that_was_measured_to_pay_is_advised() -> None:
    small = cell("ddp", 4, 32, samples_per_s=1000, samples_per_s_low=990, samples_per_s_high=1010)
    large = cell("ddp", 4, 64, samples_per_s=1500, samples_per_s_low=1480, samples_per_s_high=1520)
    found = verdict_on(DP, small, large, ratio=AHEAD).action
    assert found.basis == "medians of the timed steps"
    assert found.text.startswith(
        "Raise the batch to 64 per device, which reached 1.50x as many samples per second."
    )
    # not by the batch alone
    for other in (replace(large, nodes=2), replace(large, cell="ddp-d4-b64-amp-bf16")):
        of = replace(
            comparison(DP, small, other, ratio=AHEAD), variants={"ddp-d4-b64-amp-bf16": "amp-bf16"}
        )
        assert "Raise the batch" not in answer(of, "cuda").action.text
    # without an interval, which may reach beyond the larger batch's
    unsteady = cell("ddp", 4, 32, samples_per_s=1000)
    assert "Raise the batch" not in verdict_on(DP, unsteady, large, ratio=AHEAD).action.text


def test_a_cpu_run_begins_with_its_caveat() -> None:
    found = answer(comparison(SINGLE, cell("dp-host", 2, 32)), "cpu")
    assert found.caveat == STAND_IN
    assert "dp-host on 2 devices" in found.which.text
    assert "nn.DataParallel" not in "".join(one.text for one in found.answers)
    assert answer(comparison(SINGLE, cell("ddp", 2, 32)), "cpu").caveat == CPU_RUN


def test_a_stand_in_is_never_recommended() -> None:
    """It is 1.25 times as fast as DDP, or as fast, or alone, or next to FSDP, which is slower."""
    host, ddp, fsdp = cell("dp-host", 4, 32), cell("ddp", 4, 32), cell("fsdp", 4, 32, step_us=200e3)
    for ratio in (Estimate(0.8, 0.75, 0.85, 60), Estimate(1.05, 0.9, 1.2, 60)):
        found = verdict_on(host, ddp, ratio=ratio)
        assert found.strategy == "ddp"
        assert found.which.text.startswith("Use DDP: 3.60x one device's throughput")
        assert "dp-host" in found.which.text
    assert verdict_on(host, fsdp, of="fsdp-d4-b32").strategy == "fsdp"
    alone = verdict_on(host, of="dp-host-d4-b32")
    assert alone.strategy is None
    assert alone.which.text.startswith(
        "No strategy is recommended: dp-host stands in for DP and exists only in dpscope; it reaches 3.60x one device"
    )


def test_one_device_alone_answers_nothing() -> None:
    found = answer(comparison(SINGLE), "cuda")
    assert "none can be recommended" in found.which.text
    assert found.action.text == "Measure two or more devices: dpscope run --devices 1,2."
    assert {one.basis for one in found.answers} == {"not measured"}
    attached = answer(replace(comparison(SINGLE), knows_options=False), "cuda")
    # two processes that train alone were no two devices
    assert "that train together" in attached.action.text


def test_without_a_single_device_the_baseline_is_the_strategy_on_one_device() -> None:
    """Four devices in 100 ms against one in 90 ms, at 32 samples each: 4 x 90 / 100."""
    once = replace(comparison(DDP), over_itself={DDP.cell: Estimate(3.6, None, None, 50)})
    found = answer(once, "cuda").which
    assert found.text == (
        "DDP on 4 devices, batch 32 each reaches 3.60x the throughput of one device under DDP (50 steps, "
        "no interval); one device without DDP was not measured, so the gain over that is unknown."
    )
    assert found.basis.startswith("too few repeats")
    twice = replace(once, over_itself={DDP.cell: Estimate(3.6, 3.5, 3.7, 50)})
    assert answer(twice, "cuda").which.basis == "significant (95% interval)"
    assert "was not compared with one device" in answer(comparison(DDP), "cuda").which.text


def test_the_inferred_batch_and_failed_jobs_of_a_script_are_on_the_first_screen() -> None:
    script = replace(
        comparison(SINGLE), knows_options=False, batches_seen=("24 in 2 micro-batches", "35")
    )
    on_gpu = answer(script, "cuda")
    assert on_gpu.caveat == (
        "Batch per device, inferred from the model's calls: 24 in 2 micro-batches, 35 (or set --batch-size)."
    )
    assert answer(script, "cpu").caveat == f"{SCRIPT_ON_CPU} {on_gpu.caveat}"
    failed = answer(replace(script, unmeasured_jobs=("2 devices",)), "cuda")
    assert (
        failed.action.text
        == "Attach again on 2 devices: the finding about it says why nothing was measured."
    )


def on_two_cores(devices: tuple[int, ...]) -> RunData:
    """DDP on so many devices of a host with two cores; a step takes 1 ms for each two devices, and
    one device's 1 ms.
    """
    cells = [Cell("single", 1, 8), *(Cell("ddp", count, 8) for count in devices)]
    timed = [timed_cell(cell, *[1e3 * max(1, cell.devices // 2)] * 3) for cell in cells]
    return run_of(*(replace(with_ranks(data, threads=1), cores=2) for data in timed))


def test_nothing_is_concluded_from_devices_that_share_cores() -> None:
    run = on_two_cores((2, 4))
    compared = compare(run)
    found = run_verdict(run, compared)
    shared = "4 devices share 2 cores, so nothing is concluded from them: use --devices up to 2."
    assert found.caveat == f"{CPU_RUN} {shared}"
    assert found.cell == "ddp-d2-b8"
    assert "2.00x one device's throughput" in found.which.text
    row = compared.rows["ddp-d4-b8"]
    assert (row.weak_efficiency, row.reasons["weak_efficiency"]) == (
        None,
        "4 devices share 2 cores",
    )
    assert row.step_us == 2e3  # what was measured stays
    assert [point.cell for series in compared.scaling for point in series.points] == ["ddp-d2-b8"]
    assert "loader workers" not in found.action.text


def test_devices_with_a_core_each_have_no_such_caveat() -> None:
    run = on_two_cores((2,))
    assert run_verdict(run, compare(run)).caveat == CPU_RUN


def test_without_other_devices_the_answer_is_that_nothing_was_compared() -> None:
    run = on_two_cores((4,))
    found = run_verdict(run, compare(run))
    assert (found.strategy, found.cell) == (None, None)
    assert found.action.text == "Measure two or more devices with a core each."
    assert "4 devices share 2 cores" in str(found.caveat)
