"""Findings: each code has a table that shows it, and one beside it that must not."""

from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.estimates import estimates
from dpscope.analysis.epoch_times.findings import table_findings
from dpscope.analysis.epoch_times.table import EpochTable, read_epoch_times
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding
from tests.helpers.epoch_tables import DDP, HEAD, SINGLE, SOUND
from tests.helpers.paths import PUBLISHED


def of_table(folder: Path, text: str) -> list[Finding]:
    path = folder / "times.csv"
    path.write_text(text, encoding="utf-8")
    return found_in(read_epoch_times(path))


def found_in(table: EpochTable) -> list[Finding]:
    return table_findings(table, estimates(table.rows))


def codes(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


TABLES = {
    # 20 on 2 against T_1(20) = 80: 55 - 80 = -25 s. Without T_1(20) there is nothing to subtract.
    "negative_communication": (SOUND, HEAD + SINGLE.splitlines(keepends=True)[0] + DDP),
    "sign_not_certain": (SOUND.replace("55,,", "55,6,"), SOUND.replace("55,,", "55,4,")),  # 5 +- 6, 5 +- 4
    "resolution_too_coarse": (SOUND.replace("55,,", "55,4,"), SOUND.replace("55,,", "55,0.1,")),
    "resolution_unknown": ("strategy,batch_size,devices,epoch_seconds\nddp,2,2,5\n", SOUND),
    "unknown_column": (SOUND.replace("provenance", "provenence"), SOUND),
    "nothing_to_estimate": (HEAD + SINGLE, SOUND),
    "out_of_memory": (SOUND.replace("1,80", "1,"), SOUND),
    "batch_meaning_unknown": (SOUND.replace("ddp,20,global", "ddp,20,"), SOUND),
    # 50 steps at a global 20; 25 would be 20 on each of 2.
    "steps_contradict_batch": (
        SOUND.replace("55,,output,", "55,,output,25"),
        SOUND.replace("55,,output,", "55,,output,50"),
    ),
    "batch_exceeds_dataset": (SOUND.replace("ddp,20", "ddp,1002"), SOUND),
    "no_same_local_baseline": (SOUND.replace("ddp,20", "ddp,30"), SOUND),
    "uneven_epoch": (
        # 12 samples at b = 5: 2 steps on 2 devices, so 4 batches, where one device has 3.
        HEAD + SINGLE + DDP.replace("1000,ddp,20", "12,ddp,10"),
        SOUND,
    ),
    "runs_differ": (
        SOUND + DDP.replace("s,r", "s,q").replace("55", "58"),
        SOUND + DDP.replace("s,r", "s,q").replace("55", "56"),
    ),
    "little_speedup": (SOUND.replace("2,55", "2,79"), SOUND),
    "superlinear_speedup": (SOUND.replace("2,55", "2,39"), SOUND),
    "dp_is_no_all_reduce": (SOUND.replace("ddp", "dp"), SOUND),
    "times_typed": (SOUND.replace("output", "typed"), SOUND),
}


@pytest.mark.parametrize("code", TABLES)
def test_table_findings(tmp_path: Path, code: str) -> None:
    showing, clean = TABLES[code]
    found = [finding for finding in of_table(tmp_path, showing) if finding.code == code]
    assert len(found) == 1
    assert found[0].message
    assert found[0].next_step
    assert code not in codes(of_table(tmp_path, clean))


def test_every_code_is_covered() -> None:
    assert set(TABLES) == set(EstimateCode)


def test_a_sound_table_is_left_alone(tmp_path: Path) -> None:
    sound = SOUND.replace(SINGLE.splitlines(keepends=True)[1], "")  # without T_1(20) nobody can misuse it
    assert of_table(tmp_path, sound) == []


def test_what_all_studies_show_alike_is_said_once() -> None:
    found = [one for one in found_in(read_epoch_times(PUBLISHED / "epoch_times.csv")) if one.code.startswith("dp_is")]
    (one,) = found
    assert one.message.startswith(
        "coursework_l4, coursework_cluster, coursework_weak, benchmark_resnet50: DataParallel"
    )
