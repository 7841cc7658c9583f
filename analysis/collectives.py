"""One row per collective per rank: kind, group, size, time. Matching across ranks is `rank_matching`'s."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpscope.analysis.attribution import NO_STEP, Attribution
from dpscope.analysis.event_kind import Kind, collective_kind, named_annotations
from dpscope.analysis.event_table import BoolColumn, Category, CommunicationArgs, IntColumn
from dpscope.analysis.tensor_sizes import buffer_bytes

COLUMNS = (
    "rank", "device", "step", "kind", "group", "sequence", "order", "bytes", "group_size", "start_us", "duration_us",
)  # fmt: skip

_NO_ARGS = CommunicationArgs()


def collectives(attribution: Attribution) -> pd.DataFrame:
    """One row per collective of one rank, COLUMNS, in order of launch (gloo: of creation).

    `bytes` is the larger of the rank's input and output buffer, `order` counts the collectives of a group (a pair of
    ranks matches by it where no sequence number is recorded), `start_us` counts from the trace's start. Unknown is
    NA. `step` is NA for a collective that no traced step launched.
    """
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    when = attribution.launch_us if attribution.on_device else attribution.events.start_us
    launched = np.where(np.isfinite(when[rows]), when[rows], attribution.events.start_us[rows])
    rows = rows[np.argsort(launched, kind="stable")]
    frame = pd.DataFrame(
        list(_rows(attribution, rows)), columns=[name for name in COLUMNS if name not in ("rank", "order")]
    )
    frame.insert(0, "rank", attribution.trace.rank)
    frame.insert(COLUMNS.index("order"), "order", frame.groupby("group", dropna=False).cumcount())
    whole = ["rank", "device", "step", "sequence", "order", "bytes", "group_size"]
    frame[whole] = frame[whole].astype("Int64")
    frame[["kind", "group"]] = frame[["kind", "group"]].astype("string")
    frame[["start_us", "duration_us"]] = frame[["start_us", "duration_us"]].astype("Float64")
    return frame


def _rows(attribution: Attribution, rows: IntColumn) -> Iterator[dict[str, object]]:
    events, trace = attribution.events, attribution.trace
    enclosing = _enclosing_annotation(attribution, rows) if attribution.on_device else rows
    operator = _enclosing_operator(attribution, rows) if attribution.on_device else np.full(len(rows), -1)
    for row, annotation, comms in zip(rows, enclosing, operator, strict=True):
        sources = [events.communication.get(int(source), _NO_ARGS) for source in (row, comms, annotation)]
        args = _first_known(sources)
        names = [source.collective_name for source in sources[:2]]
        names.append(events.names[events.name[annotation]] if annotation >= 0 else None)
        names.append(events.names[events.name[row]])
        kind = next((found for name in names if name and (found := collective_kind(name))), None)
        step = attribution.step[row]
        device = int(events.device[row])
        yield {
            "device": device if device >= 0 else None,
            "step": None if step == NO_STEP else attribution.steps.numbers[step],
            "kind": kind,
            "group": args.group,
            "sequence": args.sequence,
            "bytes": buffer_bytes(args, kind, args.group_size or _default_group_size(attribution)),
            "group_size": args.group_size or _default_group_size(attribution),
            "start_us": float(events.start_us[row]),
            "duration_us": float(events.duration_us[row]),
        } | ({} if trace.has_accelerator else {"device": None})


def _default_group_size(attribution: Attribution) -> int | None:
    """Without metadata a collective is taken to span the job, if the trace says how large that is."""
    return attribution.trace.world_size


def _first_known(sources: list[CommunicationArgs]) -> CommunicationArgs:
    """Each field from the first source that has it."""
    return CommunicationArgs(
        *(
            next((value for source in sources if (value := getattr(source, name)) is not None), None)
            for name in CommunicationArgs.__slots__
        )
    )


def _enclosing_annotation(attribution: Attribution, rows: IntColumn) -> IntColumn:
    """The `nccl:` annotation in which each collective was launched, -1 for none."""
    return _enclosing(attribution, rows, named_annotations(attribution.events, "nccl:"))


def _enclosing_operator(attribution: Attribution, rows: IntColumn) -> IntColumn:
    """The `record_param_comms` operator in which each collective was launched, -1 for none."""
    events = attribution.events
    wanted = np.array([name == "record_param_comms" for name in events.names], dtype=bool)
    return _enclosing(attribution, rows, events.is_category(Category.CPU_OP) & events.has_name(wanted))


def _enclosing(attribution: Attribution, rows: IntColumn, candidates: BoolColumn) -> IntColumn:
    """Of the candidate ranges on the launching thread, the latest begun that contains the launch; -1 for none."""
    events = attribution.events
    result: npt.NDArray[np.int64] = np.full(len(rows), -1, dtype=np.int64)
    launch_rows = attribution.launch_row[rows]
    known = launch_rows >= 0
    threads = np.where(known, events.thread[np.maximum(launch_rows, 0)], -1)
    for thread in np.unique(threads[known]):
        own = np.flatnonzero(candidates & (events.thread == thread))
        if not len(own):
            continue
        own = own[np.argsort(events.start_us[own], kind="stable")]
        mine = np.flatnonzero(known & (threads == thread))
        times = events.start_us[launch_rows[mine]]
        index = np.searchsorted(events.start_us[own], times, side="right") - 1
        inside = (index >= 0) & (times <= events.end_us[own[np.maximum(index, 0)]])
        result[mine[inside]] = own[index[inside]]
    return result
