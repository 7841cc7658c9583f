"""What five studies claimed from epoch times: each value again by its own method, the sound value,
and what is wrong.

`python examples/published/audit.py` writes results.md, study by study; `--csv` prints the audited
values, `--mistakes` what is wrong with them.
"""

import csv
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claims import AuditedClaim, audit_claims, read_claims
from mistakes import NEXT_STEPS, mistakes, shortened

from dpscope.analysis import (
    DpscopeError,
    EpochTable,
    EpochTime,
    estimate_markdown,
    estimate_report,
    read_epoch_times,
)

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results.md"

_INTRODUCTION = """# Published results, audited

Made by `python examples/published/audit.py` from the [tables in this folder](README.md); edit those tables, not this
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


def page(
    times: EpochTable, audited: Sequence[AuditedClaim], studies: Sequence[dict[str, Any]]
) -> str:
    """The whole page; every study needs notes, as notes.toml has them."""
    missing = {row.study for row in times.rows if row.study} - {study["name"] for study in studies}
    if missing:
        raise DpscopeError(
            f"no notes for {', '.join(sorted(missing))}: add a [[study]] to notes.toml"
        )
    return "\n".join([_INTRODUCTION, *(_study_section(times, audited, study) for study in studies)])


def _study_section(
    times: EpochTable, audited: Sequence[AuditedClaim], study: dict[str, Any]
) -> str:
    table = times.of_study(study["name"])
    claims = [one for one in audited if one.claim.study == study["name"]]
    lines = [
        f"## {study['title']}",
        "",
        f"`{study['name']}`: {study['source']}. {_facts(table.rows)}",
        "",
    ]
    lines += ["### Claimed", ""]
    lines += claim_table(claims) if claims else ["No values were derived from these times."]
    if found := mistakes(claims):
        lines += ["", "### What is wrong with it", ""]
        lines += [f"- `{one.code}`: {one.message}. Next: {NEXT_STEPS[one.code]}." for one in found]
    lines += ["", "### What the times support", "", estimate_markdown(estimate_report(table))]
    if statements := study.get("statement"):
        lines += ["### Stated by the source, not computed", ""]
        lines += [f"- {one['stated']} ({one['where']}) {one['comment']}" for one in statements]
        lines.append("")
    return "\n".join(lines)


def claim_table(claims: Sequence[AuditedClaim]) -> list[str]:
    """Markdown: each claim, what its method gives, and the sound value."""
    headings = ("run", "claimed", "batch", "N", "printed", "method", "gives", "sound", "verdict")
    return [
        "| " + " | ".join(cells) + " |"
        for cells in (headings, ["---"] * len(headings), *map(_cells, claims))
    ]


def _cells(one: AuditedClaim) -> tuple[str, ...]:
    claim, unit = one.claim, "" if one.claim.unit == "1" else f" {one.claim.unit}"
    return (
        claim.run or "",
        claim.quantity,
        str(claim.batch_size or ""),
        str(claim.devices or ""),
        shortened(claim.printed_value) + unit,
        f"`{claim.method}`",
        _significant(one.reproduced, 6)
        + (f" ({one.agreement})" if one.agreement in ("truncated", "differs") else ""),
        one.reason if one.sound is None else _significant(one.sound, 4) + unit,
        one.verdict.replace("_", " "),
    )


def _significant(value: float | None, digits: int) -> str:
    return "NA" if value is None else f"{value:.{digits}g}"


def _facts(rows: Sequence[EpochTime]) -> str:
    first = rows[0]
    meanings = sorted({row.batch_size_is.replace("_", " ") for row in rows if row.batch_size_is})
    provenances = sorted({row.provenance for row in rows if row.provenance})
    return (
        f"{first.model} ({first.parameters} parameters) on {first.dataset} ({first.samples_per_epoch} samples an "
        f"epoch); hardware: {first.hardware}; batch_size is {' or '.join(meanings)}; times: {', '.join(provenances)}."
    )


def main() -> int:
    """Write the page or print what is asked for; exit status 1 when a table cannot be read."""
    try:
        times = read_epoch_times(HERE / "epoch_times.csv")
        audited = audit_claims(times.rows, read_claims(HERE / "derived_values.csv"))
        studies = tomllib.loads((HERE / "notes.toml").read_text(encoding="utf-8"))["study"]
        text = page(times, audited, studies)
    except (DpscopeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "--csv" in sys.argv:
        records = [one.record() for one in audited]
        writer = csv.DictWriter(sys.stdout, records[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    elif "--mistakes" in sys.argv:
        sys.stdout.writelines(f"{one.code}: {one.message}\n" for one in mistakes(audited))
    else:
        PAGE.write_text(text, encoding="utf-8")
        verdicts = Counter(one.verdict.replace("_", " ") for one in audited)
        sys.stdout.write(
            f"{len(audited)} claims: {', '.join(f'{count} {name}' for name, count in verdicts.items())}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
