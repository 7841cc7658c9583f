"""`examples/published/results.md`: study by study, what was claimed, what holds and what does not.

`python docs/_tools/published_docs.py`, in the repository's root, writes the page from `examples/published`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dpscope.analysis.epoch_times.claims import Claim, read_claims
from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.analysis.epoch_times.report import (
    LEGEND,
    claim_table,
    estimate_report,
    finding_list,
    law_table,
    overview_tables,
)
from dpscope.analysis.epoch_times.table import EpochTable, read_epoch_times
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_text

EXAMPLES = Path("examples/published")
PAGE = EXAMPLES / "results.md"

_INTRODUCTION = """# Published results, audited

Made by `python docs/_tools/published_docs.py` from the [tables in this folder](README.md); edit those tables, not this
page. For each study: its times, what was claimed from them, what holds, what does not, and what its source states that
no computation over the tables can show.

T_N is the time of an epoch on N devices, b the batch per device, G = N b the global batch, S the bytes of the
gradients; (512, 4) means a batch_size of 512 on 4 devices. Intervals come from the clock's resolution: a time read to
r seconds is taken as T +- r, which covers rounding, truncation and the difference of two truncated clock readings.

A claim "holds" if the sound value, rounded or truncated, has its printed digits; a difference of times may be off by one
in the last digit, since the times were rounded first. The sound form of communication from epoch times is
`same_local_batch`, T_N - T_1/N with T_1 at the same batch per device. It is added wall time, not total communication:
overlap hides some communication, and contention and waiting add time. If no such T_1 was measured, there is no sound
value. Effective bandwidth is the bytes that a device must move in an epoch over that added time; it is not the rate of a
link.
"""


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a source, where, and what to think of it."""

    stated: str
    where: str
    comment: str


class StudyNotes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A study's title, its kind of source and the statements that no table shows."""

    name: str
    title: str
    source: str
    statement: tuple[Statement, ...] = ()


class Notes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`notes.toml`, in the order of the page."""

    study: tuple[StudyNotes, ...]


def read_notes(path: Path) -> Notes:
    """Read `notes.toml`; raises DpscopeError naming what does not fit."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Notes)
    except OSError as error:
        raise DpscopeError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DpscopeError(f"{path}: {error}") from error


def render_published_results(times: EpochTable, claims: Sequence[Claim], notes: Notes) -> str:
    """The whole page, from tables as `read_epoch_times` and `read_claims` make them; every study needs notes."""
    missing = {row.study for row in times.rows if row.study} - {study.name for study in notes.study}
    if missing:
        raise DpscopeError(f"no notes for {', '.join(sorted(missing))}: add a [[study]] to notes.toml")
    parts = [_INTRODUCTION, "In the tables of what the times support: " + LEGEND + "\n"]
    parts += [_study_section(times, claims, study) for study in notes.study]
    return "\n".join(parts)


def _study_section(times: EpochTable, claims: Sequence[Claim], study: StudyNotes) -> str:
    own = times.of_study(study.name)
    if not own.rows:
        raise DpscopeError(f"the notes contain {study.name}, for which the table has no times")
    report = estimate_report(own, [claim for claim in claims if claim.study == study.name])
    rows = own.rows
    lines = [f"## {study.title}", "", f"`{study.name}`: {study.source}. {_facts(rows)}", ""]
    lines += ["### Claimed", ""]
    lines += claim_table(report.claims) if report.claims else ["No values were derived from these times."]
    lines += ["", "### What the times support", ""]
    for where, table in overview_tables(report.estimates).items():
        lines += [f"{where}:", "", *table, ""]
    if laws := law_table(report.laws):
        lines += ["Laws that these speedups allow, fitted:", "", *laws, ""]
    lines += ["### What does not hold, and what to mind", "", *finding_list(report.findings), ""]
    if study.statement:
        lines += ["### Stated by the source, not computed", ""]
        lines += [f"- {one.stated} ({one.where}) {one.comment}" for one in study.statement]
        lines.append("")
    return "\n".join(lines)


def _facts(rows: Sequence[EpochTime]) -> str:
    first = rows[0]
    meanings = sorted({row.batch_size_is.replace("_", " ") for row in rows if row.batch_size_is})
    provenances = sorted({row.provenance for row in rows if row.provenance})
    return (
        f"{first.model} ({first.parameters} parameters) on {first.dataset} ({first.samples_per_epoch} samples an "
        f"epoch); hardware: {first.hardware}; batch_size is {' or '.join(meanings)}; times: {', '.join(provenances)}."
    )


def main() -> int:
    """Write the page; exit status 1 when a table cannot be read."""
    try:
        times = read_epoch_times(EXAMPLES / "epoch_times.csv")
        claims = read_claims(EXAMPLES / "derived_values.csv")
        write_text(PAGE, render_published_results(times, claims, read_notes(EXAMPLES / "notes.toml")))
    except DpscopeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
