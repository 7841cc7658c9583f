"""What claims got wrong, found from their numbers: by what a value must have been made of, not by its label."""

from collections.abc import Callable, Iterator, Sequence

from dpscope.analysis.epoch_times.baselines import global_batch
from dpscope.analysis.epoch_times.wording import at, listed, place
from dpscope.analysis.stats.scaling_laws import amdahl_speedup, karp_flatt
from dpscope.profiling.records.finding import Finding
from examples.published.audit.claims import NotComputable, base_value
from examples.published.audit.codes import ClaimCode
from examples.published.audit.groups import ClaimGroup, agrees, cells, printed, which
from examples.published.audit.verdicts import AuditedClaim
from examples.published.audit.volumes import VOLUME_CHECKS

_AMDAHL_OFF = 0.05


def claim_findings(claims: Sequence[AuditedClaim]) -> list[Finding]:
    """Findings of audited claims; each kind once per study and run that shows it."""
    groups: dict[str, list[AuditedClaim]] = {}
    for audited in claims:
        groups.setdefault(place(audited.audit.study, audited.audit.run), []).append(audited)
    return [finding for check in _CHECKS for where, group in groups.items() for finding in check(where, group)]


def _counted_twice(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A claimed speedup that is N T_1/T_N of epoch times, and not T_1/T_N."""

    def twice(one: AuditedClaim) -> bool:
        setting, digits = one.setting, one.audit.printed_value
        ratio = setting.t_1() / setting.t_n
        return agrees(setting.devices * ratio, digits) and not agrees(ratio, digits)

    if found := which(group, ("speedup",), twice):
        parts = [f"{printed(one)}x is {one.setting.t_1() / one.setting.t_n:.2f}x" for one in found]
        parts = [
            f"{part} at {at(one.audit.batch_size, one.audit.devices)}" for part, one in zip(parts, found, strict=True)
        ]
        yield ClaimCode.DEVICES_COUNTED_TWICE.finding(
            f"{where}: N T_1/T_N on epoch times counts the devices twice, as an epoch on N devices has 1/N of the "
            f"steps: {listed(parts)}"
        )


def _negative(where: str, group: ClaimGroup) -> Iterator[Finding]:
    for quantity in ("communication_seconds", "effective_bandwidth", "utilisation"):
        if found := which(group, (quantity,), lambda one: float(one.audit.printed_value) < 0):
            yield ClaimCode.NEGATIVE_CLAIM.finding(f"{where}: {quantity} is claimed negative: {cells(found)}")


def _unsound_subtraction(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """Claimed communication that is a subtraction at a fixed global batch."""

    def fixed_global(one: AuditedClaim) -> bool:
        return one.setting.row.batch_size_is == "global" and one.reproduction.value is not None

    if found := which(group, ("communication_seconds",), fixed_global):
        parts = [
            f"{printed(one)} at {at(one.audit.batch_size, one.audit.devices)}, sound: "
            + ("unknown" if one.audit.sound_value is None else f"{one.audit.sound_value:.4g} s")
            for one in found
        ]
        methods = ", ".join(dict.fromkeys(one.audit.method for one in found))
        yield ClaimCode.UNSOUND_SUBTRACTION.finding(
            f"{where}: {methods} at a fixed global batch compares different batches per device: {listed(parts)}"
        )


def _batch_contradicted(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """Claims that treat one batch as global in one place and as per device in another."""

    def counts_global_steps(one: AuditedClaim) -> bool:
        row = one.setting.row
        steps = base_value(one.setting.claim) / one.setting.ring_elements
        if row.samples_per_epoch is None:
            return False
        expected = -(-row.samples_per_epoch // row.batch_size)
        return abs(steps - expected) < 0.5 and global_batch(row) == row.batch_size

    def takes_per_device(one: AuditedClaim) -> bool:
        share = one.setting.t_1() / one.setting.devices
        return one.setting.row.batch_size_is == "global" and agrees(share, one.audit.printed_value)

    volumes = which(group, ("elements_per_epoch",), counts_global_steps)
    shares = which(group, ("compute_seconds",), takes_per_device)
    if volumes and shares:
        first = volumes[0]
        yield ClaimCode.BATCH_MEANING_CONTRADICTED.finding(
            f"{where}: its volumes count {first.setting.steps} steps an epoch at batch {first.audit.batch_size} on "
            f"{' and on '.join(_devices_of(volumes, first))} devices, so the batch is global; its compute T_1/N at the "
            f"same batch_size would need it per device: {cells(shares)}"
        )


def _devices_of(group: ClaimGroup, like: AuditedClaim) -> list[str]:
    return [str(one.audit.devices) for one in group if one.audit.batch_size == like.audit.batch_size]


def _subtraction_called_measured(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A share a/b whose a and b are the subtraction and the epoch, divided by the steps."""

    def from_subtraction(one: AuditedClaim) -> bool:
        added_ms, step_ms, top, bottom = _share_parts(one)
        return abs(top / added_ms - 1) <= 0.02 and abs(bottom / step_ms - 1) <= 0.02

    for one in which(group, ("communication_share",), from_subtraction):
        added_ms, step_ms, top, bottom = _share_parts(one)
        yield ClaimCode.SUBTRACTION_CALLED_MEASURED.finding(
            f"{where}: the {top:g} ms of {bottom:g} ms at {at(one.audit.batch_size, one.audit.devices)} are the "
            f"subtraction itself, (T_N - T_1/N) / steps = {added_ms:.1f} ms of {step_ms:.1f} ms: "
            "agreeing with it confirms nothing"
        )


def _share_parts(one: AuditedClaim) -> tuple[float, float, float, float]:
    """Added and whole time of a step by subtraction, and the share's two numbers; milliseconds."""
    top, slash, bottom = one.audit.method.partition("/")
    if not slash or not top.isdecimal() or not bottom.isdecimal():
        raise NotComputable("the share is no quotient of two numbers")
    setting = one.setting
    added_s = setting.t_n - setting.t_1() / setting.devices
    return added_s / setting.steps * 1e3, setting.t_n / setting.steps * 1e3, float(top), float(bottom)


def _overhead_as_serial(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """Amdahl predictions from a communication share, against the speedups the same table shows."""
    found = [one for one in group if one.audit.quantity == "amdahl_speedup" and one.audit.sound_value is not None]
    parts = []
    for one in found:
        measured, claimed = one.audit.sound_value or 0.0, float(one.audit.printed_value)
        if abs(claimed / measured - 1) > _AMDAHL_OFF:
            fraction = karp_flatt(measured, one.setting.devices)
            parts.append(f"{claimed:g}x for {measured:.2f}x on {one.setting.devices} (Karp-Flatt {fraction:.3f})")
    if parts:
        yield ClaimCode.OVERHEAD_AS_SERIAL_FRACTION.finding(
            f"{where}: a communication share taken as Amdahl's serial fraction predicts {listed(parts)}: it is a cost "
            "added to each step on several devices, no work that one device must do alone"
        )


def _limit_compared(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A measured speedup over the limit for infinitely many devices."""
    limits = which(group, ("max_speedup",), lambda one: float(one.audit.printed_value) > 1)
    for one in which(group, ("fraction_of_max",), lambda one: bool(limits) and one.setting.printed("speedup") > 0):
        limit = limits[0]
        measured, devices = one.setting.printed("speedup"), one.setting.devices
        same_count = amdahl_speedup(1 / float(limit.audit.printed_value), devices)
        yield ClaimCode.LIMIT_COMPARED_WITH_MEASUREMENT.finding(
            f"{where}: {printed(one)} is the speedup on {devices} devices over the limit for "
            f"infinitely many ({limit.audit.printed_value}x); the same formula gives {same_count:.2f}x on "
            f"{devices}, and measured are {measured:.2f}x: a measurement stands beside a limit no run can reach"
        )


def _digits(where: str, group: ClaimGroup) -> Iterator[Finding]:
    for label, code, say in (
        ("differs", ClaimCode.CLAIM_NOT_REPRODUCED, "its named method does not give the printed digits"),
        ("truncated", ClaimCode.CLAIM_TRUNCATED, "printed digits are cut off, not rounded"),
    ):
        if found := [one for one in group if one.audit.agreement == label]:
            parts = [f"{printed(one)} for {one.audit.reproduced:.6g}" for one in found]
            yield code.finding(f"{where}: {say}: {listed(parts)}")
    if found := [one for one in group if one.audit.agreement == "unknown"]:
        parts = [f"{one.audit.quantity} {printed(one)} ({one.reproduction.reason})" for one in found]
        yield ClaimCode.CLAIM_NOT_COMPUTABLE.finding(f"{where}: cannot be computed from the tables: {listed(parts)}")


_CHECKS: tuple[Callable[[str, ClaimGroup], Iterator[Finding]], ...] = (
    _counted_twice,
    _negative,
    _unsound_subtraction,
    *VOLUME_CHECKS,
    _batch_contradicted,
    _subtraction_called_measured,
    _overhead_as_serial,
    _limit_compared,
    _digits,
)
