"""What claims got wrong, found from their numbers: by what a value must have been made of, not by its label."""

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from dpscope.analysis.published_audit import AuditedClaim, audit_claims
from dpscope.analysis.published_baselines import global_batch
from dpscope.analysis.published_claims import NotComputable, agreement, base_value, last_printed_digit
from dpscope.analysis.published_estimates import BYTES_PER_PARAMETER
from dpscope.analysis.published_links import link_peak
from dpscope.analysis.published_wording import at, info, listed, place, warning
from dpscope.analysis.scaling_laws import amdahl_speedup, karp_flatt
from dpscope.profiling.run_types import Finding

_PEAK_TOO_HIGH = 1.5  # stated peak over the link's: above bus overheads and units of 1024
_AMDAHL_OFF = 0.05

_Group = Sequence[AuditedClaim]


def claim_findings(times: pd.DataFrame, claims: pd.DataFrame) -> list[Finding]:
    """Findings of a table of claims beside its epoch times; each kind once per study and run that shows it."""
    groups: dict[str, list[AuditedClaim]] = {}
    for audited in audit_claims(times, claims):
        groups.setdefault(place(audited.audit.study, audited.audit.run), []).append(audited)
    return [finding for check in _CHECKS for where, group in groups.items() for finding in check(where, group)]


def _known(condition: Callable[[AuditedClaim], bool], audited: AuditedClaim) -> bool:
    """A condition, False where the tables do not hold what it asks for."""
    try:
        return condition(audited)
    except (NotComputable, ZeroDivisionError):
        return False


def _which(group: _Group, quantities: tuple[str, ...], condition: Callable[[AuditedClaim], bool]) -> list[AuditedClaim]:
    return [one for one in group if one.audit.quantity in quantities and _known(condition, one)]


def _cells(group: _Group) -> str:
    return listed([f"{_printed(one)} at {at(one.audit.batch_size, one.audit.devices)}" for one in group])


def _printed(one: AuditedClaim) -> str:
    return one.audit.printed_value + ("" if one.audit.unit == "1" else f" {one.audit.unit}")


def _counted_twice(where: str, group: _Group) -> Iterator[Finding]:
    """A claimed speedup that is N T_1/T_N of epoch times, and not T_1/T_N."""

    def twice(one: AuditedClaim) -> bool:
        setting, printed = one.setting, one.audit.printed_value
        ratio = setting.t_1() / setting.t_n
        return _agrees(setting.devices * ratio, printed) and not _agrees(ratio, printed)

    if found := _which(group, ("speedup",), twice):
        parts = [f"{_printed(one)}x is {one.setting.t_1() / one.setting.t_n:.2f}x" for one in found]
        parts = [
            f"{part} at {at(one.audit.batch_size, one.audit.devices)}" for part, one in zip(parts, found, strict=True)
        ]
        yield warning(
            "devices_counted_twice",
            f"{where}: N T_1/T_N on epoch times counts the devices twice, as an epoch on N devices has 1/N of the steps: "
            f"{listed(parts)}",
            "use T_1/T_N for epoch times; N t_1/t_N is for step times",
        )


def _agrees(value: float, printed: str) -> bool:
    return agreement(value, printed) != "differs"


def _negative(where: str, group: _Group) -> Iterator[Finding]:
    for quantity in ("communication_seconds", "effective_bandwidth", "utilisation"):
        if found := _which(group, (quantity,), lambda one: float(one.audit.printed_value) < 0):
            yield warning(
                "negative_claim",
                f"{where}: {quantity} is claimed negative: {_cells(found)}",
                "a negative time or rate shows that the method measures something else: use same_local_batch",
            )


def _unsound_subtraction(where: str, group: _Group) -> Iterator[Finding]:
    """Claimed communication that is a subtraction at a fixed global batch."""

    def fixed_global(one: AuditedClaim) -> bool:
        return one.setting.row.batch_size_is == "global" and one.reproduction.value is not None

    if found := _which(group, ("communication_seconds",), fixed_global):
        parts = [
            f"{one.audit.printed_value[:8]} s at {at(one.audit.batch_size, one.audit.devices)}, sound: "
            + ("unknown" if one.audit.sound_value is None else f"{one.audit.sound_value:.4g} s")
            for one in found
        ]
        methods = ", ".join(dict.fromkeys(one.audit.method for one in found))
        yield warning(
            "unsound_subtraction",
            f"{where}: {methods} at a fixed global batch compares different batches per device: {listed(parts)}",
            "subtract the time of one device at batch_size / devices",
        )


def _one_volume_per_epoch(where: str, group: _Group) -> Iterator[Finding]:
    """A rate whose volume, rate x communication time, is that of one all-reduce, and an epoch had many."""

    def one_volume(one: AuditedClaim) -> bool:
        return one.setting.steps > 1 and _volume_is(one, BYTES_PER_PARAMETER * one.setting.ring_elements)

    if found := _which(group, ("effective_bandwidth",), one_volume):
        steps = [one.setting.steps for one in found]
        yield warning(
            "one_volume_per_epoch",
            f"{where}: the volume of one all-reduce over the communication time of an epoch, which has {min(steps)} to "
            f"{max(steps)} steps; the rates are too low by as much: {_cells(found)}",
            "multiply the volume of a step by the steps of an epoch",
        )


def _elements_as_bytes(where: str, group: _Group) -> Iterator[Finding]:
    """A rate whose volume is the elements of an epoch, a quarter of its bytes."""

    def elements(one: AuditedClaim) -> bool:
        return _volume_is(one, one.setting.steps * one.setting.ring_elements)

    if found := _which(group, ("effective_bandwidth",), elements):
        yield warning(
            "elements_as_bytes",
            f"{where}: the volume behind the rates counts elements, not bytes, of which a 32-bit element has 4: "
            f"{_cells(found)}",
            f"multiply the volume by {BYTES_PER_PARAMETER} bytes",
        )


def _volume_is(one: AuditedClaim, volume: float) -> bool:
    """Whether a claimed rate times its communication time is `volume`, as far as the printed digits tell."""
    claim = one.setting.claim
    implied = base_value(claim) * one.setting.communication_seconds()
    slack = 0.02 + last_printed_digit(claim.printed_value) / abs(claim.value)
    return abs(implied / volume - 1) <= slack


def _impossible_peak(where: str, group: _Group) -> Iterator[Finding]:
    """The peak behind a utilisation, claimed rate / claimed utilisation, against the card's link."""

    def stated_gbps(one: AuditedClaim) -> float:
        return one.setting.printed("effective_bandwidth") / base_value(one.setting.claim) / 1e9

    def impossible(one: AuditedClaim) -> bool:
        peak = link_peak(one.setting.row.hardware)
        return peak is not None and stated_gbps(one) > _PEAK_TOO_HIGH * peak.gbps

    if found := _which(group, ("utilisation",), impossible):
        hardware = found[0].setting.row.hardware
        peak = link_peak(hardware)
        assert peak is not None
        yield warning(
            "impossible_peak",
            f"{where}: {len(found)} utilisations are of a peak of {stated_gbps(found[0]):.0f} GB/s, but {hardware} have "
            f"{peak.name} and no NVLink: {peak.gbps:.1f} GB/s in one direction",
            "divide by the peak of the link that is there, or better by a calibrated rate",
        )


def _ring_for_dp(where: str, group: _Group) -> Iterator[Finding]:
    """Volumes and times of a ring all-reduce claimed for DataParallel, which runs none."""
    quantities = ("allreduce_volume", "elements_per_epoch", "theoretical_allreduce_seconds", "effective_bandwidth")

    def modelled(one: AuditedClaim) -> bool:
        if one.reproduction.value is None or one.setting.any_row.strategy != "dp":
            return False
        ring = BYTES_PER_PARAMETER * one.setting.ring_elements
        if one.audit.quantity == "effective_bandwidth":
            steps = one.setting.steps
            return any(_volume_is(one, volume) for volume in (ring, steps * ring, steps * ring / BYTES_PER_PARAMETER))
        return one.audit.quantity != "allreduce_volume" or _near(base_value(one.setting.claim), ring)

    if found := _which(group, quantities, modelled):
        names = ", ".join(dict.fromkeys(one.audit.quantity for one in found))
        yield warning(
            "ring_for_dp",
            f"{where}: {len(found)} claims ({names}) take the ring volume 2(N-1)/N S for DataParallel, which runs no "
            "all-reduce: it broadcasts S and reduces S in each step",
            "use 2 S a step for DataParallel, or measure DistributedDataParallel",
        )


def _near(value: float, other: float) -> bool:
    return abs(value / other - 1) <= 0.02


def _volume_mismatch(where: str, group: _Group) -> Iterator[Finding]:
    """A rate's stated volume, from its formula `x MB/y ms`, against what a step moves."""

    def stated(one: AuditedClaim) -> float:
        amount, _, unit = one.audit.method.partition("/")[0].partition(" ")
        if unit not in ("MB", "GB"):
            raise NotComputable("the method states no volume")
        return float(amount) * {"MB": 1e6, "GB": 1e9}[unit]

    def ring(one: AuditedClaim) -> float:
        return BYTES_PER_PARAMETER * one.setting.ring_elements

    for one in _which(group, ("bandwidth", "effective_bandwidth"), lambda one: not _near(stated(one), ring(one))):
        model_bytes = BYTES_PER_PARAMETER * one.setting.parameters
        source = "; it is twice the model, without the ring's (N-1)/N" if _near(stated(one), 2 * model_bytes) else ""
        yield warning(
            "volume_mismatch",
            f"{where}: {stated(one) / 1e6:.0f} MB are stated at {at(one.audit.batch_size, one.audit.devices)}, the ring "
            f"all-reduce of this model moves {ring(one) / 1e6:.0f} MB{source}",
            "take the volume from the parameters: 2(N-1)/N S",
        )


def _batch_contradicted(where: str, group: _Group) -> Iterator[Finding]:
    """Claims that treat one batch as global in one place and as per device in another."""

    def counts_global_steps(one: AuditedClaim) -> bool:
        row = one.setting.row
        steps = base_value(one.setting.claim) / one.setting.ring_elements
        if row.samples_per_epoch is None:
            return False
        return round(steps) == -(-row.samples_per_epoch // row.batch_size) and global_batch(row) == row.batch_size

    def takes_per_device(one: AuditedClaim) -> bool:
        share = one.setting.t_1() / one.setting.devices
        return one.setting.row.batch_size_is == "global" and _agrees(share, one.audit.printed_value)

    volumes = _which(group, ("elements_per_epoch",), counts_global_steps)
    shares = _which(group, ("compute_seconds",), takes_per_device)
    if volumes and shares:
        first = volumes[0]
        yield warning(
            "batch_meaning_contradicted",
            f"{where}: its volumes count {first.setting.steps} steps an epoch at batch {first.audit.batch_size} on "
            f"{' and on '.join(_devices_of(volumes, first))} devices, so the batch is global; its compute T_1/N at the "
            f"same batch_size would need it per device: {_cells(shares)}",
            "decide which one the runs used, by their steps per epoch, and compare at the same batch per device",
        )


def _devices_of(group: _Group, like: AuditedClaim) -> list[str]:
    return [str(one.audit.devices) for one in group if one.audit.batch_size == like.audit.batch_size]


def _subtraction_called_measured(where: str, group: _Group) -> Iterator[Finding]:
    """A share a/b whose a and b are the subtraction and the epoch, divided by the steps."""

    def from_subtraction(one: AuditedClaim) -> bool:
        added_ms, step_ms, top, bottom = _share_parts(one)
        return abs(top / added_ms - 1) <= 0.02 and abs(bottom / step_ms - 1) <= 0.02

    for one in _which(group, ("communication_share",), from_subtraction):
        added_ms, step_ms, top, bottom = _share_parts(one)
        yield warning(
            "subtraction_called_measured",
            f"{where}: the {top:g} ms of {bottom:g} ms at {at(one.audit.batch_size, one.audit.devices)} are the subtraction "
            f"itself, (T_N - T_1/N) / steps = {added_ms:.1f} ms of {step_ms:.1f} ms: agreeing with it confirms nothing",
            "read communication off a trace, and compare the subtraction with that",
        )


def _share_parts(one: AuditedClaim) -> tuple[float, float, float, float]:
    """Added and whole time of a step by subtraction, and the share's two numbers; milliseconds."""
    top, slash, bottom = one.audit.method.partition("/")
    if not slash or not top.isdecimal() or not bottom.isdecimal():
        raise NotComputable("the share is no quotient of two numbers")
    setting = one.setting
    added_s = setting.t_n - setting.t_1() / setting.devices
    return added_s / setting.steps * 1e3, setting.t_n / setting.steps * 1e3, float(top), float(bottom)


def _overhead_as_serial(where: str, group: _Group) -> Iterator[Finding]:
    """Amdahl predictions from a communication share, against the speedups the same table shows."""
    found = [one for one in group if one.audit.quantity == "amdahl_speedup" and one.audit.sound_value is not None]
    parts = []
    for one in found:
        measured, claimed = one.audit.sound_value or 0.0, float(one.audit.printed_value)
        if abs(claimed / measured - 1) > _AMDAHL_OFF:
            fraction = karp_flatt(measured, one.setting.devices)
            parts.append(f"{claimed:g}x for {measured:.2f}x on {one.setting.devices} (Karp-Flatt {fraction:.3f})")
    if parts:
        yield warning(
            "overhead_as_serial_fraction",
            f"{where}: a communication share taken as Amdahl's serial fraction predicts {listed(parts)}: it is a cost "
            "added to each step on several devices, no work that one device must do alone",
            "fit a scaling law to measured speedups, and predict no further than twice the largest count",
        )


def _limit_compared(where: str, group: _Group) -> Iterator[Finding]:
    """A measured speedup over the limit for infinitely many devices."""
    for one in _which(group, ("fraction_of_max",), lambda one: one.setting.sibling("speedup") is not None):
        limit = next((other for other in group if other.audit.quantity == "max_speedup"), None)
        if limit is None:
            continue
        measured, devices = one.setting.printed("speedup"), one.setting.devices
        same_count = amdahl_speedup(1 / float(limit.audit.printed_value), devices)
        yield warning(
            "limit_compared_with_measurement",
            f"{where}: {_printed(one)} is the speedup on {devices} devices over the limit for infinitely many "
            f"({limit.audit.printed_value}x); the same formula gives {same_count:.2f}x on {devices}, below the measured "
            f"{measured:.2f}x, so it does not describe these runs",
            "compare a measurement with a prediction for the same number of devices",
        )


def _digits(where: str, group: _Group) -> Iterator[Finding]:
    for label, code, say in (
        ("differs", "claim_not_reproduced", "its named method does not give the printed digits"),
        ("truncated", "claim_truncated", "printed digits are cut off, not rounded"),
    ):
        if found := [one for one in group if one.audit.agreement == label]:
            parts = [f"{_printed(one)} for {one.audit.reproduced:.6g}" for one in found]
            tell = warning if label == "differs" else info
            yield tell(code, f"{where}: {say}: {listed(parts)}", "print one digit more than is meant to be used")
    if found := [one for one in group if one.audit.agreement == "unknown"]:
        parts = [f"{one.audit.quantity} {_printed(one)} ({one.reproduction.reason})" for one in found]
        yield info(
            "claim_not_computable",
            f"{where}: cannot be computed from the tables: {listed(parts)}",
            "add the rows it was derived from, or take it as stated",
        )


_CHECKS: tuple[Callable[[str, _Group], Iterator[Finding]], ...] = (
    _counted_twice,
    _negative,
    _unsound_subtraction,
    _one_volume_per_epoch,
    _elements_as_bytes,
    _impossible_peak,
    _ring_for_dp,
    _volume_mismatch,
    _batch_contradicted,
    _subtraction_called_measured,
    _overhead_as_serial,
    _limit_compared,
    _digits,
)
