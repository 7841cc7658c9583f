"""What claims got wrong, found from their numbers: by what a value must have been made of, not by its label."""

from collections.abc import Callable, Iterator, Sequence

from dpscope.analysis.epoch_times.baselines import global_batch
from dpscope.analysis.epoch_times.claim_verdicts import AuditedClaim, link_peak
from dpscope.analysis.epoch_times.claims import NotComputable, agreement, base_value, last_printed_digit
from dpscope.analysis.epoch_times.estimates import BYTES_PER_PARAMETER
from dpscope.analysis.epoch_times.table import at, listed, place
from dpscope.analysis.stats.scaling_laws import amdahl_speedup, karp_flatt
from dpscope.profiling.records.estimate_codes import ClaimCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.strategies import traits_of

ClaimGroup = Sequence[AuditedClaim]

_AMDAHL_OFF = 0.05
_PEAK_TOO_HIGH = 1.5  # stated peak over the link's: above bus overheads and units of 1024


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
        return _agrees(setting.devices * ratio, digits) and not _agrees(ratio, digits)

    if found := _which(group, ("speedup",), twice):
        parts = [f"{_printed(one)}x is {one.setting.t_1() / one.setting.t_n:.2f}x" for one in found]
        parts = [
            f"{part} at {at(one.audit.batch_size, one.audit.devices)}" for part, one in zip(parts, found, strict=True)
        ]
        yield ClaimCode.DEVICES_COUNTED_TWICE.finding(
            f"{where}: N T_1/T_N on epoch times counts the devices twice, as an epoch on N devices has 1/N of the "
            f"steps: {listed(parts)}"
        )


def _negative(where: str, group: ClaimGroup) -> Iterator[Finding]:
    for quantity in ("communication_seconds", "effective_bandwidth", "utilisation"):
        if found := _which(group, (quantity,), lambda one: float(one.audit.printed_value) < 0):
            yield ClaimCode.NEGATIVE_CLAIM.finding(f"{where}: {quantity} is claimed negative: {_cells(found)}")


def _unsound_subtraction(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """Claimed communication that is a subtraction at a fixed global batch."""

    def fixed_global(one: AuditedClaim) -> bool:
        return one.setting.row.batch_size_is == "global" and one.reproduction.value is not None

    if found := _which(group, ("communication_seconds",), fixed_global):
        parts = [
            f"{_printed(one)} at {at(one.audit.batch_size, one.audit.devices)}, sound: "
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
        return one.setting.row.batch_size_is == "global" and _agrees(share, one.audit.printed_value)

    volumes = _which(group, ("elements_per_epoch",), counts_global_steps)
    shares = _which(group, ("compute_seconds",), takes_per_device)
    if volumes and shares:
        first = volumes[0]
        yield ClaimCode.BATCH_MEANING_CONTRADICTED.finding(
            f"{where}: its volumes count {counted(first.setting.steps, 'step')} an epoch at batch {first.audit.batch_size} on "
            f"{' and on '.join(_devices_of(volumes, first))} devices, so the batch is global; its compute T_1/N at the "
            f"same batch_size would need it per device: {_cells(shares)}"
        )


def _devices_of(group: ClaimGroup, like: AuditedClaim) -> list[str]:
    return [str(one.audit.devices) for one in group if one.audit.batch_size == like.audit.batch_size]


def _subtraction_called_measured(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A share a/b whose a and b are the subtraction and the epoch, divided by the steps."""

    def from_subtraction(one: AuditedClaim) -> bool:
        added_ms, step_ms, top, bottom = _share_parts(one)
        return abs(top / added_ms - 1) <= 0.02 and abs(bottom / step_ms - 1) <= 0.02

    for one in _which(group, ("communication_share",), from_subtraction):
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
    limits = _which(group, ("max_speedup",), lambda one: float(one.audit.printed_value) > 1)
    for one in _which(group, ("fraction_of_max",), lambda one: bool(limits) and one.setting.printed("speedup") > 0):
        limit = limits[0]
        measured, devices = one.setting.printed("speedup"), one.setting.devices
        same_count = amdahl_speedup(1 / float(limit.audit.printed_value), devices)
        yield ClaimCode.LIMIT_COMPARED_WITH_MEASUREMENT.finding(
            f"{where}: {_printed(one)} is the speedup on {counted(devices, 'device')} over the limit for "
            f"infinitely many ({limit.audit.printed_value}x); the same formula gives {same_count:.2f}x on "
            f"{devices}, and measured are {measured:.2f}x: a measurement stands beside a limit no run can reach"
        )


def _digits(where: str, group: ClaimGroup) -> Iterator[Finding]:
    for label, code, say in (
        ("differs", ClaimCode.CLAIM_NOT_REPRODUCED, "its named method does not give the printed digits"),
        ("truncated", ClaimCode.CLAIM_TRUNCATED, "printed digits are cut off, not rounded"),
    ):
        if found := [one for one in group if one.audit.agreement == label]:
            parts = [f"{_printed(one)} for {one.audit.reproduced:.6g}" for one in found]
            yield code.finding(f"{where}: {say}: {listed(parts)}")
    if found := [one for one in group if one.audit.agreement == "unknown"]:
        parts = [f"{one.audit.quantity} {_printed(one)} ({one.reproduction.reason})" for one in found]
        yield ClaimCode.CLAIM_NOT_COMPUTABLE.finding(f"{where}: cannot be computed from the tables: {listed(parts)}")


def _known(condition: Callable[[AuditedClaim], bool], audited: AuditedClaim) -> bool:
    """A condition, False where the tables do not hold what it asks for."""
    try:
        return condition(audited)
    except (NotComputable, ZeroDivisionError):
        return False


def _which(
    group: ClaimGroup, quantities: tuple[str, ...], condition: Callable[[AuditedClaim], bool]
) -> list[AuditedClaim]:
    """The claims of these quantities for which a condition holds, and can be checked."""
    return [one for one in group if one.audit.quantity in quantities and _known(condition, one)]


def _cells(group: ClaimGroup) -> str:
    """Printed values with their settings."""
    return listed([f"{_printed(one)} at {at(one.audit.batch_size, one.audit.devices)}" for one in group])


def _printed(one: AuditedClaim) -> str:
    """A claim's value with its unit, as printed."""
    return shortened(one.audit.printed_value) + ("" if one.audit.unit == "1" else f" {one.audit.unit}")


def _agrees(value: float, printed_value: str) -> bool:
    """Whether a value has these digits, rounded or cut off."""
    return agreement(value, printed_value) != "differs"


def shortened(printed_value: str) -> str:
    """A printed value, to six digits where a whole float was printed."""
    return printed_value if len(printed_value) <= 12 else f"{float(printed_value):.6g}..."


def _one_volume_per_epoch(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A rate whose volume, rate x communication time, is that of one all-reduce, and an epoch had many."""

    def one_volume(one: AuditedClaim) -> bool:
        return one.setting.steps > 1 and _volume_is(one, BYTES_PER_PARAMETER * one.setting.ring_elements)

    if found := _which(group, ("effective_bandwidth",), one_volume):
        steps = [one.setting.steps for one in found]
        yield ClaimCode.ONE_VOLUME_PER_EPOCH.finding(
            f"{where}: the volume of one all-reduce over the communication time of an epoch, which has {min(steps)} to "
            f"{max(steps)} steps; the rates are too low by as much: {_cells(found)}"
        )


def _elements_as_bytes(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A rate whose volume is the elements of an epoch, a quarter of its bytes."""

    def elements(one: AuditedClaim) -> bool:
        return _volume_is(one, one.setting.steps * one.setting.ring_elements)

    if found := _which(group, ("effective_bandwidth",), elements):
        yield ClaimCode.ELEMENTS_AS_BYTES.finding(
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


def _impossible_peak(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """The peak behind a utilisation, claimed rate / claimed utilisation, against the card's link."""

    def stated_gb_per_s(one: AuditedClaim) -> float:
        return one.setting.printed("effective_bandwidth") / base_value(one.setting.claim) / 1e9

    def impossible(one: AuditedClaim) -> bool:
        peak = link_peak(one.setting.row.hardware)
        return peak is not None and stated_gb_per_s(one) > _PEAK_TOO_HIGH * peak.gb_per_s

    if found := _which(group, ("utilisation",), impossible):
        hardware = found[0].setting.row.hardware
        peak = link_peak(hardware)
        rate = found[0].setting.sibling("effective_bandwidth")
        assert peak is not None
        assert rate is not None
        stated = rate.value / base_value(found[0].setting.claim)
        yield ClaimCode.IMPOSSIBLE_PEAK.finding(
            f"{where}: {counted(len(found), 'utilisation')} of a peak of {stated:.0f} {rate.unit}, but {hardware} "
            f"have {peak.name} and no NVLink: {peak.gb_per_s:.1f} GB/s in one direction"
        )


def _ring_for_dp(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """Volumes and times of a ring all-reduce claimed for DataParallel, which runs none."""
    quantities = ("allreduce_volume", "elements_per_epoch", "theoretical_allreduce_seconds", "effective_bandwidth")

    def modelled(one: AuditedClaim) -> bool:
        if one.reproduction.value is None or not traits_of(one.setting.any_row.strategy).peer_copies:
            return False
        ring = BYTES_PER_PARAMETER * one.setting.ring_elements
        if one.audit.quantity == "effective_bandwidth":
            steps = one.setting.steps
            return any(_volume_is(one, volume) for volume in (ring, steps * ring, steps * ring / BYTES_PER_PARAMETER))
        return one.audit.quantity != "allreduce_volume" or _near(base_value(one.setting.claim), ring)

    if found := _which(group, quantities, modelled):
        names = ", ".join(dict.fromkeys(one.audit.quantity for one in found))
        yield ClaimCode.RING_FOR_DP.finding(
            f"{where}: {len(found)} claims ({names}) take the ring volume 2(N-1)/N S for DataParallel, which runs no "
            "all-reduce: it broadcasts S and reduces S in each step"
        )


def _near(value: float, other: float) -> bool:
    return abs(value / other - 1) <= 0.02


def _volume_mismatch(where: str, group: ClaimGroup) -> Iterator[Finding]:
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
        yield ClaimCode.VOLUME_MISMATCH.finding(
            f"{where}: {stated(one) / 1e6:.0f} MB are stated at {at(one.audit.batch_size, one.audit.devices)}, the "
            f"ring all-reduce of this model moves {ring(one) / 1e6:.0f} MB{source}"
        )


_CHECKS: tuple[Callable[[str, ClaimGroup], Iterator[Finding]], ...] = (
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
