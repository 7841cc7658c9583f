"""What is printed of the traces of one job, as JSON and tables; of more ranks than a table holds
their spread and places.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.report.rank_tables import (
    contention_table,
    phase_table,
    wait_table,
    without_cell,
)
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, show_time, text
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.ranks.exposed_parts import EXPOSED, EXPOSED_WAIT
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import PAIR_COLUMNS
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS
from dpscope.analysis.traces.ranks.places import (
    FOLDS,
    QUANTITIES,
    RankSpread,
    fold,
    rank_means,
    rank_places,
    spreads,
    with_host_findings,
)
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.analysis.traces.ranks.whole_steps import TIMES_AS_LONG, UNKNOWN_START, far_longer
from dpscope.analysis.traces.reading.table import COLUMN_KINDS, Table
from dpscope.analysis.traces.steps import data_parallel as dp_phases
from dpscope.analysis.traces.steps.breakdown import COLUMNS as STEP_FIELDS
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.store.shown_text import complain

_NAMED = 3  # files or cells of which one observation is made
_MOST_ALIKE = 2  # findings that are shown of one kind; --format json has them all
_TIMES, _RATES = ("duration_us", "transfer_us", "wait_us"), ("algbw_gb_per_s", "busbw_gb_per_s")

WAIT_FIELDS = ("transfer_us", "wait_us", *EXPOSED)
COLLECTIVE_FIELDS = (
    "rank", "device", "step", "kind", "moved_as", "group", "sequence", "bytes", "group_size", "start_us", "duration_us",
    "queue_us", "concurrent", "transfer_us", "wait_us", "algbw_gb_per_s", "busbw_gb_per_s", "lower_bound_gb_per_s",
)  # fmt: skip


def _steps(job: Job) -> Table:
    """Of a step whose communication the trace does not show, idle would hold that, too."""
    steps = job.tables.steps
    if job.communication_known:
        return steps
    return steps.assign(**dict.fromkeys(_UNKNOWN_WITH_COMMUNICATION))


def _phases_of(job: Job) -> Table:
    """None where the trace does not show the communication in them."""
    phases = job.tables.dp_phases
    return phases if job.communication_known else phases.take(np.arange(0))


_UNKNOWN_WITH_COMMUNICATION = (
    "communication_us", "hidden_us", "exposed_us", "idle_us", *WAIT_FIELDS,
)  # fmt: skip
LISTS: Mapping[str, tuple[tuple[str, ...], Callable[[Job], Table]]] = {
    "steps": ((*STEP_FIELDS, *WAIT_FIELDS), _steps),
    "collectives": (COLLECTIVE_FIELDS, lambda job: job.tables.collectives),
    "dp_phases": (dp_phases.COLUMNS, _phases_of),
    "waits": ((*PAIR_COLUMNS, *EXPOSED_WAIT), lambda job: job.every_wait),
}
"""What JSON has of each job, of a run's cells and of traces: by name, the fields of the rows of a
table.
"""


@dataclass(frozen=True)
class Folded:
    """A job's ranks in few numbers."""

    places: Table
    spreads: list[RankSpread]
    folds: Mapping[str, Table]  # of FOLDS, those with rows


def few_of_each_kind(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first; findings that differ only in what they name are one, with the first _MOST_ALIKE
    observations, each once with all that it is about, and how many more there are.
    """
    order = {"error": 0, "warning": 1, "info": 2}
    in_order = sorted(findings, key=lambda finding: order[finding.severity])
    kinds = grouped(((message.code, message.next_step), message) for message in in_order)
    shown = []
    for alike in kinds.values():
        about = grouped((same.observation, same.about) for same in alike)
        messages = [
            f"{listed(names, _NAMED)}: {observation}" if names[0] else observation
            for observation, names in about.items()
        ]
        more = len(messages) - _MOST_ALIKE
        messages = messages[: _MOST_ALIKE + (more == 1)]
        if more > 1:
            messages.append(f"and {more} more like these")
        shown.append(msgspec.structs.replace(alike[0], message="; ".join(messages)))
    return shown


def trace_status(
    findings: Sequence[Finding], cut_short: Sequence[str], on_screen: bool = False
) -> int:
    """The exit status of a command on traces or records: 2 if any was `cut_short`, named on standard
    error unless the facts `on_screen` name it; 1 after an error.
    """
    if cut_short and not on_screen:
        files = listed(cut_short, 1)
        complain(
            f"cut short or damaged: {files}; the numbers hold what could be read: "
            "read a whole copy, or trace again"
        )
    return 2 if cut_short else int(any(finding.severity == "error" for finding in findings))


def trace_content(
    analysis: Job, few: Folded | None = None, findings: Sequence[Finding] = ()
) -> dict[str, list[Any]]:
    """The lists steps, collectives, dp_phases, waits, contention, findings, as plain data; unknown
    is None.

    Of many ranks `few` stands in place of the rows of each.
    """
    rows = dict[str, list[Any]]()
    if few is not None:
        rows = {"spreads": [asdict(spread) for spread in few.spreads]}
        rows |= {f"by_{by}": table.records() for by, table in few.folds.items()}
    else:
        for name, (fields, table_of_job) in LISTS.items():
            rows[name] = records(table_of_job(analysis), fields)
    contention = contention_records(analysis.contentions, _hidden_us(analysis), analysis.on_device)
    return {**rows, "contention": contention, "findings": msgspec.to_builtins(list(findings))}


def _hidden_us(analysis: Job) -> float | None:
    return analysis.ledger.hidden_us if analysis.ledger is not None else None


def records(table: Table, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows as plain Python, these fields of each, with six decimals; missing values and missing
    columns are None.
    """
    real = [name for name in fields if name in table and COLUMN_KINDS[name] == "real"]
    return table.assign(
        **{name: list(map(decimals, table[name].tolist())) for name in real}
    ).records(fields)


def decimals(value: object) -> object:
    """A float with six decimals, without -0.0, None if it is not finite; any other value as it
    is.
    """
    if not isinstance(value, float):
        return value
    return round(value, 6) + 0.0 if math.isfinite(value) else None


_CONTENTION_FIELDS = (
    "contention_us", "contention_low_us", "contention_high_us", "contention_ratio", "contention_ratio_low",
    "contention_ratio_high", "hidden_us", "net_gain_us", "compared_share",
)  # fmt: skip


def contention_records(
    found: Contentions, hidden_us: float | None, on_device: bool
) -> list[dict[str, object]]:
    """All operators together (`operator` is None), then each; with unknown values and `missing`,
    the reason, if nothing compares.

    `contention_us` is what a step's hidden communication costs. An operator's `hidden_us` is its
    share of that, by the overlapped time that was compared; `net_gain_us` is it minus its cost.
    """
    on, missing = "device" if on_device else "cpu", found.reason or None
    if found.every is None:
        unknown = dict.fromkeys(_CONTENTION_FIELDS) | {"hidden_us": decimals(hidden_us)}
        return [{"operator": None, "on": on, **unknown, "kernels": 0, "missing": missing}]
    rows = []
    for measured in (found.every, *found.by_operator):
        part = (
            measured.overlapped_us / found.every.overlapped_us
            if measured.operator is not None
            else 1.0
        )
        own_us = None if hidden_us is None else hidden_us * part
        shares = (
            measured.share,
            *(measured.share_interval or (None, None)),
            1.0,
            1.0 - measured.share,
        )
        cost, low, high, hidden, gain = (
            None if own_us is None or by is None else own_us * by for by in shares
        )
        values = (
            cost,
            low,
            high,
            measured.ratio,
            *(measured.ratio_interval or (None, None)),
            hidden,
            gain,
            measured.compared,
        )
        shown = {
            name: decimals(value) for name, value in zip(_CONTENTION_FIELDS, values, strict=True)
        }
        rows.append(
            {
                "operator": measured.operator,
                "on": on,
                **shown,
                "kernels": measured.kernels,
                "missing": missing,
            }
        )
    return rows


def to_tables(analysis: Job, few: Folded | None = None) -> list[TextTable]:
    """The views of a job that have rows, for reading: steps, or of many ranks `few`; collectives by
    kind and size, who made whom wait, contention, DataParallel's phases.
    """
    if few is None:
        tables = [view(analysis) for view in _JOB_VIEWS]
    else:
        tables = [
            *spread_tables(few),
            _collective_table(analysis, by_group=False),
            _contention(analysis),
        ]
    return [table for table in tables if table.rows]


def _waits(analysis: Job) -> TextTable:
    return without_cell(wait_table({"": analysis.mean_waits}))


def _contention(analysis: Job) -> TextTable:
    found = ("", analysis.contentions, _hidden_us(analysis))
    return without_cell(contention_table([found]))


def _phases(analysis: Job) -> TextTable:
    return without_cell(phase_table({"": analysis.tables.dp_phases}))


_STEP_COLUMNS = {"step": "step", **STEP_PARTS, "hidden": "hidden comm."}


def _step_table(analysis: Job) -> TextTable:
    steps = analysis.tables.steps
    headings = {f"{part}_us": heading for part, heading in _STEP_COLUMNS.items()}
    columns = {name: heading for name, heading in headings.items() if steps.known(name).any()}
    partial, far, notes = steps.truths("partial_window"), far_longer(steps), []
    if "exposed_other_us" in columns:
        parts = " + ".join(
            heading for name, heading in columns.items() if name not in ("step_us", "hidden_us")
        )
        notes.append(f"step = {parts}; wait, transfer and other are exposed communication")
    if partial.all():
        partial[:] = False  # a limit of all that is shown
    elif (partial & steps.known("step_us")).any() and steps.known("device").any():
        starred = steps.take(partial & steps.known("step_us"))
        first = "first traced step"
        if len(starred.group("rank", "device")) < len(starred):
            first = f"{first}, or one after a step without work"
        notes.append(f"* {first}: {UNKNOWN_START}, and it is left out of averages")
    elif partial.any():
        late = "the tracer stopped during it, so late events may look longer"
        notes.append(f"* last traced step: {late}; it is left out of averages")
    if far.any():
        notes.append(f"** more than {TIMES_AS_LONG:g} times the median step: left out of averages")
    stars = np.where(far, "**", np.where(partial, "*", "")).tolist()
    fields = (
        Field("rank", "rank"),
        Field("device", "device"),
        Field("step", lambda row: text(row["step"]) + row["stars"]),
        *(Field(heading, name, "time") for name, heading in columns.items()),
    )
    rows = [{**row, "stars": own} for row, own in zip(steps.records(), stars, strict=True)]
    return table_of("Steps", fields, rows, notes, times=steps["step_us"].tolist())


def _collective_table(analysis: Job, by_group: bool = True) -> TextTable:
    """Collectives of whole steps, by kind, group (unless those are many) and size: their count,
    mean times and rates.
    """
    every = analysis.tables.collectives
    whole = analysis.step_collectives
    in_steps = every.known("step")
    collectives = whole if in_steps.any() else every  # without marked steps all count
    named_groups = by_group and len(collectives.words("group").counts) > 1
    groups = collectives.group(
        *(("kind", "group", "bytes") if by_group else ("kind", "bytes")), in_order=True
    )
    means = {name: groups.means(collectives[name]) for name in _TIMES}
    # As nccl-tests: bytes / mean time. Weighted by its time, each rate gives its bytes again, also
    # where ranks' own differ.
    rates = {
        name: groups.means(collectives[name] * collectives["transfer_us"]) / means["transfer_us"]
        for name in _RATES
    }
    rows = collectives.take(groups.first).assign(**means, **rates, count=groups.sizes).records()

    kind = Field("kind", "kind")
    if named_groups:
        kind = Field("kind (group)", lambda row: f"{text(row['kind'])} ({text(row['group'])})")
    fields = (
        kind,
        Field("bytes", lambda row: None if row["bytes"] is None else f"{row['bytes']:,}"),
        Field("count", "count"),
        *(Field(name.removesuffix("_us"), name, "time") for name in _TIMES),
        *(Field(name.removesuffix("_gb_per_s"), name, Unit("GB/s", 1.0, 3)) for name in _RATES),
    )
    of_profiler = analysis.foreign_format is None
    notes = list(_collective_notes(collectives, of_profiler))
    if len(outside := every.take(~in_steps & in_steps.any())):
        kinds = Counter(kind or "unknown" for kind in outside.words("kind").tolist())
        named = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        total = f"{named}; {show_time(float(outside['duration_us'].sum()))} together"
        notes.append(
            f"{counted(len(outside), 'collective')} outside any step ({total}): not in this table"
        )
    return table_of(
        "Collectives (mean times; rates: bytes / mean transfer)",
        fields,
        rows,
        notes,
        times=collectives["duration_us"].tolist(),
    )


def _collective_notes(collectives: Table, of_profiler: bool) -> Iterator[str]:
    """Why times are missing, and what bandwidths are of where the ranks' own bytes do not give
    them.
    """
    lacking = collectives.take(~collectives.known("transfer_us") & (collectives["group_size"] != 1))
    rooted = lacking.words("kind").isin(*ROOTED)
    if rooted.any():
        named = ", ".join(lacking.words("kind")[rooted].counts)
        yield f"no transfer, wait or bandwidth for {named}: they do not make all ranks wait for each other"
    others = lacking.take(~rooted)
    read = len(collectives.group("rank"))
    if (others["group_size"] > read).any() or (len(others) and read == 1):
        yield "transfer, wait and bandwidths need the traces of all ranks of a group"
    elif len(others):
        yield "transfer, wait and bandwidths are NA where collectives could not be matched across ranks: see the findings"
    sized = collectives.known("bytes").all()
    if not sized and not of_profiler:
        yield "bytes are NA where the export holds no sizes of NCCL's: export with --include-blobs=true"
    elif not sized:
        yield (
            "bytes are NA where the trace records no sizes: replayed graphs, work launched before the trace, an operator that "
            "launched several, or shapes that were not recorded (record_shapes=True)"
        )
    matched = collectives.take(collectives.known("match"))
    if (matched.group("match").different(matched["bytes"]) > 1).any():
        yield (
            "ranks sent different amounts: bytes are each rank's own, bandwidth uses the largest"
        )


_JOB_VIEWS = (_step_table, _collective_table, _waits, _contention, _phases)
"""The tables of a job, in reading order, where each of its ranks is shown."""

_FAR_OUT = "far out: ranks more than six median absolute deviations above the median"
_SHOWN = 10  # rows of a fold; the JSON has them all


def placed(analysis: Job, numbers: Anonymizer | None = None) -> tuple[Job, Table]:
    """The analysis with findings about its hosts, and where its ranks run; with `numbers` for the
    hosts' names in all of it.
    """
    places = rank_places(analysis.summaries)
    if numbers is not None:
        analysis, places = _hidden(analysis, places, numbers.text)
    return with_host_findings(analysis, places), places


def fold_ranks(analysis: Job, places: Table) -> Folded:
    """What stands in place of each rank's rows: its JSON is `spreads`, `by_host` and
    `by_local_rank`.
    """
    means = rank_means(analysis)
    folds: dict[str, Table] = {}
    for by in FOLDS:
        table = fold(analysis, means, places, by)
        if len(table):
            folds[by] = table
    return Folded(places, spreads(means), folds)


def spread_tables(found: Folded) -> list[TextTable]:
    """Ranks by their spread, then waiting by host and local rank."""
    places = {row["rank"]: row for row in found.places.records()}

    def worst(one: RankSpread) -> str:
        place = places[one.worst_rank]
        if place["host"] is None:
            return f"rank {place['rank']}"
        return f"rank {place['rank']} ({place['host']}, local {place['local_rank']})"

    fields = (
        Field("", lambda one: QUANTITIES[one.quantity]),
        Field("median", "median_us", "time"),
        Field("5%", "low_us", "time"),
        Field("95%", "high_us", "time"),
        Field("worst", "worst_us", "time"),
        Field("worst is", worst),
        Field("far out", "far"),
    )
    ranks = counted(max((late.ranks for late in found.spreads), default=0), "rank")
    notes, times = [_FAR_OUT], [late.median_us for late in found.spreads]
    spread = table_of(
        f"{ranks} (means over each rank's steps)", fields, found.spreads, notes, times=times
    )
    return [spread, *(_fold_table(by, table) for by, table in found.folds.items())]


def _fold_table(by: str, table: Table) -> TextTable:
    name, left = by.replace("_", " "), len(table) - _SHOWN
    fields = (
        Field(name, by),
        Field("ranks", "ranks"),
        Field("waits, hidden too", "wait_us", "time"),
        Field("causes", "caused_share", "share"),
    )
    notes = [f"and {left} more, which cause less"] if left > 0 else []
    notes.append(
        "waits: mean per rank and step, exposed or behind compute; causes: the share of all of it in the job for its ranks"
    )
    return table_of(
        f"Waiting by {name}",
        fields,
        table.records()[:_SHOWN],
        notes,
        times=table["wait_us"].tolist(),
    )


def _hidden(analysis: Job, places: Table, without_names: Callable[[str], str]) -> tuple[Job, Table]:
    """Hosts by number, also in the names of files and in findings."""

    def numbered(host: str | None) -> str | None:
        return None if host is None else without_names(host)

    def renamed(one: Finding) -> Finding:
        return msgspec.structs.replace(
            one, message=without_names(one.message), next_step=without_names(one.next_step)
        )

    def without_host(summary: TraceSummary) -> TraceSummary:
        return replace(
            summary,
            host=numbered(summary.host),
            read_on=numbered(summary.read_on),
            source=without_names(summary.source),
        )

    hidden = replace(
        analysis,
        summaries=tuple(map(without_host, analysis.summaries)),
        without_communication=tuple(map(without_host, analysis.without_communication)),
        timelines=tuple(
            (repeat, msgspec.structs.replace(one, host=numbered(one.host)))
            for repeat, one in analysis.timelines
        ),
        findings=tuple(map(renamed, analysis.findings)),
    )
    return hidden, places.assign(host=[numbered(host) for host in places.words("host").tolist()])
