"""Calibrations read from files, one reader for each format, chosen by the file's suffix; among them nccl-tests' logs.

Newer logs name their collective in a separate line; older ones only show it by which of the columns `redop` and `root` they
have. If the columns fit several collectives, the ratio of busbw to algbw decides, which is 2(N-1)/N for all-reduce, (N-1)/N
for reduce-scatter, all-gather and all-to-all (nccl-tests, doc/PERFORMANCE.md); else the file's name.

Launchers put a prefix before each line: `srun -l` the task ("0: "), `mpirun --tag-output` job and rank ("[1,0]<stdout>:"),
Intel MPI and MPICH the rank ("[0] "), pdsh and clush the host ("node01: "). Lines with the same prefix are one process's.
"""

import importlib.metadata
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.profiling.machine.link_specifications import gpu_model, model_link
from dpscope.profiling.records.calibration import (
    CALIBRATION_SCHEMA_VERSION,
    COLLECTIVES,
    Calibration,
    CalibrationPoint,
    Collective,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import CALIBRATION_NAME


def calibration_path(out: Path) -> Path:
    """The path of a calibration: `out` itself if it is a .json file, else calibration.json in that folder."""
    return out if out.suffix == ".json" else out / CALIBRATION_NAME


def load_calibration(path: Path) -> Calibration:
    """Read what `dpscope calibrate` wrote (a run folder or the file itself); raises DpscopeError for a file of another kind."""
    calibration = read_json(calibration_path(path), Calibration)
    if calibration.schema_version != CALIBRATION_SCHEMA_VERSION:
        raise DpscopeError(
            f"{calibration_path(path)} has schema version {calibration.schema_version}, this dpscope reads "
            f"{CALIBRATION_SCHEMA_VERSION}; calibrate again"
        )
    return fit_calibration(calibration)


def calibration_of_run(folder: Path) -> Calibration | None:
    """The calibration in a run's folder; None where there is none."""
    return load_calibration(folder) if calibration_path(folder).exists() else None


_PREFIX = re.compile(r"(.*?<std(?:out|err)>:|\s*\d+:|\s*\[[^\]]*\](?=\s)|[A-Za-z][\w.-]*:(?=\s)) ?(?=\s*(?:#|\d+\s))")
_RANK = re.compile(r"#\s+Rank\s+\d+\s+(Group\s+\d+\s)?.*?\son\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*?)\s*$")
_HEADINGS = re.compile(r"#\s+size\s+count\s+type\s")
_NAMED = re.compile(r"\b(all_?reduce|broadcast|reduce_?scatter|all_?gather|all_?to_?all|reduce)(?=_perf|[\W_]|$)")
_DTYPES = {"float": "float32", "half": "float16", "double": "float64", "bfloat16": "bfloat16"}
_RATIO_TOLERANCE = 0.1  # busbw and algbw are printed with two decimals
_CLEAR_GB_PER_S = 1.0  # rates below this are too coarsely printed for their ratio


LOG_SUFFIXES = (".log", ".txt", ".out")  # of nccl-tests' logs in a folder


@dataclass
class _Section:
    """One test's part of a log: from its list of ranks to its last row."""

    path: Path
    group: str | None = None  # the first rank's, if ranks name theirs
    hosts: list[str] = field(default_factory=list)  # of each rank in the group
    ranks: list[str] = field(default_factory=list)  # device name of each rank in the group
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    named: Collective | None = None

    def column(self, name: str, in_place: bool = False) -> int:
        """The out-of-place column of this name is the first, the in-place one the second."""
        places = [index for index, heading in enumerate(self.headings) if heading == name]
        if len(places) <= in_place:
            which = "in-place" if in_place else "out-of-place"
            raise DpscopeError(f"{self.path} has no {which} column {name}; give the whole log")
        return places[in_place]

    def number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise DpscopeError(f"{self.path}: {text} stands where a number must; the log is damaged") from error


def calibration_from_logs(paths: Sequence[Path], in_place: bool = False, link: LinkRate | None = None) -> Calibration:
    """The logs as one calibration with its fits; in-place columns instead of out-of-place ones on request.

    A log holds one mean per size and no samples. The link is `link` where the user states one, else what the GPUs'
    names show, else unknown. Raises DpscopeError with the file and line of what is no such log or is damaged.
    """
    if not paths:
        raise DpscopeError("--from-nccl-tests: name one log or more")
    sections = [section for path in paths for section in _sections(path)]
    spans: dict[int, set[int]] = {}
    links: dict[int, LinkRate] = {}
    for section in sections:
        hosts, models = set(section.hosts), set(section.ranks)
        spans.setdefault(len(section.ranks), set()).add(len(hosts))
        model = gpu_model(section.ranks[0]) if len(hosts) == len(models) == 1 else None
        if rate := link or (model_link(model) if model is not None else None):
            links[len(section.ranks)] = rate
    points = [
        msgspec.structs.replace(point, nodes=nodes if nodes > 1 or len(spans[point.devices]) > 1 else None)
        for section in sections
        for nodes in (len(set(section.hosts)),)
        for point in _points(section, in_place)
    ]
    calibration = Calibration(
        schema_version=CALIBRATION_SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source="nccl-tests",
        settings=None,
        backend="nccl",
        environment=None,
        device_names=max((tuple(section.ranks) for section in sections), key=len),
        points=tuple(points),
        links=links,
        nodes={devices: min(nodes) for devices, nodes in spans.items()},
    )
    return fit_calibration(calibration)


def _sections(path: Path) -> list[_Section]:
    """The tests in a log, process by process; one process may print several, one after another."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DpscopeError(f"{unreadable(path, error)}; name a log of nccl-tests") from error
    by_prefix: dict[str, list[_Section]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        found = _PREFIX.match(line)
        sections = by_prefix.setdefault(found[1].strip() if found else "", [_Section(path)])
        _add_line(sections, line[found.end() :] if found else line, f"{path}, line {number}")
    sections = [section for own in by_prefix.values() for section in own if section.rows]
    if not sections:
        raise DpscopeError(
            f"{path} has no row of nccl-tests' table (size, count, type, time, ...); name a log of nccl-tests"
        )
    return sections


def _add_line(sections: list[_Section], line: str, where: str) -> None:
    current, rank = sections[-1], _RANK.match(line)
    if current.rows and (rank or _HEADINGS.match(line)):
        current = _Section(current.path) if rank else _Section(current.path, hosts=current.hosts, ranks=current.ranks)
        sections.append(current)
    if rank:
        current.group = current.group if current.ranks else rank[1]
        if rank[1] == current.group:  # NCCL_TESTS_SPLIT runs the collective in several groups at once
            current.hosts.append(rank[2])
            current.ranks.append(rank[3])
    elif _HEADINGS.match(line):
        current.headings = line.lstrip("# ").split()
    elif line.startswith("#"):
        current.named = _name_in(line) if "perf" in line else current.named
    elif re.match(r"\s*\d+\s+\d+\s+[a-z]", line):
        row = line.split()
        if not current.headings:
            raise DpscopeError(
                f"{where}: a row without the headings (# size count type ...) above it; give the whole log"
            )
        if len(row) != len(current.headings):
            raise DpscopeError(
                f"{where}: {len(row)} values under {counted(len(current.headings), 'heading')}; the log is cut or mixed with "
                "other output: repair or remove the line"
            )
        current.rows.append(row)


def _name_in(text: str) -> Collective | None:
    found = _NAMED.search(text.lower())
    return COLLECTIVES[found[1].replace("_", "")] if found else None


def _points(section: _Section, in_place: bool) -> list[CalibrationPoint]:
    path = section.path
    if len(section.ranks) < 2:
        raise DpscopeError(
            f"{path}: lists {counted(len(section.ranks), 'rank')} (# Rank 0 ...); a collective needs two, "
            "and without the list their number is not known: give the whole log"
        )
    collective = _collective(section)
    time_column = section.column("time", in_place)
    points = []
    for row in section.rows:
        size = int(row[0])
        if size == 0 or row[time_column] == "N/A":
            continue
        time_us = section.number(row[time_column])
        if time_us <= 0:
            raise DpscopeError(f"{path}: a time of {row[time_column]} µs at size {size}; remove the line")
        points.append(
            CalibrationPoint(
                collective=collective,
                devices=len(section.ranks),
                size_bytes=size,
                count=int(row[1]),
                dtype=_DTYPES.get(row[2], row[2]),
                times_us=(time_us,),
            )
        )
    if not points:
        missing = "in-place" if in_place else "out-of-place"
        raise DpscopeError(f"{path} has no {missing} time above size 0; measure larger sizes")
    return points


def _collective(section: _Section) -> Collective:
    """By the columns redop and root, which newer logs always have, with `none` and -1 where they mean nothing; then by busbw /
    algbw of the largest size, where they are not printed too coarsely; then by name."""
    first = dict(zip(section.headings, section.rows[0], strict=True))
    reduces, rooted = first.get("redop", "none") != "none", first.get("root", "-1") != "-1"
    candidates: list[Collective] = ["all_reduce", "reduce_scatter"] if reduces else ["all_gather", "all_to_all"]
    if rooted:
        candidates = ["reduce"] if reduces else ["broadcast"]
    algbw, busbw = (section.number(section.rows[-1][section.column(name)]) for name in ("algbw", "busbw"))
    if algbw >= _CLEAR_GB_PER_S and busbw > 0:
        factors = {name: bus_factor(name, len(section.ranks)) or 1.0 for name in candidates}
        candidates = [name for name in candidates if abs(busbw / algbw / factors[name] - 1) < _RATIO_TOLERANCE]
    if len(candidates) == 1:
        return candidates[0]
    named = section.named or _name_in(section.path.name)
    if named is not None and (not candidates or named in candidates):
        return named
    raise DpscopeError(
        f"{section.path}: its columns fit several collectives; name the file after it, such as all_gather.log"
    )


def costs_at(path: Path, option: str = "--calibration") -> Calibration:
    """A calibration from calibration.json, a folder that holds one, or logs (a file or a folder of them).

    Raises DpscopeError for anything else.
    """
    if calibration_path(path).is_file() and (path.is_dir() or path.suffix == ".json"):
        return load_calibration(path)
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    for _, suffixes, read in _LOG_READERS:
        if files := [one for one in inside if one.is_file() and one.suffix in suffixes]:
            return read(files)
    if path.is_file():
        return calibration_from_logs([path])
    raise DpscopeError(
        f"{option} {path}: neither a calibration.json, a folder that holds one, nor logs of {_known_logs()}; make one with "
        "dpscope calibrate"
    )


_LOG_READERS: tuple[tuple[str, tuple[str, ...], Callable[[Sequence[Path]], Calibration]], ...] = (
    ("nccl-tests", LOG_SUFFIXES, calibration_from_logs),
)
"""Programs, the suffixes of their logs and what reads these; of a folder the first that is there. Other files are ignored."""


def _known_logs() -> str:
    return ", ".join(f"{program} ({', '.join(suffixes)})" for program, suffixes, _ in _LOG_READERS)
