"""nccl-tests' logs: the tests in them, checked against what the logs themselves hold.

Newer logs name their collective in a separate line; older ones only show it by which of the columns
`redop` and `root` they have. If the columns fit several collectives, the ratio of busbw to algbw
decides, which is 2(N-1)/N for all-reduce, (N-1)/N for reduce-scatter, all-gather and all-to-all
(nccl-tests, doc/PERFORMANCE.md); else the file's name. A ratio that no collective has on the listed
ranks shows that the rows are not theirs; rates below half a GB/s are printed too coarsely to tell.

Launchers put a prefix before each line: `srun -l` the task ("0: "), `mpirun --tag-output` job and
rank ("[1,0]<stdout>:"), Intel MPI and MPICH the rank ("[0] "), pdsh and clush the host ("node01:
"). Lines with the same prefix are one process's. Without a prefix the lines of several jobs cannot
be separated: their rows do not name a job.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.profiling.records.calibration import COLLECTIVES, CalibrationPoint, Collective
from dpscope.profiling.records.finding import counted, grouped, listed
from dpscope.profiling.store.errors import DpscopeError, unreadable

_PREFIX = re.compile(
    r"(.*?<std(?:out|err)>:|\s*\d+:|\s*\[[^\]]*\](?=\s)|[A-Za-z][\w.-]*:(?=\s)) ?(?=\s*(?:#|\d+\s))"
)
_RANK = re.compile(
    r"#\s+Rank\s+(?P<number>\d+)\s+(?:Group\s+(?P<group>\d+)\s)?.*?\bon\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+"
    r"(?P<device>.*?)\s*$"
)
_HEADINGS = re.compile(r"#\s+size\s+count\s+type\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]")
_BEGIN = re.compile(r"#\s+(?:nThread\s+\d+|Using devices|Collective test starting)")
_END = re.compile(r"#\s+(Out of bounds values|Avg bus bandwidth)\s*:(.*)")
_PROGRAM = re.compile(r"\b([a-z]\w*?)_perf\b")
_NAMED = re.compile(
    r"\b(all_?reduce|broadcast|reduce_?scatter|all_?gather|all_?to_?all|reduce)(?=_perf|[\W_]|$)"
)
# of the program, those that change what is timed
_OPTION = re.compile(r"\b(agg iters|graph|blocking): (\d+)")
_VARIABLE = re.compile(r"NCCL INFO (NCCL_(?!DEBUG)\w+) set by environment to (\S+?)\.?\s*$")
_DTYPES = {"float": "float32", "half": "float16", "double": "float64", "bfloat16": "bfloat16"}
_VARIANT_COLUMNS = ("type", "redop", "root")
_FINE_GB_PER_S = 0.5  # with two decimals, either rate is printed within 1% from here on
_RATIO_TOLERANCE = 0.025


@dataclass(frozen=True)
class _Rank:
    number: int
    group: str | None
    host: str
    device: str


@dataclass(frozen=True)
class LoggedTest:
    """One test: a collective over its ranks, with one data type, operation and root, under the same
    settings.
    """

    path: Path
    collective: Collective
    hosts: tuple[str, ...]  # of each rank
    device_names: tuple[str, ...]  # of each rank
    variant: dict[str, str]  # what distinguishes it from other tests of the collective
    points: tuple[CalibrationPoint, ...]
    wrong: str | None  # where nccl-tests found wrong results

    @property
    def devices(self) -> int:
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        return len(set(self.hosts))


@dataclass
class _Section:
    """One job's part of a log: from its list of ranks to its last row."""

    path: Path
    listed: list[_Rank] = field(default_factory=list)
    # options of the program and variables of NCCL
    settings: dict[str, str] = field(default_factory=dict)
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    program: str | None = None  # such as all_reduce, of all_reduce_perf
    ended: set[str] = field(default_factory=set)  # lines that a job prints once, after its rows
    failed: bool = False
    interleaved: bool = False  # has lines of another job

    @property
    def ranks(self) -> list[_Rank]:
        """The ranks of the first one's group: NCCL_TESTS_SPLIT runs the collective in several
        groups at once.
        """
        return [rank for rank in self.listed if rank.group == self.listed[0].group]

    def has(self, name: str, in_place: bool = False) -> bool:
        return self.headings.count(name) > in_place

    def column(self, name: str, in_place: bool = False) -> int:
        """The out-of-place column of this name is the first, the in-place one the second."""
        if not self.has(name, in_place):
            which = "in-place" if in_place else "out-of-place"
            raise DpscopeError(f"{self.path} has no {which} column {name}; give the whole log")
        places = [index for index, heading in enumerate(self.headings) if heading == name]
        return places[in_place]

    def number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise DpscopeError(
                f"{self.path}: {text} stands where a number must; the log is damaged"
            ) from error

    def next(self) -> "_Section":
        """Another table of the same job."""
        return _Section(self.path, self.listed, self.settings, program=self.program)


def read_tests(path: Path, in_place: bool = False) -> list[LoggedTest]:
    """The tests in a log, process by process; one process may print several, one after another.

    Raises DpscopeError for a file that is no such log, is damaged, or whose lines contradict each
    other.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DpscopeError(f"{unreadable(path, error)}; name a log of nccl-tests") from error
    by_prefix: dict[str, list[_Section]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        prefix = _PREFIX.match(line)
        sections = by_prefix.setdefault(prefix[1].strip() if prefix else "", [_Section(path)])
        _add_line(sections, line[prefix.end() :] if prefix else line, f"{path}, line {number}")
    sections = [section for own in by_prefix.values() for section in own if section.rows]
    if not sections:
        raise DpscopeError(
            f"{path} has no row of nccl-tests' table (size, count, type, time, ...); name a log of nccl-tests"
        )
    tests = [test for section in sections for test in _tests(section, in_place)]
    if not any(test.points for test in tests):
        missing = "in-place" if in_place else "out-of-place"
        raise DpscopeError(f"{path} has no {missing} time above size 0; measure larger sizes")
    return [test for test in tests if test.points]


def _add_line(sections: list[_Section], line: str, where: str) -> None:
    current, rank = sections[-1], _RANK.match(line)
    begins = rank is not None or _BEGIN.match(line) is not None
    if begins and (current.rows or (current.listed and rank is None)):
        current = _Section(current.path)  # the job before it may have ended without a row
        sections.append(current)
    if rank is not None:
        current.listed.append(
            _Rank(int(rank["number"]), rank["group"], rank["host"], rank["device"])
        )
    elif _HEADINGS.match(line):
        if current.rows:
            current = current.next()
            sections.append(current)
        current.interleaved |= bool(current.headings)
        current.headings = line.lstrip("# ").split()
    elif end := _END.match(line):
        current.interleaved |= end[1] in current.ended
        current.ended.add(end[1])
        current.failed |= "FAILED" in end[2]
    elif line.startswith("#"):
        _read_header(current, line)
    elif _ROW.match(line):
        _add_row(current, line.split(), where)
    elif variable := _VARIABLE.search(line):
        current.settings[variable[1]] = variable[2]


def _read_header(section: _Section, line: str) -> None:
    """A line above the table: the program's name, its options."""
    if program := _PROGRAM.search(line.lower()):
        section.program = section.program or program[1]
    section.settings.update(_OPTION.findall(line))


def _add_row(section: _Section, row: list[str], where: str) -> None:
    if not section.headings:
        raise DpscopeError(
            f"{where}: a row without the headings (# size count type ...) above it; give the whole log"
        )
    if len(row) != len(section.headings):
        raise DpscopeError(
            f"{where}: {len(row)} values under {counted(len(section.headings), 'heading')}; the log is cut or mixed with "
            "other output: repair or remove the line"
        )
    section.interleaved |= bool(section.ended)
    section.rows.append(row)


def _tests(section: _Section, in_place: bool) -> list[LoggedTest]:
    """The tests of one table: those of several data types, operations or roots are tests of their
    own.
    """
    _check_ranks(section)
    collective = _collective(section)
    columns = [name for name in _VARIANT_COLUMNS if section.has(name)]
    by_variant = grouped(
        (tuple(row[section.column(name)] for name in columns), row) for row in section.rows
    )
    return [
        LoggedTest(
            path=section.path,
            collective=collective,
            hosts=tuple(rank.host for rank in section.ranks),
            device_names=tuple(rank.device for rank in section.ranks),
            variant=dict(zip(columns, variant, strict=True)) | section.settings,
            points=tuple(_points(section, rows, collective, in_place)),
            wrong=_wrong(section, rows),
        )
        for variant, rows in by_variant.items()
    ]


def _check_ranks(section: _Section) -> None:
    """Raise DpscopeError unless the ranks are those of one job, complete, and the only ones of the
    table.
    """
    path, ranks = section.path, section.listed
    hosts = grouped(((rank.group, rank.number), rank.host) for rank in ranks)
    repeated = {number: own for (_, number), own in hosts.items() if len(own) > 1}
    if repeated or section.interleaved:
        evidence = "a table with lines of more than one job"
        if repeated:
            number, own = next(iter(repeated.items()))
            evidence = f"rank {number} is listed {len(own)} times (on {listed(own)})"
        raise DpscopeError(
            f"{path}: {evidence}: several jobs printed into one log, and its rows do not name theirs; give a log of each job, or "
            "label the lines (srun -l, mpirun --tag-output); if one job was meant, build nccl-tests with MPI=1"
        )
    if len(section.ranks if ranks else ()) < 2:
        raise DpscopeError(
            f"{path}: lists {counted(len(ranks), 'rank')} (# Rank 0 ...) of a collective, which needs two: give the whole log, "
            "or, if every process lists only rank 0, build nccl-tests with MPI=1"
        )
    numbers = {rank.number for rank in ranks}
    if missing := sorted(set(range(max(numbers) + 1)) - numbers):
        raise DpscopeError(
            f"{path}: the list of ranks lacks rank {listed(missing)}, so their number is unknown; give the whole log"
        )


def _collective(section: _Section) -> Collective:
    """Of those that the rates fit, the one that the log or its file is named after."""
    candidates = _candidates(section)
    ranks, ratios = len(section.ranks), _ratios(section)
    factors = {name: bus_factor(name, ranks) or 1.0 for name in candidates}
    fitting = []
    for name, factor in factors.items():
        if all(abs(ratio / factor - 1) < _RATIO_TOLERANCE for ratio in ratios):
            fitting.append(name)
    if not fitting:
        expected = ", ".join(f"{name} {factor:.2f}" for name, factor in factors.items())
        raise DpscopeError(
            f"{section.path}: busbw / algbw is {ratios[-1]:.2f}, and on the {ranks} ranks listed it is {expected}: "
            "the rows are of another job or number of ranks; give the log of one job"
        )
    by_file = _NAMED.search(section.path.name.lower())
    named = COLLECTIVES[by_file[1].replace("_", "")] if by_file else None
    if named in fitting and named is not None:
        return named
    if len(fitting) == 1:
        return fitting[0]
    raise DpscopeError(
        f"{section.path}: its columns fit several collectives; name the file after it, such as all_gather.log"
    )


def _candidates(section: _Section) -> list[Collective]:
    """The collective that the log names, else those that have its columns redop and root, which
    newer logs always have, with `none` and -1 where they mean nothing.
    """
    if section.program is not None:
        named = COLLECTIVES.get(section.program.replace("_", ""))
        if named is None:
            raise DpscopeError(
                f"{section.path}: {section.program}_perf tests no collective that dpscope knows; leave it out"
            )
        return [named]
    first = dict(zip(section.headings, section.rows[0], strict=True))
    reduces = first.get("redop", "none") != "none"
    if first.get("root", "-1") != "-1":
        return ["reduce"] if reduces else ["broadcast"]
    return ["all_reduce", "reduce_scatter"] if reduces else ["all_gather", "all_to_all"]


def _ratios(section: _Section) -> list[float]:
    """busbw / algbw of the rows whose rates are printed finely enough; empty without these
    columns.
    """
    if not (section.has("algbw") and section.has("busbw")):
        return []
    algbw_column, busbw_column = section.column("algbw"), section.column("busbw")
    ratios = []
    for row in section.rows:
        if "N/A" not in (row[algbw_column], row[busbw_column]):
            algbw = section.number(row[algbw_column])
            if algbw >= _FINE_GB_PER_S:
                ratios.append(section.number(row[busbw_column]) / algbw)
    return ratios


def _points(
    section: _Section, rows: Sequence[list[str]], collective: Collective, in_place: bool
) -> list[CalibrationPoint]:
    time_column = section.column("time", in_place)
    points = []
    for row in rows:
        size = int(row[0])
        if size == 0 or row[time_column] == "N/A":
            continue
        time_us = section.number(row[time_column])
        if time_us <= 0:
            raise DpscopeError(
                f"{section.path}: a time of {row[time_column]} µs at size {size}; remove the line"
            )
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
    return points


def _wrong(section: _Section, rows: Sequence[list[str]]) -> str | None:
    """Where the program found wrong results; None where it found none, or did not check."""
    places = [place for place, heading in enumerate(section.headings) if heading == "#wrong"]
    wrong = [row for row in rows if any(row[place] not in ("0", "N/A") for place in places)]
    if wrong:
        return f"in {len(wrong)} of {counted(len(rows), 'row')} (#wrong)"
    return "(Out of bounds values: FAILED)" if section.failed else None
