"""The audit of the published values, examples/published/audit.py: every value and conclusion, and
the page that it writes.
"""

import csv
import io
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.paths import PUBLISHED, ROOT

STORED = ROOT / "tests" / "data" / "audited_claims.csv"

pytestmark = pytest.mark.process


@cache
def audit(*options: str) -> str:
    command = [sys.executable, str(PUBLISHED / "audit.py"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_claim_is_audited_as_before() -> None:
    """Of 104 claims 100 follow from their stated method, to the digit; each has the sound value,
    the verdict and the reason.
    """
    assert audit("--csv") == STORED.read_text()
    rows = list(csv.DictReader(io.StringIO(audit("--csv"))))
    assert Counter(row["agreement"] for row in rows) == {"digits": 99, "truncated": 1, "unknown": 4}
    assert Counter(row["verdict"] for row in rows) == {
        "holds": 37,
        "does_not_hold": 38,
        "no_sound_value": 29,
    }


@pytest.mark.parametrize(
    ("study", "quantity", "method", "setting", "sound"),
    [
        ("weak", "speedup", "N*T1/TN", ("512", "4"), 9.19 / 8.76),  # 1.05, claimed 4.20
        ("cluster", "speedup", "T1/TN", ("32", "4"), 38 / 121),
        ("l4", "communication_seconds", "TN-T1 (T1 of second_sweep)", ("128", "4"), 14.1232),
        ("cluster", "communication_seconds", "TN-T1/N", ("128", "4"), 20.5),
        ("ddp", "communication_share", "90/350", ("128", "4"), 100 * 8.875 / 34.3),
        # 2 S = 2 x 4 x 11,689,512 B = 93,516,096 B of a DP step, in GiB; 25 steps of it over 6.4625
        # s.
        ("weak", "allreduce_volume", "2K(N-1)/N*4", ("", "4"), 93_516_096 / 2**30),
        # DDP: 98 steps of 2 x 3/4 x 4 x 11,173,962 B = 67,043,772 B over 8.875 s.
        ("ddp", "bandwidth", "90 MB/90 ms", ("128", "4"), 98 * 67_043_772 / 8.875 / 1e6),
        # 391 steps of 89,391,696 B over 14.1232 s are 2.4748 GB/s, of PCIe 4.0 x16's 31.508 GB/s.
        ("l4", "utilisation", "effective_bandwidth/300", ("128", "4"), 100 * 2.474799 / 31.507692),
    ],
)
def test_sound_values_by_hand(
    study: str, quantity: str, method: str, setting: tuple[str, str], sound: float
) -> None:
    rows = csv.DictReader(io.StringIO(audit("--csv")))
    wanted = (f"coursework_{study}", quantity, method, *setting)
    names = ("study", "quantity", "method", "batch_size", "devices")
    (row,) = (row for row in rows if tuple(row[name] for name in names) == wanted)
    assert float(row["sound_value"]) == pytest.approx(sound, rel=1e-5)


def test_what_is_wrong_with_the_claims() -> None:
    """As the README of the tables lists them; the numbers are computed by hand."""
    found = [line.partition(": ")[::2] for line in audit("--mistakes").splitlines()]
    assert Counter(code for code, _ in found) == {
        "negative_claim": 3, "ring_for_dp": 3, "devices_counted_twice": 2, "unsound_subtraction": 2,
        "one_volume_per_epoch": 2, "claim_not_computable": 2, "elements_as_bytes": 1, "impossible_peak": 1,
        "volume_mismatch": 1, "batch_meaning_contradicted": 1, "subtraction_called_measured": 1,
        "overhead_as_serial_fraction": 1, "limit_compared_with_measurement": 1, "claim_truncated": 1,
    }  # fmt: skip
    texts = [text for _, text in found]
    for part in (
        "4.20x is 1.05x at (512, 4)",
        "300 GiB/s, but 4x NVIDIA L4 have PCIe 4.0 x16 and no NVLink: 31.5 GB/s",
        "90 MB are stated at (128, 4), the ring all-reduce of this model moves 67 MB",
        "the 90 ms of 350 ms at (128, 4) are the subtraction itself",
        "1.59x for 1.81x on 2",
    ):
        assert any(part in text for text in texts), part


def test_the_page_is_current_and_written_beside_the_tables(tmp_path: Path) -> None:
    copied = shutil.copytree(
        PUBLISHED, tmp_path / "published", ignore=shutil.ignore_patterns("results.md")
    )
    command = [sys.executable, str(copied / "audit.py")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == "104 claims: 37 holds, 29 no sound value, 38 does not hold\n"
    assert (copied / "results.md").read_text() == (PUBLISHED / "results.md").read_text(), (
        "run `make docs`"
    )
    (copied / "notes.toml").write_text("study = []\n")
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("no notes for benchmark_resnet50, coursework_cluster")
