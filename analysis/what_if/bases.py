"""From a run folder or from traces to a base and the costs of its collectives."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from dpscope.analysis.cells.cell_ledger import cell_contentions
from dpscope.analysis.cells.checks import too_slow_to_trust
from dpscope.analysis.costs.calibration_files import calibration_of_run
from dpscope.analysis.costs.costs import Costs, machine_costs
from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.runs.variant_savings import shared_options, single_device_baselines
from dpscope.analysis.stats.samples import pooled_median
from dpscope.analysis.text.units import show_apart
from dpscope.analysis.traces.ranks.contention import with_contention
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.ranks.readers import Paths, as_paths, find_traces
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.what_if.band import NINE_OF_TEN
from dpscope.analysis.what_if.job_profile import JobProfile, job_profile, run_profile
from dpscope.analysis.what_if.lateness import lateness
from dpscope.analysis.what_if.replay import Scale
from dpscope.analysis.what_if.scenario import BAND, UNKNOWN_CONTENTION, Base, Contention
from dpscope.analysis.what_if.step_profile import Bucketing, typical
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder

_ONE_REPEAT = 0.03  # half a band of a step with one repeat, or from a trace alone; assumed


def contention_of_ledger(ledger: Ledger | None) -> Contention:
    """As measured in the base's traces, else unknown."""
    if (
        ledger is None
        or ledger.contention_ratio is None
        or ledger.contention_ratio_interval is None
    ):
        return UNKNOWN_CONTENTION
    # computing loses 1 - 1/ratio of hidden communication's time
    ratio = ledger.contention_ratio
    bounds = ledger.contention_ratio_interval
    gamma, low, high = (
        max(0.0, 1 - 1 / max(slowdown, 1e-3)) for slowdown in (ratio, bounds.low, bounds.high)
    )
    interval = f"{show_apart(bounds.low)} to {show_apart(bounds.high)}, measured"
    slows = f"compute next to communication takes {ratio:.2f}x as long as alone ({interval})"
    if ratio <= 1:
        slows = f"no slowdown of compute by communication found ({ratio:.2f}x, {interval})"
    return Contention(gamma, low, high, slows)


def _exposed_us(ledger: Ledger | None) -> float | None:
    """Exposed communication of the base's traced steps, where that is known."""
    if ledger is None:
        return None
    return ledger.exposed_us


def _wait_by_rank_us(ledger: Ledger | None) -> Mapping[int, float]:
    """Exposed waiting for each late rank, where traces show it."""
    if ledger is None:
        return {}
    return ledger.wait_by_rank_us


def _slowed(ledger: Ledger | None, step_us: float) -> float | None:
    """How many times as long tracing made a step, where its parts are not reliable for that."""
    if ledger is None:
        return None
    tracer_cost = ledger.traced_step_us / step_us
    return too_slow_to_trust(tracer_cost)


def assumed(contention: Contention, job: JobProfile) -> tuple[str, ...]:
    """What is assumed of communication next to anything else, in words."""
    found = []
    if not contention.basis:
        found.append(
            "how much collectives slow computing, as too little comparable compute ran with and without them; assumed: not at all"
        )
    if any(profile.servers > 1 for profile in job.profiles):
        found.append(
            "how much two collectives in flight slow each other; assumed: they share the link"
        )
    return tuple(found)


@dataclass(frozen=True)
class Question:
    """A base with its costs, and the run it is of, if it is of one, or its traces whose files are
    `cut_short`.
    """

    __repr__ = short_repr

    base: Base
    costs: Costs
    run: RunData | None = None
    cell: Job | None = None
    cut_short: tuple[str, ...] = ()


def base_of_run(path: str | Path, cell_name: str | None = None) -> Question:
    """As `base_of_loaded`, of a run folder."""
    return base_of_loaded(load_run(path), cell_name)


def base_of_loaded(
    run: RunData, cell_name: str | None = None, costs: Costs | None = None
) -> Question:
    """A cell of a run as base: the named one, else DDP's with the most devices. Raises DpscopeError
    where there is none.

    `costs` are those of the machine, else by the links and the calibration that were recorded and
    lie in the run's folder.
    """
    costs = costs or machine_costs(run.manifest, None, calibration_of_run(run.path))
    data = _chosen(run, cell_name)
    cell = data.cell
    assert isinstance(cell, Cell)  # those of a run folder are
    singles = single_cells(run, data)
    alike_cells = [
        row for row in run.measured if row.cell.strategy == cell.strategy and not row.no_scaling
    ]
    tensors = [tensor.bytes for tensor in data.ranks[0][1].model.parameter_tensors]
    repeats = np.unique(data.tables.steps["repeat"]).tolist()  # of which there are traces
    job = _joined(
        [run_profile(run.folder.repeat(cell, repeat).traces(), tensors) for repeat in repeats]
    )
    ledger = run.spreads.ledger(data)
    if ledger is not None:
        single = single_device_baselines(run.measured, cell).get(cell.batch_size)
        ledger = with_contention(ledger, cell_contentions(data, single))
    contention = contention_of_ledger(ledger)
    step_us = _step_us(data)
    base = Base(
        name=cell.name,
        profiles=typical(job.profiles),
        every=job.profiles,
        devices=cell.devices,
        per_node=devices_per_node(data),
        step_us=step_us,
        spread=_spread(data),
        exposed_us=_exposed_us(ledger),
        batch_size=cell.batch_size,
        single_us={batch: _step_us(single) for batch, single in singles.items()},
        single_spread={batch: _spread(single) for batch, single in singles.items()},
        bucketing=Bucketing(cell.options.bucket_mb, cell.options.overlap == "on"),
        hook=cell.options.comm_hook,
        accumulate=cell.options.accumulate,
        kinds=job.kinds,
        lateness=lateness(job.profiles),
        wait_by_rank_us=_wait_by_rank_us(ledger),
        largest=max(alike_cell.cell.devices for alike_cell in alike_cells),
        contention=contention,
        slowed=_slowed(ledger, step_us),
        lacks=(*job.lacks, *assumed(contention, job)),
        host_cores=run.manifest.environment.cpu_count if run.device_type == "cpu" else None,
    )
    base = _as_untraced(base)
    of_base = replace(costs, place=base.place, transfers=_traced(job))
    return Question(base, of_base, run, data)


def base_of_traces(
    paths: Paths,
    devices: int | None = None,
    batch_size: int | None = None,
    bucket_mb: float | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> Question:
    """Traces of one job as base, of which the rest is stated; what they lack is in `lacks`. Raises
    DpscopeError where they cannot be read."""
    files = find_traces(paths)
    name = str(as_paths(paths)[0])
    job = job_profile(files, limits=limits)
    devices = devices or job.devices
    if devices is None:
        raise DpscopeError(
            f"{name}: the trace does not show how many devices the job had; give --base-devices"
        )
    analysis = analyze_traces(files, limits)
    ledger = analysis.ledger
    contention = contention_of_ledger(ledger)
    steps_us = [traced.step_us for traced in job.profiles]
    lacks = (*job.lacks, "the untraced step; all times are with the profiler on")
    lacks += () if batch_size else ("the batch; to predict others, give --base-batch-size",)
    base = Base(
        name=name,
        profiles=typical(job.profiles),
        every=job.profiles,
        devices=devices,
        per_node=devices,
        # as `dpscope analyze` reports it
        step_us=float(np.mean(steps_us)) if ledger is None else ledger.traced_step_us,
        largest=devices,
        spread=max(
            _ONE_REPEAT, NINE_OF_TEN * float(np.std(np.log(steps_us))) / len(steps_us) ** 0.5
        ),
        exposed_us=_exposed_us(ledger),
        batch_size=batch_size,
        bucketing=Bucketing(bucket_mb),
        kinds=job.kinds,
        lateness=lateness(job.profiles),
        wait_by_rank_us=_wait_by_rank_us(ledger),
        contention=contention,
        lacks=(*lacks, *assumed(contention, job)),
    )
    bounded = any(bucket.bounded for profile in base.profiles for bucket in profile.buckets)
    costs = Costs(place=base.place, transfers=_traced(job), transfers_bounded=bounded)
    return Question(base, costs, cut_short=tuple(analysis.cut_short))


def _chosen(run: RunData, name: str | None) -> Job:
    """The named cell of a run, else its traced DDP cell on the most devices, without options where
    there is one.
    """
    if name is not None:
        return _named(run, name)
    usable = [row for row in run.measured if not _why_no_base(row)]
    if not usable:
        reasons = dict.fromkeys(_why_no_base(row) for row in run.measured)
        raise DpscopeError(
            f"{run.path} has no traced DDP cell of several devices, which a base must be "
            f"({'; '.join(reasons)}); measure one"
        )
    plain = [row for row in usable if not row.cell.variant] or usable
    return max(plain, key=lambda row: (row.cell.devices, row.cell.batch_size))


def _why_no_base(data: Job) -> str:
    """Why nothing can be predicted from a cell; empty if it can."""
    if data.no_scaling:
        return data.no_scaling
    if not data.cell.traits.reducer or data.cell.devices == 1:
        return "not DDP on several devices"
    return "" if len(data.tables.steps) else "not traced"


def check_cell(path: Path, name: str) -> None:
    """Refuse a cell that the run at `path` did not plan, before any trace is read."""
    manifest = RunFolder(path).manifest()
    planned = [each.cell.name for each in manifest.plan]
    if name not in planned:
        raise _unknown(path, name, planned)


def _unknown(path: Path, name: str, cells: Sequence[str]) -> DpscopeError:
    """The refusal of a name, with those that there are."""
    advice = choose_from(name, cells, "it has")
    return DpscopeError(f"{path} has no measured cell {name}; {advice}")


def _named(run: RunData, name: str) -> Job:
    cell = run.cells.get(name)
    if cell is None or not cell.measured:
        measured = [row.cell.name for row in run.measured]
        raise _unknown(run.path, name, measured)
    if reason := _why_no_base(cell):
        raise DpscopeError(
            f"{name} cannot be the base: {reason}; choose a traced DDP cell of several devices"
        )
    return cell


def _joined(jobs: Sequence[JobProfile]) -> JobProfile:
    """The repeats of a cell as one job; the steps of each repeat keep distinct numbers."""
    profiles = [
        replace(traced, step=None if traced.step is None else traced.step + 1_000_000 * index)
        for index, job in enumerate(jobs)
        for traced in job.profiles
    ]
    return replace(
        jobs[0], profiles=tuple(profiles), kinds=frozenset().union(*(job.kinds for job in jobs))
    )


def devices_per_node(data: Job) -> int:
    return -(-data.devices // len({rank.node for _, rank in data.ranks}))


def single_cells(run: RunData, data: Job) -> dict[int, Job]:
    """The single-device cells that compute as the base does (its precision, compiled or not), by
    batch per device.

    Where there are some, those with as many micro-batches as the base; else those with one.
    """
    alike = shared_options(data.cell.options)
    one_pass = msgspec.structs.replace(alike, accumulate=1)
    singles = [row for row in run.measured if row.cell.traits.baseline and row.step_samples()]
    by_batch = {}
    for options in (one_pass, alike):
        for single in singles:
            if single.cell.options == options:
                by_batch[single.cell.batch_size] = single
    return by_batch


def _step_us(measured: Job) -> float:
    """The median untraced step of a measured cell."""
    step_us = pooled_median(measured.step_samples())
    assert step_us is not None  # a measured cell has samples
    return step_us


def _spread(measured: Job) -> float:
    """Half a 90% band of its step, in logarithms."""
    return repeats_band([float(np.median(samples)) for samples in measured.step_samples()])


def repeats_band(medians: Sequence[float]) -> float:
    """Half a 90% band, in logarithms, of the median step of one more repeat: a prediction interval
    by Student's distribution.

    Few repeats show their deviation poorly, so the value assumed for one repeat counts as one
    degree of freedom.
    """
    if len(medians) < 2:
        return _ONE_REPEAT
    from scipy.stats import t as student

    count = len(medians)
    assumed = (_ONE_REPEAT / NINE_OF_TEN) ** 2 / 2  # of one repeat less another
    variance = (assumed + (count - 1) * float(np.var(np.log(medians), ddof=1))) / count
    return float(student.ppf((1 + BAND) / 2, count)) * math.sqrt(variance * (1 + 1 / count))


def _traced(job: JobProfile) -> dict[tuple[str, float], float]:
    """Median microseconds of each kind and size that the job ran."""
    found: dict[tuple[str, float], list[float]] = {}
    for profile in job.profiles:
        for bucket in profile.buckets:
            found.setdefault(("all_reduce", bucket.bytes), []).append(bucket.cost_us)
        for other in profile.others:
            if other.bytes is None:
                continue
            found.setdefault((other.kind, other.bytes), []).append(other.cost_us)
    return {key: float(np.median(values)) for key, values in found.items()}


def _as_untraced(base: Base) -> Base:
    """With the trace's own time scaled so that the replay takes as long as the untraced step: the
    tracer lengthens what the host does, which on a CPU is all there is."""
    on_device = any(profile.on_device for profile in base.profiles)

    def scaled(factor: float) -> Base:
        return replace(base, traced=Scale(host=factor) if on_device else Scale(busy=factor))

    def replayed_us(factor: float) -> float:
        of_factor = scaled(factor)
        return float(
            np.mean(
                [
                    of_factor.replayed(profile, base.contention.gamma).step_us
                    for profile in base.profiles
                ]
            )
        )

    low, high = 0.2, 1.0
    if replayed_us(high) <= base.step_us or replayed_us(low) >= base.step_us:
        return base
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if replayed_us(middle) < base.step_us else (low, middle)
    what = "times on the host" if on_device else "compute times"
    lacks = f"{what} without the tracer; assumed: {high:.2f} of the traced ones, which fits the untraced step"
    return replace(scaled(high), lacks=(*base.lacks, lacks))
