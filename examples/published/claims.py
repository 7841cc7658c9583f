"""Audits values that people derived from epoch times: each is computed by its stated method and
compared with the sound value.

A claim states its method as a short formula, such as `TN-T1/N` or `printed speedup/N`; METHODS
holds the known ones, wrong ones included. K is the number of parameters, N the devices, T an epoch
time, and `printed x` another claim of the same setting.
"""

import csv
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from dpscope.analysis import EpochEstimate, EpochTime, epoch_estimates

BYTES_PER_PARAMETER = 4
LINKS_GB_PER_S = {"4x NVIDIA L4": ("PCIe 4.0 x16", 16 * (128 / 130) / 8 * 16)}
"""The link between the GPUs of a study's hardware: 16 lanes of 16 GT/s at 128b/130b (PCI Express
Base Specification 4.0).
"""
UNIT_SIZES = {
    "1": 1.0, "%": 0.01, "s": 1.0, "ms": 1e-3, "GiB": 2.0**30, "GiB/s": 2.0**30, "GB": 1e9, "GB/s": 1e9, "MB": 1e6,
    "MB/s": 1e6, "elements": 1.0, "1e9 elements/s": 1e9,
}  # fmt: skip
"""One of each unit in base units: seconds, bytes, bytes per second, elements or a plain ratio."""


class Claim(NamedTuple):
    """One derived value as printed, and the method that gives its digits; None is unknown."""

    study: str | None
    run: str | None
    quantity: str
    method: str
    batch_size: int | None
    devices: int | None
    printed_value: str
    unit: str

    @property
    def value(self) -> float:
        """The printed number, in `unit`."""
        return float(self.printed_value)

    @property
    def base_value(self) -> float:
        """The printed number in base units."""
        if self.unit not in UNIT_SIZES:
            raise NotComputable(f"the unit {self.unit} is not known")
        return self.value * UNIT_SIZES[self.unit]


class NotComputable(Exception):  # noqa: N818 (an answer, not a fault)
    """A claim's value cannot be computed from the tables; the message is the reason."""


def read_claims(path: Path) -> list[Claim]:
    """The rows of a table of derived values, such as derived_values.csv."""
    with path.open(newline="") as file:
        return [_claim(row) for row in csv.DictReader(file)]


def _claim(row: dict[str, str]) -> Claim:
    batch_size, devices = (
        int(row[name]) if row[name] else None for name in ("batch_size", "devices")
    )
    named = (row["study"] or None, row["run"] or None, row["quantity"], row["method"])
    return Claim(*named, batch_size, devices, row["printed_value"], row["unit"])


def audit_claims(rows: Sequence[EpochTime], claims: Sequence[Claim]) -> list["AuditedClaim"]:
    """Audit every claim against the epoch times that it was derived from.

    A ratio uses the single-device times of its own run, so that both times come from one. A
    subtraction uses those of its sweep, where there is one: it compares times across batch sizes,
    which the sweep measured together.
    """
    found: dict[tuple[object, ...], EpochEstimate] = {
        (*one.setting, one.quantity, one.method): one for one in epoch_estimates(rows)
    }
    of_sweeps = epoch_estimates(with_sweeps(rows))
    found |= {
        (*one.setting, one.quantity, one.method): one
        for one in of_sweeps
        if one.method == "same_local_batch"
    }
    return [AuditedClaim(claim, rows, claims, found) for claim in claims]


def with_sweeps(rows: Sequence[EpochTime]) -> list[EpochTime]:
    """The rows with the single-device times of a run `x_sweep` in place of those of the run `x`."""
    runs = {(row.study, row.run) for row in rows}
    kept = (row for row in rows if row.devices > 1 or (row.study, f"{row.run}_sweep") not in runs)
    return [row._replace(run=row.run and row.run.removesuffix("_sweep")) for row in kept]


def claim_holds(claim: Claim, sound: float) -> bool:
    """Whether the sound value has the printed digits, rounded or truncated: 0.75 is 0.754 or 0.759,
    but not 0.7413.

    A difference of rounded times may be off by one in the last digit.
    """
    if claim.quantity.endswith("_seconds"):
        return abs(sound - claim.value) <= last_printed_digit(claim.printed_value)
    return agreement(sound, claim.printed_value) != "differs"


def agreement(value: float, printed: str) -> str:
    """Whether `value` rounds to the printed digits (digits), only truncates to them (truncated), or
    differs.

    A value printed with all digits of a float may differ in its last bits.
    """
    last_digit = last_printed_digit(printed)
    slack = 4 * math.ulp(value)
    distance = abs(value) - abs(float(printed))
    if value * float(printed) < 0:
        return "differs"
    if abs(distance) <= last_digit / 2 + slack:
        return "digits"
    return "truncated" if 0 <= distance < last_digit - slack else "differs"


def last_printed_digit(printed: str) -> float:
    """One unit of the last printed digit: 0.01 for `4.20`."""
    return 10.0 ** min(300, int(Decimal(printed).as_tuple().exponent))


def _reproduce(one: "AuditedClaim") -> tuple[float | None, str]:
    """A claim's value by its own method, in its unit; None with the reason."""
    claim = one.claim
    try:
        for pattern, formula in METHODS:
            if match := re.fullmatch(pattern, claim.method):
                value = formula(one, match) / UNIT_SIZES.get(claim.unit, math.nan)
                if math.isfinite(value):
                    return value, ""
                return None, f"its method has no finite value in {claim.unit}"
    except NotComputable as error:
        return None, str(error)
    except ZeroDivisionError:
        return None, "its method divides by zero"
    return None, "stated by the source: no formula over the tables gives it"


def _sound_value(one: "AuditedClaim") -> tuple[float, str]:
    """The sound value of a claim's quantity in base units, and what it is."""
    quantity, unit = one.claim.quantity, one.claim.unit
    if quantity in ("speedup", "efficiency", "amdahl_speedup"):
        # The method whose single-device time has the same number in `batch_size`.
        method = {"global": "strong", "per_device": "weak", None: "same_batch_size"}[
            one.row.batch_size_is
        ]
        return one.estimated("efficiency" if quantity == "efficiency" else "speedup", method)
    if quantity in ("communication_seconds", "compute_seconds"):
        return one.estimated(quantity, "same_local_batch")
    if quantity == "communication_share":
        seconds, reason = one.estimated("communication_seconds", "same_local_batch")
        return seconds / one.t_n, f"share of the epoch; {reason}"
    if quantity in ("effective_bandwidth", "bandwidth", "utilisation"):
        rate_gb_per_s, reason = one.estimated("effective_bandwidth", "same_local_batch")
        if quantity == "utilisation":
            link, peak = link_peak(one.row.hardware)
            return rate_gb_per_s / peak, f"of {peak:.1f} GB/s ({link}); {reason}"
        return rate_gb_per_s * 1e9 / (BYTES_PER_PARAMETER if "elements" in unit else 1), reason
    if quantity in ("allreduce_volume", "elements_per_epoch", "theoretical_allreduce_seconds"):
        return _traffic(one)
    if quantity == "model_size" and one.reproduced is not None:
        return one.reproduced * UNIT_SIZES[unit], "4 bytes per parameter"
    if quantity in ("max_speedup", "fraction_of_max"):
        raise NotComputable(
            "added communication is a cost of each step, not a serial fraction: no limit follows"
        )
    raise NotComputable(one.not_reproduced or f"no sound form of {quantity} is known")


def _traffic(one: "AuditedClaim") -> tuple[float, str]:
    """What the strategy moves: bytes of a step, elements of an epoch, or seconds of a step at the
    link's peak.
    """
    quantity = one.claim.quantity
    row = one.row if one.claim.batch_size is not None else one.any_row
    is_dp = row.strategy == "dp"
    model_bytes = BYTES_PER_PARAMETER * one.parameters
    step_bytes = 2.0 * model_bytes if is_dp else one.ring_bytes
    what = "DP moves parameters out and gradients back" if is_dp else "ring all-reduce"
    if quantity == "allreduce_volume":
        return step_bytes, f"{what}, bytes of a step"
    if quantity == "elements_per_epoch":
        return (
            one.steps * step_bytes / BYTES_PER_PARAMETER,
            f"{what}, in each of {one.steps:,} steps",
        )
    link, peak = link_peak(row.hardware)
    return step_bytes / (peak * 1e9), f"{what}; one step at {peak:.1f} GB/s ({link})"


def link_peak(hardware: str | None) -> tuple[str, float]:
    """The link between the GPUs, and its rate in one direction in GB/s; raises NotComputable for
    unknown hardware.
    """
    if hardware not in LINKS_GB_PER_S:
        raise NotComputable("the link of this hardware is not known")
    return LINKS_GB_PER_S[hardware]


def amdahl_speedup(serial_fraction: float, devices: int) -> float:
    return 1 / (serial_fraction + (1 - serial_fraction) / devices)


class AuditedClaim:
    """A claim with its audit, the rows that it is about, and the other claims of its study.

    `reproduced` and `sound` are values in the claim's unit, None if there is none: `not_reproduced`
    and `reason` state why. `agreement` compares the printed digits with the stated method: digits,
    truncated, differs, unknown. `verdict` compares them with the sound value: holds, does_not_hold,
    no_sound_value.
    """

    def __init__(
        self,
        claim: Claim,
        rows: Sequence[EpochTime],
        claims: Sequence[Claim],
        found: dict[tuple[object, ...], EpochEstimate],
    ) -> None:
        """`found` are the estimates of all rows by setting, quantity and method."""
        self.claim = claim
        self._rows = [row for row in rows if row.study == claim.study]
        self._claims = [
            other for other in claims if other.study == claim.study and other is not claim
        ]
        self._estimates = found
        self.reproduced, self.not_reproduced = _reproduce(self)
        self.sound: float | None = None
        try:
            base, self.reason = _sound_value(self)
            self.sound = base / UNIT_SIZES[claim.unit] if claim.unit in UNIT_SIZES else None
        except NotComputable as error:
            self.reason = str(error)
        self.verdict = "no_sound_value"
        if self.sound is not None:
            self.verdict = "holds" if claim_holds(claim, self.sound) else "does_not_hold"
        self.agreement = (
            "unknown"
            if self.reproduced is None
            else agreement(self.reproduced, claim.printed_value)
        )

    def record(self) -> dict[str, object]:
        """The claim with its audit, by column."""
        stated = self.claim._asdict()
        audit = {
            "reproduced": self.reproduced,
            "agreement": self.agreement,
            "sound_value": self.sound,
        }
        return {**stated, **audit, "verdict": self.verdict, "reason": self.reason}

    @property
    def devices(self) -> int:
        if self.claim.devices is None:
            raise NotComputable("the claim names no number of devices")
        return self.claim.devices

    @property
    def row(self) -> EpochTime:
        """The one multi-device row that the claim is about."""
        found = [row for row in self._rows_at_devices if row.batch_size == self.claim.batch_size]
        if len(found) != 1:
            raise NotComputable(f"the table has {len(found) or 'no'} row for it")
        return found[0]

    @property
    def any_row(self) -> EpochTime:
        """A row that represents all batches: all rows with these devices must have one strategy."""
        found = self._rows_at_devices
        if len({row.strategy for row in found}) != 1:
            raise NotComputable(
                "the table has no rows, or several strategies, at this number of devices"
            )
        return found[0]

    @property
    def _rows_at_devices(self) -> list[EpochTime]:
        claim, several = (
            self.claim,
            [row for row in self._rows if 1 < row.devices == self.claim.devices],
        )
        return [row for row in several if claim.run in (None, row.run)]

    @property
    def parameters(self) -> int:
        """K, of the study's model."""
        counts = {row.parameters for row in self._rows}
        if len(counts) != 1 or (count := counts.pop()) is None:
            raise NotComputable("the table does not give one number of parameters for the study")
        return count

    @property
    def ring_elements(self) -> float:
        """Elements that one device sends in a ring all-reduce of K elements: 2K(N-1)/N."""
        return 2 * (self.devices - 1) / self.devices * self.parameters

    @property
    def ring_bytes(self) -> float:
        return BYTES_PER_PARAMETER * self.ring_elements

    @property
    def steps(self) -> int:
        if (steps := self.row.steps) is None:
            raise NotComputable("the table does not give the steps of an epoch")
        return steps

    @property
    def t_n(self) -> float:
        if self.row.epoch_seconds is None:
            raise NotComputable("the run ended out of memory")
        return self.row.epoch_seconds

    def t_1(self, run: str | None = None) -> float:
        """T_1 at the same number in `batch_size`, of the claim's run or the named one."""
        run = run or self.row.run
        found = [
            row
            for row in self._rows
            if (row.run, row.batch_size, row.devices) == (run, self.row.batch_size, 1)
        ]
        if len(found) != 1 or found[0].epoch_seconds is None:
            raise NotComputable(f"no single-device time at batch {self.row.batch_size}")
        return found[0].epoch_seconds

    @property
    def ratio(self) -> float:
        return self.t_1() / self.t_n

    def estimated(self, quantity: str, method: str) -> tuple[float, str]:
        """The sound estimate of this name for the claim's row, and its method and limits."""
        estimate = self._estimates[(*self.row.setting, quantity, method)]
        if estimate.value is None or not estimate.sound:
            raise NotComputable(estimate.reason)
        return estimate.value, f"{method}: {estimate.reason}"

    def sibling(self, quantity: str) -> Claim | None:
        """Another claim with the same batch and devices, or else one for these devices at any
        batch.
        """
        mine = (quantity, self.claim.run, self.claim.devices)
        alike = [one for one in self._claims if (one.quantity, one.run, one.devices) == mine]
        batches = (self.claim.batch_size, None)
        return next((one for batch in batches for one in alike if one.batch_size == batch), None)

    def printed(self, quantity: str) -> float:
        """The printed value of another claim of this setting, in base units."""
        other = self.sibling(quantity)
        if other is None:
            raise NotComputable(f"no printed {quantity} for it")
        return other.base_value

    def communication_seconds(self) -> float:
        """The claimed communication if it is printed, or else T_N - T_1/N, which is then meant."""
        stated = self.sibling("communication_seconds")
        return self.t_n - self.t_1() / self.devices if stated is None else stated.base_value

    def bandwidth_unit_bytes(self) -> float:
        other = self.sibling("effective_bandwidth")
        return UNIT_SIZES.get(other.unit, 1e9) if other else 1e9


_Formula = Callable[[AuditedClaim, re.Match[str]], float]
_A_NUMBER = r"\d+(?:\.\d+)?"


def _quotient(_: AuditedClaim, match: re.Match[str]) -> float:
    top, bottom = (
        float(match[end]) * UNIT_SIZES[match[f"{end}_unit"] or "1"] for end in ("top", "bottom")
    )
    return top / bottom


METHODS: tuple[tuple[str, _Formula], ...] = (
    (r"T1/TN", lambda s, _: s.ratio),
    (r"N\*T1/TN", lambda s, _: s.devices * s.t_1() / s.t_n),
    (r"TN-T1(?: \(T1 of (?P<run>[\w.-]+)\))?", lambda s, m: s.t_n - s.t_1(m["run"])),
    (r"TN-T1/N", lambda s, _: s.t_n - s.t_1() / s.devices),
    (r"T1/N", lambda s, _: s.t_1() / s.devices),
    (r"TN-printed compute_seconds", lambda s, _: s.t_n - s.printed("compute_seconds")),
    (r"printed speedup/N", lambda s, _: s.printed("speedup") / s.devices),
    (
        r"printed (?P<top>\w+)/printed (?P<bottom>\w+)",
        lambda s, m: s.printed(m["top"]) / s.printed(m["bottom"]),
    ),
    (r"4\*parameters", lambda s, _: float(BYTES_PER_PARAMETER * s.parameters)),
    (r"2K\(N-1\)/N\*4", lambda s, _: s.ring_bytes),
    (r"steps\*2K\(N-1\)/N", lambda s, _: s.steps * s.ring_elements),
    (r"one_allreduce_per_epoch", lambda s, _: s.ring_bytes / s.communication_seconds()),
    (r"elements_not_bytes", lambda s, _: s.steps * s.ring_elements / s.communication_seconds()),
    (
        rf"effective_bandwidth/(?P<peak>{_A_NUMBER})",
        lambda s, m: (
            s.printed("effective_bandwidth") / (float(m["peak"]) * s.bandwidth_unit_bytes())
        ),
    ),
    (
        rf"ring at (?P<peak>{_A_NUMBER}) (?P<unit>GiB|GB)/s",
        lambda s, m: s.ring_bytes / (float(m["peak"]) * UNIT_SIZES[m["unit"]]),
    ),
    (
        rf"(?P<top>{_A_NUMBER})(?: (?P<top_unit>MB|GB))?/(?P<bottom>{_A_NUMBER})(?: (?P<bottom_unit>ms|s))?",
        _quotient,
    ),
    (
        rf"1/\(s\+\(1-s\)/N\), s=(?P<top>{_A_NUMBER})/(?P<bottom>{_A_NUMBER})(?: \(.*\))?",
        lambda s, m: amdahl_speedup(float(m["top"]) / float(m["bottom"]), s.devices),
    ),
)
"""Pattern of a method and its formula; values in base units."""
