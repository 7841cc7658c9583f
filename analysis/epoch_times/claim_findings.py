"""Errors in claims, found from their numbers: from what a value must have been computed, whatever its label says."""

from collections.abc import Callable, Iterator, Sequence

from dpscope.analysis.epoch_times.claims import AuditedClaim, NotComputable, agreement, last_printed_digit, link_peak
from dpscope.analysis.epoch_times.epoch_time import at, place
from dpscope.analysis.epoch_times.estimates import BYTES_PER_PARAMETER
from dpscope.analysis.stats.scaling_laws import amdahl_speedup, karp_flatt
from dpscope.profiling.records.estimate_codes import ClaimCode
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.strategies import traits_of

Claims = Sequence[AuditedClaim]

_AMDAHL_TOLERANCE = 0.05
_MAX_PEAK_RATIO = 1.5  # stated peak over the link's: above bus overheads and units of 1024


def claim_findings(claims: Claims) -> list[Finding]:
    """Findings about audited claims; each kind once per study and run."""
    groups = grouped((place(one.claim.study, one.claim.run), one) for one in claims)
    return [finding for check in _CHECKS for where, group in groups.items() for finding in check(where, group)]


def _counted_twice(where: str, group: Claims) -> Iterator[Finding]:
    """A claimed speedup that is N T_1/T_N of epoch times instead of T_1/T_N."""
    agreeing = _matching(group, ("speedup",), lambda one: _agrees(one.devices * one.ratio, one))
    if found := [one for one in agreeing if not _agrees(one.ratio, one)]:
        parts = [f"{_printed(one)}x is {one.ratio:.2f}x {_at(one)}" for one in found]
        yield ClaimCode.DEVICES_COUNTED_TWICE.finding(
            f"{where}: N T_1/T_N on epoch times counts the devices twice, as an epoch on N devices has 1/N of the "
            f"steps: {listed(parts)}"
        )


def _negative(where: str, group: Claims) -> Iterator[Finding]:
    for quantity in ("communication_seconds", "effective_bandwidth", "utilisation"):
        if found := [one for one in group if one.claim.quantity == quantity and one.claim.value < 0]:
            yield ClaimCode.NEGATIVE_CLAIM.finding(f"{where}: {quantity} is claimed negative: {_cells(found)}")


def _unsound_subtraction(where: str, group: Claims) -> Iterator[Finding]:
    """Claimed communication that is a subtraction at a fixed global batch."""
    of_global = _matching(group, ("communication_seconds",), lambda one: one.row.batch_size_is == "global")
    if found := [one for one in of_global if one.reproduced is not None]:
        sound = ["unknown" if one.sound is None else f"{one.sound:.4g} s" for one in found]
        parts = [f"{_printed(one)} {_at(one)}, sound: {value}" for one, value in zip(found, sound, strict=True)]
        methods = ", ".join(dict.fromkeys(one.claim.method for one in found))
        yield ClaimCode.UNSOUND_SUBTRACTION.finding(
            f"{where}: {methods} at a fixed global batch compares different batches per device: {listed(parts)}"
        )


def _one_volume_per_epoch(where: str, group: Claims) -> Iterator[Finding]:
    """A rate whose volume, rate x communication time, is that of one all-reduce, while an epoch has many."""
    rates = ("effective_bandwidth",)
    if found := _matching(group, rates, lambda one: one.steps > 1 and _volume_is(one, one.ring_bytes)):
        steps = [one.steps for one in found]
        yield ClaimCode.ONE_VOLUME_PER_EPOCH.finding(
            f"{where}: the volume of one all-reduce over the communication time of an epoch, which has {min(steps)} to "
            f"{max(steps)} steps; the rates are too low by this factor: {_cells(found)}"
        )


def _elements_as_bytes(where: str, group: Claims) -> Iterator[Finding]:
    """A rate whose volume is the number of elements of an epoch, a quarter of its bytes."""
    rates = ("effective_bandwidth",)
    if found := _matching(group, rates, lambda one: _volume_is(one, one.steps * one.ring_elements)):
        yield ClaimCode.ELEMENTS_AS_BYTES.finding(
            f"{where}: the volume behind the rates counts elements, not bytes; a 32-bit element has 4 bytes: {_cells(found)}"
        )


def _impossible_peak(where: str, group: Claims) -> Iterator[Finding]:
    """The peak behind a utilisation, claimed rate / claimed utilisation, versus the GPU's link."""

    def impossible(one: AuditedClaim) -> bool:
        stated_gb_per_s = one.printed("effective_bandwidth") / one.claim.base_value / 1e9
        return stated_gb_per_s > _MAX_PEAK_RATIO * link_peak(one.row.hardware).gb_per_s

    if found := _matching(group, ("utilisation",), impossible):
        first, rate = found[0], found[0].sibling("effective_bandwidth")
        assert rate is not None
        peak, stated = link_peak(first.row.hardware), rate.value / first.claim.base_value
        yield ClaimCode.IMPOSSIBLE_PEAK.finding(
            f"{where}: {counted(len(found), 'utilisation')} of a peak of {stated:.0f} {rate.unit}, but {first.row.hardware} "
            f"have {peak.name} and no NVLink: {peak.gb_per_s:.1f} GB/s in one direction"
        )


def _ring_for_dp(where: str, group: Claims) -> Iterator[Finding]:
    """Volumes and times of a ring all-reduce claimed for DataParallel, which runs none."""
    quantities = ("allreduce_volume", "elements_per_epoch", "theoretical_allreduce_seconds", "effective_bandwidth")

    def from_ring(one: AuditedClaim) -> bool:
        if one.reproduced is None or not traits_of(one.any_row.strategy).peer_copies:
            return False
        ring = one.ring_bytes
        if one.claim.quantity == "effective_bandwidth":
            volumes = (ring, one.steps * ring, one.steps * ring / BYTES_PER_PARAMETER)
            return any(_volume_is(one, volume) for volume in volumes)
        return one.claim.quantity != "allreduce_volume" or _near(one.claim.base_value, ring)

    if found := _matching(group, quantities, from_ring):
        names = ", ".join(dict.fromkeys(one.claim.quantity for one in found))
        yield ClaimCode.RING_FOR_DP.finding(
            f"{where}: {len(found)} claims ({names}) use the ring volume 2(N-1)/N S for DataParallel, which runs no "
            "all-reduce: it broadcasts S and reduces S in each step"
        )


def _volume_mismatch(where: str, group: Claims) -> Iterator[Finding]:
    """A rate's stated volume, from its formula `x MB/y ms`, versus what a step moves."""

    def stated(one: AuditedClaim) -> float:
        amount, _, unit = one.claim.method.partition("/")[0].partition(" ")
        if unit not in ("MB", "GB"):
            raise NotComputable("the method states no volume")
        return float(amount) * {"MB": 1e6, "GB": 1e9}[unit]

    for one in _matching(
        group, ("bandwidth", "effective_bandwidth"), lambda one: not _near(stated(one), one.ring_bytes)
    ):
        model_bytes = BYTES_PER_PARAMETER * one.parameters
        source = "; it is twice the model, without the ring's (N-1)/N" if _near(stated(one), 2 * model_bytes) else ""
        yield ClaimCode.VOLUME_MISMATCH.finding(
            f"{where}: {stated(one) / 1e6:.0f} MB are stated {_at(one)}, the ring all-reduce of this model moves "
            f"{one.ring_bytes / 1e6:.0f} MB{source}"
        )


def _batch_contradicted(where: str, group: Claims) -> Iterator[Finding]:
    """Claims that treat one batch as global in one place and as per device in another."""

    def counts_global_steps(one: AuditedClaim) -> bool:
        row, steps = one.row, one.claim.base_value / one.ring_elements
        if row.samples_per_epoch is None or row.global_batch != row.batch_size:
            return False
        return abs(steps - -(-row.samples_per_epoch // row.batch_size)) < 0.5

    volumes = _matching(group, ("elements_per_epoch",), counts_global_steps)
    shares = _matching(group, ("compute_seconds",), lambda one: _agrees(one.t_1() / one.devices, one))
    shares = [one for one in shares if one.row.batch_size_is == "global"]
    if volumes and shares:
        first = volumes[0]
        devices = [str(one.devices) for one in volumes if one.claim.batch_size == first.claim.batch_size]
        yield ClaimCode.BATCH_MEANING_CONTRADICTED.finding(
            f"{where}: its volumes count {counted(first.steps, 'step')} an epoch at batch {first.claim.batch_size} on "
            f"{' and on '.join(devices)} devices, so the batch is global; its compute T_1/N at the same batch_size would "
            f"need it per device: {_cells(shares)}"
        )


def _subtraction_called_measured(where: str, group: Claims) -> Iterator[Finding]:
    """A share a/b whose a and b are the subtraction and the epoch, divided by the steps."""

    def parts(one: AuditedClaim) -> tuple[float, float, float, float]:
        """Added and total time of a step by subtraction, and the share's two numbers; milliseconds."""
        top, slash, bottom = one.claim.method.partition("/")
        if not slash or not top.isdecimal() or not bottom.isdecimal():
            raise NotComputable("the share is not a quotient of two numbers")
        added_s = one.t_n - one.t_1() / one.devices
        return added_s / one.steps * 1e3, one.t_n / one.steps * 1e3, float(top), float(bottom)

    def from_subtraction(one: AuditedClaim) -> bool:
        added_ms, step_ms, top, bottom = parts(one)
        return _near(top, added_ms) and _near(bottom, step_ms)

    for one in _matching(group, ("communication_share",), from_subtraction):
        added_ms, step_ms, top, bottom = parts(one)
        yield ClaimCode.SUBTRACTION_CALLED_MEASURED.finding(
            f"{where}: the {top:g} ms of {bottom:g} ms {_at(one)} are the subtraction itself, "
            f"(T_N - T_1/N) / steps = {added_ms:.1f} ms of {step_ms:.1f} ms, so their agreement confirms nothing"
        )


def _overhead_as_serial(where: str, group: Claims) -> Iterator[Finding]:
    """Amdahl predictions from a communication share, versus the speedups of the same table."""
    predictions = [(one, one.claim.value, one.sound) for one in group if one.claim.quantity == "amdahl_speedup"]
    if parts := [
        f"{claimed:g}x for {measured:.2f}x on {one.devices} (Karp-Flatt {karp_flatt(measured, one.devices):.3f})"
        for one, claimed, measured in predictions
        if measured is not None and abs(claimed / measured - 1) > _AMDAHL_TOLERANCE
    ]:
        yield ClaimCode.OVERHEAD_AS_SERIAL_FRACTION.finding(
            f"{where}: a communication share used as Amdahl's serial fraction predicts {listed(parts)}: it is a cost "
            "added to each step on several devices, not work that one device must do alone"
        )


def _limit_compared(where: str, group: Claims) -> Iterator[Finding]:
    """A measured speedup over the limit for infinitely many devices."""
    limits = [one.claim for one in group if one.claim.quantity == "max_speedup" and one.claim.value > 1]
    for one in _matching(group, ("fraction_of_max",), lambda one: bool(limits) and one.printed("speedup") > 0):
        limit, measured, devices = limits[0], one.printed("speedup"), one.devices
        yield ClaimCode.LIMIT_COMPARED_WITH_MEASUREMENT.finding(
            f"{where}: {_printed(one)} is the speedup on {counted(devices, 'device')} over the limit for infinitely many "
            f"({limit.printed_value}x), which no run can reach; the same formula gives "
            f"{amdahl_speedup(1 / limit.value, devices):.2f}x on {devices}, the measured speedup is {measured:.2f}x"
        )


def _digits(where: str, group: Claims) -> Iterator[Finding]:
    for label, code, problem in (
        ("differs", ClaimCode.CLAIM_NOT_REPRODUCED, "its stated method does not give the printed digits"),
        ("truncated", ClaimCode.CLAIM_TRUNCATED, "printed digits are truncated, not rounded"),
    ):
        if found := [one for one in group if one.agreement == label]:
            parts = [f"{_printed(one)} for {one.reproduced:.6g}" for one in found]
            yield code.finding(f"{where}: {problem}: {listed(parts)}")
    if found := [one for one in group if one.agreement == "unknown"]:
        parts = [f"{one.claim.quantity} {_printed(one)} ({one.not_reproduced})" for one in found]
        yield ClaimCode.CLAIM_NOT_COMPUTABLE.finding(f"{where}: cannot be computed from the tables: {listed(parts)}")


_CHECKS: tuple[Callable[[str, Claims], Iterator[Finding]], ...] = (
    _counted_twice, _negative, _unsound_subtraction, _one_volume_per_epoch, _elements_as_bytes, _impossible_peak,
    _ring_for_dp, _volume_mismatch, _batch_contradicted, _subtraction_called_measured, _overhead_as_serial,
    _limit_compared, _digits,
)  # fmt: skip


def _matching(
    group: Claims, quantities: tuple[str, ...], condition: Callable[[AuditedClaim], bool]
) -> list[AuditedClaim]:
    """The claims of these quantities for which the condition is known to hold."""

    def holds(one: AuditedClaim) -> bool:
        try:
            return condition(one)
        except (NotComputable, ZeroDivisionError):
            return False

    return [one for one in group if one.claim.quantity in quantities and holds(one)]


def _volume_is(one: AuditedClaim, volume: float) -> bool:
    """Whether a claimed rate times its communication time is `volume`, within the printed digits."""
    slack = 0.02 + last_printed_digit(one.claim.printed_value) / abs(one.claim.value)
    return abs(one.claim.base_value * one.communication_seconds() / volume - 1) <= slack


def _near(value: float, other: float) -> bool:
    return abs(value / other - 1) <= 0.02


def _agrees(value: float, one: AuditedClaim) -> bool:
    """Whether a value has the printed digits, rounded or truncated."""
    return agreement(value, one.claim.printed_value) != "differs"


def _cells(group: Claims) -> str:
    return listed([f"{_printed(one)} {_at(one)}" for one in group])


def _at(one: AuditedClaim) -> str:
    return f"at {at(one.claim.batch_size, one.claim.devices)}"


def _printed(one: AuditedClaim) -> str:
    return shortened(one.claim.printed_value) + ("" if one.claim.unit == "1" else f" {one.claim.unit}")


def shortened(printed_value: str) -> str:
    """A printed value, with six digits if all digits of a float were printed."""
    return printed_value if len(printed_value) <= 12 else f"{float(printed_value):.6g}..."
