"""Every published derived value by its own method, to its printed digits, and beside it what is sound."""

from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.claim_verdicts import AuditedClaim, ClaimAudit, audit_claims, claim_holds, link_peak
from dpscope.analysis.epoch_times.claims import agreement, read_claims
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.machine.link_specifications import pcie_gb_per_s
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import PUBLISHED

ROWS = read_epoch_times(PUBLISHED / "epoch_times.csv").rows
AUDITED = audit_claims(ROWS, read_claims(PUBLISHED / "derived_values.csv"))

STATED_ONLY = {"best_test_accuracy", "test_accuracy"}
CUT_OFF = {("coursework_weak", "compute_seconds", 512, 2), ("coursework_weak", "compute_seconds", 512, 4)}


def name(one: AuditedClaim) -> str:
    audit = one.audit
    return f"{audit.study}-{audit.run}-{audit.quantity}-{audit.method}-{audit.batch_size}-{audit.devices}"


def digits(value: float, printed: str, rounding: str) -> Decimal:
    """`value` with as many digits as were printed, computed with decimals and not with the code under test."""
    places = Decimal(printed).as_tuple().exponent
    return Decimal(repr(round(value, 13))).quantize(Decimal((0, (1,), int(places))), rounding)


def claims(quantity: str, study: str) -> dict[tuple[str | None, str, int | None, int | None], ClaimAudit]:
    return {
        (one.audit.run, one.audit.method, one.audit.batch_size, one.audit.devices): one.audit
        for one in AUDITED
        if (one.audit.quantity, one.audit.study) == (quantity, study)
    }


def test_all_claims_are_audited() -> None:
    assert len(AUDITED) == 104


def test_printed_digits_follow_from_the_named_method() -> None:
    for one in AUDITED:
        if one.audit.quantity in STATED_ONLY:
            assert (one.audit.reproduced, one.audit.agreement) == (None, "unknown"), name(one)
            assert "stated by the source" in one.reproduction.reason, name(one)
        else:
            check_digits(one)


def check_digits(one: AuditedClaim) -> None:
    audit = one.audit
    assert audit.reproduced is not None, name(one)
    if len(audit.printed_value) > 14:  # all digits of a float
        assert audit.reproduced == pytest.approx(float(audit.printed_value), rel=1e-14), name(one)
        return
    setting = (audit.study, audit.quantity, audit.batch_size, audit.devices)
    rounding = ROUND_DOWN if setting in CUT_OFF else ROUND_HALF_UP
    assert digits(audit.reproduced, audit.printed_value, rounding) == Decimal(audit.printed_value), name(one)


def test_a_sound_value_or_a_reason_stands_beside_each() -> None:
    for one in AUDITED:
        assert one.audit.reason, name(one)
        assert (one.audit.sound_value is None) == (one.audit.verdict == "no_sound_value"), name(one)


def test_speedups_that_count_devices_twice() -> None:
    weak = claims("speedup", "coursework_weak")
    worst = weak["table", "N*T1/TN", 512, 4]
    assert worst.printed_value == "4.20"
    assert worst.sound_value == pytest.approx(9.19 / 8.76)  # 1.05
    assert {audit.verdict for audit in weak.values()} == {"does_not_hold"}
    cluster = claims("speedup", "coursework_cluster")
    assert cluster[None, "N*T1/TN", 32, 4].sound_value == pytest.approx(38 / 121)
    assert cluster[None, "T1/TN", 32, 4].verdict == "holds"


@pytest.mark.parametrize(
    ("quantity", "printed", "sound", "holds"),
    [
        ("efficiency", "0.75", 0.7413, False),  # rounds to 0.74
        ("efficiency", "0.75", 0.7451, True),
        ("efficiency", "0.75", 0.7589, True),  # cut off
        ("efficiency", "0.75", 0.7601, False),
        ("communication_seconds", "3.05", 3.059, True),  # of times rounded to 0.01 s
        ("communication_seconds", "3.05", 3.061, False),
    ],
)
def test_what_holds(quantity: str, printed: str, sound: float, holds: bool) -> None:
    claim = AUDITED[0].setting.claim._replace(quantity=quantity, printed_value=printed)
    assert claim_holds(claim, sound) is holds


def test_communication() -> None:
    l4 = claims("communication_seconds", "coursework_l4")
    by_setting = {(key[2], key[3]): audit.sound_value for key, audit in l4.items()}
    assert by_setting.pop((128, 4)) == pytest.approx(14.1232, abs=5e-5)
    assert by_setting.pop((512, 4)) == pytest.approx(5.7016, abs=5e-5)
    assert list(by_setting.values()) == [None] * 4
    assert claims("communication_seconds", "coursework_cluster")[None, "TN-T1/N", 128, 4].sound_value == 20.5
    weak = claims("communication_seconds", "coursework_weak")
    assert len(weak) == 6
    assert {audit.verdict for audit in weak.values()} == {"holds"}
    share = claims("communication_share", "coursework_ddp")[None, "90/350", 128, 4]
    assert share.sound_value == pytest.approx(100 * 8.875 / 34.3)


def test_volumes_and_rates() -> None:
    # 2 S = 2 x 4 x 11,689,512 B = 93,516,096 B of a DP step, in GiB.
    volume = claims("allreduce_volume", "coursework_weak")["table", "2K(N-1)/N*4", None, 4]
    assert volume.sound_value == pytest.approx(93_516_096 / 2**30)
    # 25 steps of it over 6.4625 s.
    rates = claims("effective_bandwidth", "coursework_weak")
    rate = next(audit for key, audit in rates.items() if key[2:] == (512, 4))
    assert rate.sound_value == pytest.approx(25 * 93_516_096 / 6.4625 / 2**30)
    # DDP: 98 steps of 2 x 3/4 x 4 x 11,173,962 B = 67,043,772 B over 8.875 s.
    ddp = claims("bandwidth", "coursework_ddp")[None, "90 MB/90 ms", 128, 4]
    assert ddp.sound_value == pytest.approx(98 * 67_043_772 / 8.875 / 1e6)
    # 391 steps of 89,391,696 B over 14.1232 s are 2.4748 GB/s, of PCIe 4.0 x16's 31.508 GB/s.
    used = claims("utilisation", "coursework_l4")["second", "effective_bandwidth/300", 128, 4]
    assert used.sound_value == pytest.approx(100 * 2.474799 / 31.507692, rel=1e-5)


def test_amdahl_beside_the_measured_speedups() -> None:
    predicted = claims("amdahl_speedup", "coursework_ddp")
    sound = {key[3]: audit.sound_value for key, audit in predicted.items()}
    assert sound[2] == pytest.approx(101.7 / 56.3)
    assert sound[4] == pytest.approx(101.7 / 34.3)
    assert sound[8] is None  # not measured


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
    assert one.audit.agreement == "unknown"
    assert reason in one.reproduction.reason


def test_links_without_nvlink() -> None:
    # PCIe 4.0: 16 GT/s x 16 lanes x 128/130 / 8 bits = 31.508 GB/s in one direction.
    assert pcie_gb_per_s(4) == pytest.approx(31.5077, abs=1e-4)
    peak = link_peak("4x NVIDIA L4")
    assert peak is not None
    assert peak.name == "PCIe 4.0 x16"
    assert link_peak("8x L40S, one server") == peak
    for hardware in (None, "", "4 GPUs one server", "NVIDIA A100", "L4-like", "GL4"):
        assert link_peak(hardware) is None


def test_the_published_claims() -> None:
    claims = read_claims(PUBLISHED / "derived_values.csv")
    assert len(claims) == 104
    assert claims[14].printed_value == "-0.1519639492034912"  # kept digit by digit


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
