"""Claims compared with what holds: each printed value, what its method gives, and the sound value or why there is none."""

from collections.abc import Sequence
from typing import NamedTuple

from dpscope.analysis.epoch_times.claims import (
    UNIT_SIZES,
    Claim,
    ClaimSetting,
    NotComputable,
    Reproduction,
    agreement,
    last_printed_digit,
    reproduce,
)
from dpscope.analysis.epoch_times.estimates import BYTES_PER_PARAMETER, EpochEstimate, estimates, moved_bytes_per_step
from dpscope.analysis.epoch_times.table import EpochTime
from dpscope.profiling.machine.link_specifications import gpu_model, model_link
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.strategies import traits_of


class ClaimAudit(NamedTuple):
    """One claim, audited. `reproduced` and `sound_value` are in the claim's unit, None where there is none.

    `agreement` compares the printed digits with the named method: digits, truncated, differs, unknown.
    `verdict` compares them with the sound value: holds, does_not_hold, no_sound_value.
    """

    study: str | None
    run: str | None
    quantity: str
    method: str
    batch_size: int | None
    devices: int | None
    printed_value: str
    unit: str
    reproduced: float | None
    agreement: str
    sound_value: float | None
    verdict: str
    reason: str


class AuditedClaim(NamedTuple):
    """An audit with what findings need besides."""

    setting: ClaimSetting
    reproduction: Reproduction
    audit: ClaimAudit


def audit_claims(rows: Sequence[EpochTime], claims: Sequence[Claim]) -> list[AuditedClaim]:
    """Audit every claim against the epoch times they were derived from."""
    found = estimates(rows)
    return [_audit(ClaimSetting(claim, rows, claims), found) for claim in claims]


def find_estimate(row: EpochTime, quantity: str, method: str, found: Sequence[EpochEstimate]) -> EpochEstimate:
    """The one estimate of this name for a multi-device row."""
    key = (row.study, row.run, row.strategy, row.batch_size, row.devices, quantity, method)
    return next(estimate for estimate in found if estimate[:7] == key)


def ratio_method(row: EpochTime) -> str:
    """The method whose single-device time has the same number in `batch_size`."""
    return {"global": "strong", "per_device": "weak", None: "same_batch_size"}[row.batch_size_is]


def claim_holds(claim: Claim, sound: float) -> bool:
    """Whether the sound value has the printed digits, rounded or cut off: 0.75 is 0.754 or 0.759, and not 0.7413.

    A difference of times that were rounded first may be off by one of the last digit.
    """
    if claim.quantity.endswith("_seconds"):
        return abs(sound - claim.value) <= last_printed_digit(claim.printed_value)
    return agreement(sound, claim.printed_value) != "differs"


def _audit(setting: ClaimSetting, found: Sequence[EpochEstimate]) -> AuditedClaim:
    claim, reproduction = setting.claim, reproduce(setting)
    sound: float | None
    try:
        base, reason = _sound(setting, reproduction, found)
        sound = base / UNIT_SIZES[claim.unit] if claim.unit in UNIT_SIZES else None
    except NotComputable as why:
        sound, reason = None, str(why)
    verdict = "no_sound_value"
    if sound is not None:
        verdict = "holds" if claim_holds(claim, sound) else "does_not_hold"
    audit = ClaimAudit(
        study=claim.study,
        run=claim.run,
        quantity=claim.quantity,
        method=claim.method,
        batch_size=claim.batch_size,
        devices=claim.devices,
        printed_value=claim.printed_value,
        unit=claim.unit,
        reproduced=reproduction.value,
        agreement=reproduction.agreement,
        sound_value=sound,
        verdict=verdict,
        reason=reason,
    )
    return AuditedClaim(setting, reproduction, audit)


def _sound(setting: ClaimSetting, reproduction: Reproduction, found: Sequence[EpochEstimate]) -> tuple[float, str]:
    """The sound value of a claim's quantity in base units, and what it is; NotComputable says why there is none."""
    quantity = setting.claim.quantity
    if quantity in ("speedup", "efficiency", "amdahl_speedup"):
        name = "efficiency" if quantity == "efficiency" else "speedup"
        return _estimated(setting, name, ratio_method(setting.row), found)
    if quantity in ("communication_seconds", "compute_seconds"):
        return _estimated(setting, quantity, "same_local_batch", found)
    if quantity == "communication_share":
        seconds, reason = _estimated(setting, "communication_seconds", "same_local_batch", found)
        return seconds / setting.t_n, f"share of the epoch; {reason}"
    if quantity in ("effective_bandwidth", "bandwidth"):
        return _bandwidth(setting, found)
    if quantity == "utilisation":
        return _utilisation(setting, found)
    if quantity in ("allreduce_volume", "elements_per_epoch", "theoretical_allreduce_seconds"):
        return _traffic(setting)
    if quantity == "model_size" and reproduction.value is not None:
        return reproduction.value * UNIT_SIZES[setting.claim.unit], "4 bytes per parameter"
    if quantity in ("max_speedup", "fraction_of_max"):
        raise NotComputable("added communication is a cost of each step, no serial fraction: no limit follows")
    raise NotComputable(reproduction.reason or f"no sound form of {quantity} is known")


def _estimated(setting: ClaimSetting, quantity: str, method: str, found: Sequence[EpochEstimate]) -> tuple[float, str]:
    estimate = find_estimate(setting.row, quantity, method, found)
    if estimate.value is None or not estimate.sound:
        raise NotComputable(estimate.reason)
    return estimate.value, f"{method}: {estimate.reason}"


def _bandwidth(setting: ClaimSetting, found: Sequence[EpochEstimate]) -> tuple[float, str]:
    rate_gb_per_s, reason = _estimated(setting, "effective_bandwidth", "same_local_batch", found)
    rate = rate_gb_per_s * 1e9
    return (rate / BYTES_PER_PARAMETER if "elements" in setting.claim.unit else rate), reason


def _utilisation(setting: ClaimSetting, found: Sequence[EpochEstimate]) -> tuple[float, str]:
    peak = link_peak(setting.row.hardware)
    if peak is None:
        raise NotComputable("the link of this hardware is not known")
    rate, reason = _bandwidth(setting, found)
    return rate / (peak.gb_per_s * 1e9), f"of {peak.gb_per_s:.1f} GB/s ({peak.name}); {reason}"


def _traffic(setting: ClaimSetting) -> tuple[float, str]:
    """What the strategy moves: bytes of a step, elements of an epoch, or seconds of a step at the link's peak."""
    quantity = setting.claim.quantity
    row = setting.row if setting.claim.batch_size is not None else setting.any_row
    step_bytes = moved_bytes_per_step(row)
    if step_bytes is None:
        raise NotComputable(f"it is unknown what {row.strategy} moves")
    what = "DP moves parameters out and gradients back" if traits_of(row.strategy).peer_copies else "ring all-reduce"
    if quantity == "allreduce_volume":
        return step_bytes, f"{what}, bytes of a step"
    if quantity == "elements_per_epoch":
        return setting.steps * step_bytes / BYTES_PER_PARAMETER, f"{what}, in each of {counted(setting.steps, 'step')}"
    peak = link_peak(row.hardware)
    if peak is None:
        raise NotComputable("the link of this hardware is not known")
    return step_bytes / (peak.gb_per_s * 1e9), f"{what}; one step at {peak.gb_per_s:.1f} GB/s ({peak.name})"


def link_peak(hardware: str | None) -> LinkRate | None:
    """The link between GPUs that are known to have PCIe only; None for any other and for unknown hardware."""
    model = gpu_model(hardware)
    return model_link(model) if model is not None and model.nvlink_version is None else None
