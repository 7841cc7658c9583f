"""Claims: every published derived value by its method and its sound value; findings, each with a table that shows it."""

from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpscope.analysis.epoch_times.claim_findings import claim_findings
from dpscope.analysis.epoch_times.claims import (
    AuditedClaim,
    NotComputable,
    agreement,
    audit_claims,
    claim_holds,
    link_peak,
    read_claims,
)
from dpscope.analysis.epoch_times.report import estimate_report
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.machine.link_specifications import pcie_gb_per_s
from dpscope.profiling.records.estimate_codes import ClaimCode
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.epoch_tables import SOUND
from tests.helpers.paths import PUBLISHED

TABLE = read_epoch_times(PUBLISHED / "epoch_times.csv")
CLAIMED = read_claims(PUBLISHED / "derived_values.csv")
AUDITED = audit_claims(TABLE.rows, CLAIMED)

STATED_ONLY = {"best_test_accuracy", "test_accuracy"}
TRUNCATED = {("coursework_weak", "compute_seconds", 512, 2), ("coursework_weak", "compute_seconds", 512, 4)}


def digits(value: float, printed: str, rounding: str) -> Decimal:
    """`value` with as many digits as printed, computed with decimals, independently of the code under test."""
    places = Decimal(printed).as_tuple().exponent
    return Decimal(repr(round(value, 13))).quantize(Decimal((0, (1,), int(places))), rounding)


def test_printed_digits_follow_from_the_stated_method() -> None:
    assert len(AUDITED) == 104
    assert CLAIMED[14].printed_value == "-0.1519639492034912"  # all digits are kept
    for one in AUDITED:
        claim, value = one.claim, one.reproduced
        assert one.reason, claim
        assert (one.sound is None) == (one.verdict == "no_sound_value"), claim
        if claim.quantity in STATED_ONLY:
            assert (value, one.agreement) == (None, "unknown"), claim
            assert "stated by the source" in one.not_reproduced, claim
            continue
        assert value is not None, claim
        if len(claim.printed_value) > 14:  # all digits of a float
            assert value == pytest.approx(claim.value, rel=1e-14), claim
            continue
        setting = (claim.study, claim.quantity, claim.batch_size, claim.devices)
        rounding = ROUND_DOWN if setting in TRUNCATED else ROUND_HALF_UP
        assert digits(value, claim.printed_value, rounding) == Decimal(claim.printed_value), claim


def audited(study: str, quantity: str) -> list[AuditedClaim]:
    return [one for one in AUDITED if (one.claim.study, one.claim.quantity) == (f"coursework_{study}", quantity)]


@pytest.mark.parametrize(
    ("study", "quantity", "method", "setting", "sound"),
    [
        ("weak", "speedup", "N*T1/TN", (512, 4), 9.19 / 8.76),  # 1.05, claimed 4.20
        ("cluster", "speedup", "N*T1/TN", (32, 4), 38 / 121),
        ("cluster", "speedup", "T1/TN", (32, 4), 38 / 121),
        ("l4", "communication_seconds", "", (128, 4), 14.1232),
        ("l4", "communication_seconds", "", (512, 4), 5.7016),
        ("cluster", "communication_seconds", "TN-T1/N", (128, 4), 20.5),
        ("ddp", "communication_share", "90/350", (128, 4), 100 * 8.875 / 34.3),
        # 2 S = 2 x 4 x 11,689,512 B = 93,516,096 B of a DP step, in GiB; 25 steps of it over 6.4625 s.
        ("weak", "allreduce_volume", "2K(N-1)/N*4", (None, 4), 93_516_096 / 2**30),
        ("weak", "effective_bandwidth", "", (512, 4), 25 * 93_516_096 / 6.4625 / 2**30),
        # DDP: 98 steps of 2 x 3/4 x 4 x 11,173,962 B = 67,043,772 B over 8.875 s.
        ("ddp", "bandwidth", "90 MB/90 ms", (128, 4), 98 * 67_043_772 / 8.875 / 1e6),
        # 391 steps of 89,391,696 B over 14.1232 s are 2.4748 GB/s, of PCIe 4.0 x16's 31.508 GB/s.
        ("l4", "utilisation", "effective_bandwidth/300", (128, 4), 100 * 2.474799 / 31.507692),
        ("ddp", "amdahl_speedup", "", (128, 2), 101.7 / 56.3),
        ("ddp", "amdahl_speedup", "", (128, 4), 101.7 / 34.3),
        ("ddp", "amdahl_speedup", "", (128, 8), None),  # not measured
    ],
)
def test_sound_values_by_hand(
    study: str, quantity: str, method: str, setting: tuple[int | None, int], sound: float | None
) -> None:
    of_setting = [one for one in audited(study, quantity) if (one.claim.batch_size, one.claim.devices) == setting]
    (one,) = (one for one in of_setting if method in ("", one.claim.method))
    assert one.sound == (None if sound is None else pytest.approx(sound, rel=1e-5))


@pytest.mark.parametrize(
    ("quantity", "printed", "sound", "holds"),
    [
        ("efficiency", "0.75", 0.7413, False),  # rounds to 0.74
        ("efficiency", "0.75", 0.7451, True),
        ("efficiency", "0.75", 0.7589, True),  # truncated
        ("efficiency", "0.75", 0.7601, False),
        ("communication_seconds", "3.05", 3.059, True),  # of times rounded to 0.01 s
        ("communication_seconds", "3.05", 3.061, False),
    ],
)
def test_what_holds(quantity: str, printed: str, sound: float, holds: bool) -> None:
    claim = AUDITED[0].claim._replace(quantity=quantity, printed_value=printed)
    assert claim_holds(claim, sound) is holds


@pytest.mark.parametrize(
    ("value", "printed", "expected"),
    [
        (4.195, "4.20", "digits"),
        (4.2049, "4.20", "digits"),
        (2.2975, "2.29", "truncated"),
        (2.30, "2.29", "differs"),
        (2.28, "2.29", "differs"),
        (-0.15, "0.15", "differs"),
        (-9.552220821380615, "-9.552220821380615", "digits"),
        (1.74649e10, "1.746490e+10", "digits"),
        (0.0, "0e400", "digits"),
    ],
)
def test_agreement_with_printed_digits(value: float, printed: str, expected: str) -> None:
    assert agreement(value, printed) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("speedup,T1/TN,32,16,2.0,1", "no row"),
        ("speedup,T1/TN,32,,2.0,1", "no row"),
        ("speedup,by eye,32,2,2.0,1", "no formula"),
        ("speedup,printed efficiency/N,32,2,2.0,1", "no formula"),
        ("efficiency,printed speedup/N,32,2,0.9,1", "no printed speedup"),
        ("effective_bandwidth,one_allreduce_per_epoch,32,2,3,GB/s", "parameters"),
        ("elements_per_epoch,steps*2K(N-1)/N,32,2,3,elements", "steps of an epoch"),
        ("share,3/0,32,2,3,1", "divides by zero"),
        ("speedup,T1/TN,32,2,2.0,furlongs", "no finite value in furlongs"),
        ("communication_seconds,TN-T1 (T1 of elsewhere),32,2,2.0,s", "no single-device time"),
    ],
)
def test_why_a_claim_cannot_be_computed(tmp_path: Path, row: str, reason: str) -> None:
    table = tmp_path / "times.csv"
    table.write_text("run,strategy,batch_size,devices,epoch_seconds\na,single,32,1,10\na,ddp,32,2,6\n")
    stated = tmp_path / "claims.csv"
    stated.write_text(f"run,quantity,method,batch_size,devices,printed_value,unit\na,{row}\n")
    one = audit_claims(read_epoch_times(table).rows, read_claims(stated))[0]
    assert one.agreement == "unknown"
    assert reason in one.not_reproduced


def test_links_without_nvlink() -> None:
    # PCIe 4.0: 16 GT/s x 16 lanes x 128/130 / 8 bits = 31.508 GB/s in one direction.
    assert pcie_gb_per_s(4) == pytest.approx(31.5077, abs=1e-4)
    assert link_peak("4x NVIDIA L4").name == "PCIe 4.0 x16"
    assert link_peak("8x L40S, one server") == link_peak("4x NVIDIA L4")
    for hardware in (None, "", "4 GPUs one server", "NVIDIA A100", "L4-like", "GL4"):
        with pytest.raises(NotComputable):
            link_peak(hardware)


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("speedup,T1/TN,about two,1", "column printed_value: 'about two'"),
        ("speedup,,2.0,1", "column method"),
        ("speedup,T1/TN,2.0,", "column unit"),
    ],
)
def test_mistakes_in_claims(tmp_path: Path, row: str, part: str) -> None:
    path = tmp_path / "claims.csv"
    path.write_text(f"quantity,method,printed_value,unit\n{row}\n")
    with pytest.raises(DpscopeError, match=part):
        read_claims(path)


CLAIM_HEAD = "study,run,quantity,method,batch_size,devices,printed_value,unit\n"


def codes(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


def of_claims(folder: Path, claims: str, times: str = SOUND) -> list[Finding]:
    for name, text in (("times.csv", times), ("claims.csv", CLAIM_HEAD + claims)):
        (folder / name).write_text(text, encoding="utf-8")
    rows = read_epoch_times(folder / "times.csv").rows
    return claim_findings(audit_claims(rows, read_claims(folder / "claims.csv")))


DP_TIMES = SOUND.replace("ddp", "dp")
PER_DEVICE = SOUND.replace("global", "per_device").replace("ddp,20", "ddp,10")
# 4 MB ring volume of a step on 2 devices (2 x 1/2 x 4e6); 50 steps; T_N - T_1/N = 55 - 80/2 = 15 s.
CLAIMS = {
    "devices_counted_twice": ("s,r,speedup,N*T1/TN,20,2,2.91,1\n", "s,r,speedup,T1/TN,20,2,1.45,1\n", SOUND),
    "negative_claim": (
        "s,r,communication_seconds,TN-T1,20,2,-25,s\n",
        "s,r,communication_seconds,TN-T1/N,20,2,15,s\n",
        SOUND,
    ),
    "unsound_subtraction": (
        "s,r,communication_seconds,TN-T1/N,20,2,15,s\n",
        "s,r,communication_seconds,felt,20,2,5,s\n",
        SOUND,
    ),
    # 4e6 B / 15 s = 0.00026667 GB/s, against 50 steps of it: 0.013333 GB/s.
    "one_volume_per_epoch": (
        "s,r,effective_bandwidth,any,20,2,0.00026667,GB/s\n",
        "s,r,effective_bandwidth,any,20,2,0.013333,GB/s\n",
        SOUND,
    ),
    # 50 steps of 1e6 elements / 15 s = 3.3333e6 a second.
    "elements_as_bytes": (
        "s,r,effective_bandwidth,any,20,2,0.0033333,GB/s\n",
        "s,r,effective_bandwidth,any,20,2,0.013333,GB/s\n",
        SOUND,
    ),
    # 3 GB/s at 1% are 300 GB/s, at 10% 30 GB/s, which PCIe 4.0 x16 has.
    "impossible_peak": (
        "s,r,effective_bandwidth,any,20,2,3,GB/s\ns,r,utilisation,any,20,2,1,%\n",
        "s,r,effective_bandwidth,any,20,2,3,GB/s\ns,r,utilisation,any,20,2,10,%\n",
        SOUND,
    ),
    "ring_for_dp": (
        "s,r,allreduce_volume,2K(N-1)/N*4,20,2,4,MB\n",
        "s,r,model_size,4*parameters,20,2,4,MB\n",
        DP_TIMES,
    ),
    "volume_mismatch": ("s,r,bandwidth,8 MB/4 ms,20,2,2000,MB/s\n", "s,r,bandwidth,4 MB/2 ms,20,2,2000,MB/s\n", SOUND),
    # 50 steps x 1e6 elements count a global batch; T_1(20)/2 = 40 s would be the compute of 20 on each.
    "batch_meaning_contradicted": (
        "s,r,elements_per_epoch,any,20,2,5e7,elements\ns,r,compute_seconds,T1/N,20,2,40,s\n",
        "s,r,elements_per_epoch,any,20,2,5e7,elements\ns,r,compute_seconds,T1/N,20,2,50,s\n",
        SOUND,
    ),
    # Per device 10 on 2, 50 steps: 55 - 50 = 5 s and 55 s are 100 ms of 1100 ms a step.
    "subtraction_called_measured": (
        "s,r,communication_share,100/1100,10,2,9,%\n",
        "s,r,communication_share,80/1100,10,2,7,%\n",
        PER_DEVICE,
    ),
    # Measured 100/55 = 1.82.
    "overhead_as_serial_fraction": (
        '"s",r,amdahl_speedup,"1/(s+(1-s)/N), s=3/10",10,2,1.54,1\n',
        '"s",r,amdahl_speedup,"1/(s+(1-s)/N), s=1/10",10,2,1.82,1\n',
        PER_DEVICE,
    ),
    "limit_compared_with_measurement": (
        "s,r,speedup,T1/TN,20,2,1.45,1\ns,r,max_speedup,1/0.25,20,,4.0,1\ns,r,fraction_of_max,1.45/4.0,20,2,36,%\n",
        "s,r,speedup,T1/TN,20,2,1.45,1\ns,r,max_speedup,1/0.25,20,,4.0,1\n",
        SOUND,
    ),
    "claim_not_reproduced": ("s,r,speedup,T1/TN,20,2,1.50,1\n", "s,r,speedup,T1/TN,20,2,1.45,1\n", SOUND),
    "claim_truncated": (
        "s,r,compute_seconds,T1/N,20,2,39.9,s\n",
        "s,r,compute_seconds,T1/N,20,2,40.0,s\n",
        SOUND.replace("1,80", "1,79.96"),
    ),
    "claim_not_computable": ("s,r,test_accuracy,typed,20,2,87.5,%\n", "s,r,speedup,T1/TN,20,2,1.45,1\n", SOUND),
}


@pytest.mark.parametrize("code", [one.code for one in ClaimCode])
def test_claim_findings(tmp_path: Path, code: str) -> None:
    showing, clean, times = CLAIMS[code]
    (found,) = (finding for finding in of_claims(tmp_path, showing, times) if finding.code == code)
    assert found.message
    assert found.next_step
    assert code not in codes(of_claims(tmp_path, clean, times))


def test_honest_claims_have_no_findings(tmp_path: Path) -> None:
    assert of_claims(tmp_path, "s,r,speedup,T1/TN,20,2,1.45,1\n") == []  # T_1(20)/T_2(20) = 80/55 in SOUND


_CLAIM = st.tuples(
    st.sampled_from(
        ["speedup", "efficiency", "communication_seconds", "compute_seconds", "effective_bandwidth", "bandwidth",
         "utilisation", "elements_per_epoch", "allreduce_volume", "theoretical_allreduce_seconds", "model_size",
         "communication_share", "amdahl_speedup", "max_speedup", "fraction_of_max", "mood"]
    ),
    st.sampled_from(
        ["T1/TN", "N*T1/TN", "TN-T1", "T1/N", "1/0", "8 MB/4 ms", "100/1100", "effective_bandwidth/0", "ring at 0 GB/s",
         "printed speedup/N", "one_allreduce_per_epoch", "elements_not_bytes", '"1/(s+(1-s)/N), s=1/10"', "by eye"]
    ),
    st.sampled_from(["", "10", "20", "30"]),
    st.sampled_from(["", "1", "2", "4"]),
    st.sampled_from(["0", "-1", "1", "2.91", "0.00026667", "1e308", "-1e-300", "5e7"]),
    st.sampled_from(["1", "s", "%", "GB/s", "GiB", "elements", "1e9 elements/s", "moods"]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rows=st.lists(_CLAIM, min_size=1, max_size=6), times=st.sampled_from([SOUND, DP_TIMES, PER_DEVICE]))
def test_any_claims_are_audited_without_failing(tmp_path: Path, rows: list[tuple[str, ...]], times: str) -> None:
    found = of_claims(tmp_path, "".join(f"s,r,{','.join(row)}\n" for row in rows), times)
    assert all(finding.message and finding.next_step for finding in found)


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("runs_differ", "dp (512, 4) 9.38 and 10.109 s: 7.8%"),
        ("resolution_too_coarse", "ideal_split (512, 2) 2.5 [1, 4]"),
        ("batch_exceeds_dataset", "131072 to 8589934592"),
        ("devices_counted_twice", "4.20x is 1.05x at (512, 4)"),
        ("impossible_peak", "300 GiB/s, but 4x NVIDIA L4 have PCIe 4.0 x16 and no NVLink: 31.5 GB/s"),
        ("volume_mismatch", "90 MB are stated at (128, 4), the ring all-reduce of this model moves 67 MB"),
        ("subtraction_called_measured", "90.6 ms of 350.0 ms"),
        ("overhead_as_serial_fraction", "1.59x for 1.81x on 2 (Karp-Flatt 0.107), 2.26x for 2.97x on 4"),
        ("batch_meaning_contradicted", "1,563 steps an epoch at batch 32 on 2 and on 4 devices"),
    ],
)
def test_messages_of_the_published_tables(code: str, part: str) -> None:
    found = estimate_report(TABLE, CLAIMED).findings
    assert any(part in finding.message for finding in found if finding.code == code)
