"""What claims about volumes and rates got wrong: each is judged by the volume that its numbers imply."""

from collections.abc import Callable, Iterator

from dpscope.analysis.epoch_times.estimates import BYTES_PER_PARAMETER
from dpscope.analysis.epoch_times.wording import at
from dpscope.profiling.records.finding import Finding
from examples.published.audit.claims import NotComputable, base_value, last_printed_digit
from examples.published.audit.codes import ClaimCode
from examples.published.audit.groups import ClaimGroup, cells, which
from examples.published.audit.verdicts import AuditedClaim, link_peak

_PEAK_TOO_HIGH = 1.5  # stated peak over the link's: above bus overheads and units of 1024


def _one_volume_per_epoch(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A rate whose volume, rate x communication time, is that of one all-reduce, and an epoch had many."""

    def one_volume(one: AuditedClaim) -> bool:
        return one.setting.steps > 1 and _volume_is(one, BYTES_PER_PARAMETER * one.setting.ring_elements)

    if found := which(group, ("effective_bandwidth",), one_volume):
        steps = [one.setting.steps for one in found]
        yield ClaimCode.ONE_VOLUME_PER_EPOCH.finding(
            f"{where}: the volume of one all-reduce over the communication time of an epoch, which has {min(steps)} to "
            f"{max(steps)} steps; the rates are too low by as much: {cells(found)}"
        )


def _elements_as_bytes(where: str, group: ClaimGroup) -> Iterator[Finding]:
    """A rate whose volume is the elements of an epoch, a quarter of its bytes."""

    def elements(one: AuditedClaim) -> bool:
        return _volume_is(one, one.setting.steps * one.setting.ring_elements)

    if found := which(group, ("effective_bandwidth",), elements):
        yield ClaimCode.ELEMENTS_AS_BYTES.finding(
            f"{where}: the volume behind the rates counts elements, not bytes, of which a 32-bit element has 4: "
            f"{cells(found)}",
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

    if found := which(group, ("utilisation",), impossible):
        hardware = found[0].setting.row.hardware
        peak = link_peak(hardware)
        rate = found[0].setting.sibling("effective_bandwidth")
        assert peak is not None
        assert rate is not None
        stated = rate.value / base_value(found[0].setting.claim)
        yield ClaimCode.IMPOSSIBLE_PEAK.finding(
            f"{where}: {len(found)} utilisations are of a peak of {stated:.0f} {rate.unit}, but {hardware} "
            f"have {peak.name} and no NVLink: {peak.gb_per_s:.1f} GB/s in one direction"
        )


def _ring_for_dp(where: str, group: ClaimGroup) -> Iterator[Finding]:
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

    if found := which(group, quantities, modelled):
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

    for one in which(group, ("bandwidth", "effective_bandwidth"), lambda one: not _near(stated(one), ring(one))):
        model_bytes = BYTES_PER_PARAMETER * one.setting.parameters
        source = "; it is twice the model, without the ring's (N-1)/N" if _near(stated(one), 2 * model_bytes) else ""
        yield ClaimCode.VOLUME_MISMATCH.finding(
            f"{where}: {stated(one) / 1e6:.0f} MB are stated at {at(one.audit.batch_size, one.audit.devices)}, the "
            f"ring all-reduce of this model moves {ring(one) / 1e6:.0f} MB{source}"
        )


VOLUME_CHECKS: tuple[Callable[[str, ClaimGroup], Iterator[Finding]], ...] = (
    _one_volume_per_epoch,
    _elements_as_bytes,
    _impossible_peak,
    _ring_for_dp,
    _volume_mismatch,
)
