"""Findings about claims: each code has a table that shows it, and one beside it that must not; and what the studies show."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpscope.analysis.epoch_times.claim_findings import claim_findings
from dpscope.analysis.epoch_times.claim_verdicts import audit_claims
from dpscope.analysis.epoch_times.claims import read_claims
from dpscope.analysis.epoch_times.report import estimate_report
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.records.estimate_codes import ClaimCode
from dpscope.profiling.records.finding import Finding
from tests.helpers.epoch_tables import SOUND
from tests.helpers.paths import PUBLISHED

TIMES = read_epoch_times(PUBLISHED / "epoch_times.csv")
CLAIMED = read_claims(PUBLISHED / "derived_values.csv")

CLAIM_HEAD = "study,run,quantity,method,batch_size,devices,printed_value,unit\n"
# Sound claims of SOUND: T_1(20)/T_2(20) = 80/55.
HONEST = CLAIM_HEAD + "s,r,speedup,T1/TN,20,2,1.45,1\n"


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
    "volume_mismatch": (
        "s,r,bandwidth,8 MB/4 ms,20,2,2000,MB/s\n",
        "s,r,bandwidth,4 MB/2 ms,20,2,2000,MB/s\n",
        SOUND,
    ),
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


@pytest.mark.parametrize("code", CLAIMS)
def test_claim_findings(tmp_path: Path, code: str) -> None:
    showing, clean, times = CLAIMS[code]
    found = [finding for finding in of_claims(tmp_path, showing, times) if finding.code == code]
    assert len(found) == 1
    assert found[0].message
    assert found[0].next_step
    assert code not in codes(of_claims(tmp_path, clean, times))


def test_every_code_is_covered() -> None:
    assert set(CLAIMS) == set(ClaimCode)


def test_honest_claims_are_left_alone(tmp_path: Path) -> None:
    assert of_claims(tmp_path, HONEST.removeprefix(CLAIM_HEAD)) == []


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


EXPECTED = {
    "coursework_l4": {
        "negative_communication", "no_same_local_baseline", "runs_differ", "little_speedup", "dp_is_no_all_reduce",
        "negative_claim", "unsound_subtraction", "one_volume_per_epoch", "impossible_peak", "ring_for_dp",
        "claim_not_computable",
    },
    "coursework_cluster": {
        "negative_communication", "sign_not_certain", "resolution_too_coarse", "no_same_local_baseline",
        "uneven_epoch", "little_speedup", "dp_is_no_all_reduce", "out_of_memory", "devices_counted_twice",
        "unsound_subtraction", "elements_as_bytes", "ring_for_dp", "batch_meaning_contradicted",
    },
    "coursework_weak": {
        "batch_exceeds_dataset", "runs_differ", "little_speedup", "dp_is_no_all_reduce", "devices_counted_twice",
        "one_volume_per_epoch", "ring_for_dp", "claim_truncated",
    },
    "coursework_ddp": {
        "times_typed", "volume_mismatch", "subtraction_called_measured", "overhead_as_serial_fraction",
        "limit_compared_with_measurement", "claim_not_computable",
    },
    "benchmark_resnet50": {"dp_is_no_all_reduce"},
}  # fmt: skip


@pytest.mark.parametrize("study", EXPECTED)
def test_findings_of_the_published_tables(study: str) -> None:
    claims = [claim for claim in CLAIMED if claim.study == study]
    assert codes(estimate_report(TIMES.of_study(study), claims).findings) == EXPECTED[study]


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
    found = estimate_report(TIMES, CLAIMED).findings
    assert any(part in finding.message for finding in found if finding.code == code)
