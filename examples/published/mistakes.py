"""Errors in claims, found from their numbers: from what a value must have been computed, whatever
its label says.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from claims import (
    BYTES_PER_PARAMETER,
    AuditedClaim,
    NotComputable,
    agreement,
    amdahl_speedup,
    last_printed_digit,
    link_peak,
)

Claims = Sequence[AuditedClaim]

_AMDAHL_TOLERANCE = 0.05
_MAX_PEAK_RATIO = 1.5  # stated peak over the link's: above bus overheads and units of 1024


class Mistake(NamedTuple):
    """What is wrong with some claims of a study; NEXT_STEPS has what to do for each code."""

    code: str
    message: str


NEXT_STEPS = {
    "devices_counted_twice": "use T_1/T_N for epoch times; N t_1/t_N is for step times",
    "negative_claim": "the method measures something else: use same_local_batch",
    "unsound_subtraction": "subtract the time of one device at batch_size / devices",
    "batch_meaning_contradicted": "find out from the steps per epoch which one the runs used",
    "subtraction_called_measured": "measure communication in a trace, and compare the subtraction with that",
    "overhead_as_serial_fraction": "fit a scaling law to measured speedups, and predict at most twice the largest device count",
    "limit_compared_with_measurement": "compare a measurement with a prediction for the same number of devices",
    "claim_not_reproduced": "print one digit more than is to be used",
    "claim_truncated": "print one digit more than is to be used",
    "claim_not_computable": "add the rows it was derived from, or take it as stated",
    "one_volume_per_epoch": "multiply the volume of a step by the steps of an epoch",
    "elements_as_bytes": "multiply the volume by 4 bytes",
    "impossible_peak": "divide by the peak rate of the actual link, or better by a calibrated rate",
    "ring_for_dp": "use 2 S a step for DataParallel, or measure DistributedDataParallel",
    "volume_mismatch": "compute the volume from the size S of the parameters: 2(N-1)/N S",
}


def mistakes(claims: Claims) -> list[Mistake]:
    """What is wrong with audited claims; each kind once per study and run."""
    groups: dict[str, list[AuditedClaim]] = defaultdict(list)
    for one in claims:
        name = one.claim.study or "table"
        groups[f"{name} ({one.claim.run})" if one.claim.run else name].append(one)
    return [
        found
        for check in _CHECKS
        for where, group in groups.items()
        for found in check(where, group)
    ]


def karp_flatt(speedup: float, devices: int) -> float:
    """The experimentally determined serial fraction (Karp and Flatt, CACM 33(5), 1990)."""
    return (1 / speedup - 1 / devices) / (1 - 1 / devices)


def listed(parts: Sequence[str]) -> str:
    return ", ".join(parts)


def _counted_twice(where: str, group: Claims) -> Iterator[Mistake]:
    """A claimed speedup that is N T_1/T_N of epoch times instead of T_1/T_N."""
    agreeing = _matching(group, ("speedup",), lambda one: _agrees(one.devices * one.ratio, one))
    if found := [one for one in agreeing if not _agrees(one.ratio, one)]:
        parts = [f"{_printed(one)}x is {one.ratio:.2f}x {_at(one)}" for one in found]
        yield Mistake(
            "devices_counted_twice",
            f"{where}: N T_1/T_N on epoch times counts the devices twice, as an epoch on N devices has 1/N of the "
            f"steps: {listed(parts)}",
        )


def _negative(where: str, group: Claims) -> Iterator[Mistake]:
    for quantity in ("communication_seconds", "effective_bandwidth", "utilisation"):
        if found := [
            one for one in group if one.claim.quantity == quantity and one.claim.value < 0
        ]:
            yield Mistake(
                "negative_claim", f"{where}: {quantity} is claimed negative: {_cells(found)}"
            )


def _unsound_subtraction(where: str, group: Claims) -> Iterator[Mistake]:
    """Claimed communication that is a subtraction at a fixed global batch."""
    of_global = _matching(
        group, ("communication_seconds",), lambda one: one.row.batch_size_is == "global"
    )
    if found := [one for one in of_global if one.reproduced is not None]:
        sound = ["unknown" if one.sound is None else f"{one.sound:.4g} s" for one in found]
        parts = [
            f"{_printed(one)} {_at(one)}, sound: {value}"
            for one, value in zip(found, sound, strict=True)
        ]
        methods = ", ".join(dict.fromkeys(one.claim.method for one in found))
        yield Mistake(
            "unsound_subtraction",
            f"{where}: {methods} at a fixed global batch compares different batches per device: {listed(parts)}",
        )


def _one_volume_per_epoch(where: str, group: Claims) -> Iterator[Mistake]:
    """A rate whose volume, rate x communication time, is that of one all-reduce, while an epoch has
    many.
    """
    rates = ("effective_bandwidth",)
    if found := _matching(
        group, rates, lambda one: one.steps > 1 and _volume_is(one, one.ring_bytes)
    ):
        steps = [one.steps for one in found]
        yield Mistake(
            "one_volume_per_epoch",
            f"{where}: the volume of one all-reduce over the communication time of an epoch, which has {min(steps)} to "
            f"{max(steps)} steps; the rates are too low by this factor: {_cells(found)}",
        )


def _elements_as_bytes(where: str, group: Claims) -> Iterator[Mistake]:
    """A rate whose volume is the number of elements of an epoch, a quarter of its bytes."""
    rates = ("effective_bandwidth",)
    if found := _matching(group, rates, lambda one: _volume_is(one, one.steps * one.ring_elements)):
        yield Mistake(
            "elements_as_bytes",
            f"{where}: the volume behind the rates counts elements, not bytes; a 32-bit element has 4 bytes: {_cells(found)}",
        )


def _impossible_peak(where: str, group: Claims) -> Iterator[Mistake]:
    """The peak behind a utilisation, claimed rate / claimed utilisation, versus the GPU's link."""

    def impossible(one: AuditedClaim) -> bool:
        stated_gb_per_s = one.printed("effective_bandwidth") / one.claim.base_value / 1e9
        return stated_gb_per_s > _MAX_PEAK_RATIO * link_peak(one.row.hardware)[1]

    if found := _matching(group, ("utilisation",), impossible):
        first, rate = found[0], found[0].sibling("effective_bandwidth")
        assert rate is not None
        (link, peak), stated = link_peak(first.row.hardware), rate.value / first.claim.base_value
        yield Mistake(
            "impossible_peak",
            f"{where}: {len(found)} utilisations of a peak of {stated:.0f} {rate.unit}, but {first.row.hardware} "
            f"have {link} and no NVLink: {peak:.1f} GB/s in one direction",
        )


def _ring_for_dp(where: str, group: Claims) -> Iterator[Mistake]:
    """Volumes and times of a ring all-reduce claimed for DataParallel, which runs none."""
    quantities = (
        "allreduce_volume",
        "elements_per_epoch",
        "theoretical_allreduce_seconds",
        "effective_bandwidth",
    )

    def from_ring(one: AuditedClaim) -> bool:
        if one.reproduced is None or one.any_row.strategy != "dp":
            return False
        ring = one.ring_bytes
        if one.claim.quantity == "effective_bandwidth":
            volumes = (ring, one.steps * ring, one.steps * ring / BYTES_PER_PARAMETER)
            return any(_volume_is(one, volume) for volume in volumes)
        return one.claim.quantity != "allreduce_volume" or _near(one.claim.base_value, ring)

    if found := _matching(group, quantities, from_ring):
        names = ", ".join(dict.fromkeys(one.claim.quantity for one in found))
        yield Mistake(
            "ring_for_dp",
            f"{where}: {len(found)} claims ({names}) use the ring volume 2(N-1)/N S for DataParallel, which runs no "
            "all-reduce: it broadcasts S and reduces S in each step",
        )


def _volume_mismatch(where: str, group: Claims) -> Iterator[Mistake]:
    """A rate's stated volume, from its formula `x MB/y ms`, versus what a step moves."""

    def stated(one: AuditedClaim) -> float:
        amount, _, unit = one.claim.method.partition("/")[0].partition(" ")
        if unit not in ("MB", "GB"):
            raise NotComputable("the method states no volume")
        return float(amount) * {"MB": 1e6, "GB": 1e9}[unit]

    for one in _matching(
        group,
        ("bandwidth", "effective_bandwidth"),
        lambda one: not _near(stated(one), one.ring_bytes),
    ):
        model_bytes = BYTES_PER_PARAMETER * one.parameters
        source = (
            "; it is twice the model, without the ring's (N-1)/N"
            if _near(stated(one), 2 * model_bytes)
            else ""
        )
        yield Mistake(
            "volume_mismatch",
            f"{where}: {stated(one) / 1e6:.0f} MB are stated {_at(one)}, the ring all-reduce of this model moves "
            f"{one.ring_bytes / 1e6:.0f} MB{source}",
        )


def _batch_contradicted(where: str, group: Claims) -> Iterator[Mistake]:
    """Claims that treat one batch as global in one place and as per device in another."""

    def counts_global_steps(one: AuditedClaim) -> bool:
        row, steps = one.row, one.claim.base_value / one.ring_elements
        if row.samples_per_epoch is None or row.global_batch != row.batch_size:
            return False
        return abs(steps - -(-row.samples_per_epoch // row.batch_size)) < 0.5

    volumes = _matching(group, ("elements_per_epoch",), counts_global_steps)
    shares = _matching(
        group, ("compute_seconds",), lambda one: _agrees(one.t_1() / one.devices, one)
    )
    shares = [one for one in shares if one.row.batch_size_is == "global"]
    if volumes and shares:
        first = volumes[0]
        devices = [
            str(one.devices) for one in volumes if one.claim.batch_size == first.claim.batch_size
        ]
        yield Mistake(
            "batch_meaning_contradicted",
            f"{where}: its volumes count {first.steps} steps an epoch at batch {first.claim.batch_size} on "
            f"{' and on '.join(devices)} devices, so the batch is global; its compute T_1/N at the same batch_size would "
            f"need it per device: {_cells(shares)}",
        )


def _subtraction_called_measured(where: str, group: Claims) -> Iterator[Mistake]:
    """A share a/b whose a and b are the subtraction and the epoch, divided by the steps."""

    def parts(one: AuditedClaim) -> tuple[float, float, float, float]:
        """Added and total time of a step by subtraction, and the share's two numbers;
        milliseconds.
        """
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
        yield Mistake(
            "subtraction_called_measured",
            f"{where}: the {top:g} ms of {bottom:g} ms {_at(one)} are the subtraction itself, "
            f"(T_N - T_1/N) / steps = {added_ms:.1f} ms of {step_ms:.1f} ms, so their agreement confirms nothing",
        )


def _overhead_as_serial(where: str, group: Claims) -> Iterator[Mistake]:
    """Amdahl predictions from a communication share, versus the speedups of the same table."""
    predictions = [
        (one, one.claim.value, one.sound) for one in group if one.claim.quantity == "amdahl_speedup"
    ]
    if parts := [
        f"{claimed:g}x for {measured:.2f}x on {one.devices} (Karp-Flatt {karp_flatt(measured, one.devices):.3f})"
        for one, claimed, measured in predictions
        if measured is not None and abs(claimed / measured - 1) > _AMDAHL_TOLERANCE
    ]:
        yield Mistake(
            "overhead_as_serial_fraction",
            f"{where}: a communication share used as Amdahl's serial fraction predicts {listed(parts)}: it is a cost "
            "added to each step on several devices, not work that one device must do alone",
        )


def _limit_compared(where: str, group: Claims) -> Iterator[Mistake]:
    """A measured speedup over the limit for infinitely many devices."""
    limits = [
        one.claim for one in group if one.claim.quantity == "max_speedup" and one.claim.value > 1
    ]
    for one in _matching(
        group, ("fraction_of_max",), lambda one: bool(limits) and one.printed("speedup") > 0
    ):
        limit, measured, devices = limits[0], one.printed("speedup"), one.devices
        yield Mistake(
            "limit_compared_with_measurement",
            f"{where}: {_printed(one)} is the speedup on {devices} devices over the limit for infinitely many "
            f"({limit.printed_value}x), which no run can reach; the same formula gives "
            f"{amdahl_speedup(1 / limit.value, devices):.2f}x on {devices}, the measured speedup is {measured:.2f}x",
        )


def _digits(where: str, group: Claims) -> Iterator[Mistake]:
    for label, code, problem in (
        ("differs", "claim_not_reproduced", "its stated method does not give the printed digits"),
        ("truncated", "claim_truncated", "printed digits are truncated, not rounded"),
    ):
        if found := [one for one in group if one.agreement == label]:
            parts = [f"{_printed(one)} for {one.reproduced:.6g}" for one in found]
            yield Mistake(code, f"{where}: {problem}: {listed(parts)}")
    if found := [one for one in group if one.agreement == "unknown"]:
        parts = [f"{one.claim.quantity} {_printed(one)} ({one.not_reproduced})" for one in found]
        yield Mistake(
            "claim_not_computable", f"{where}: cannot be computed from the tables: {listed(parts)}"
        )


_CHECKS: tuple[Callable[[str, Claims], Iterator[Mistake]], ...] = (
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
    """Whether a claimed rate times its communication time is `volume`, within the printed
    digits.
    """
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
    return f"at ({one.claim.batch_size or 'any'}, {one.claim.devices or 'any'})"


def _printed(one: AuditedClaim) -> str:
    return shortened(one.claim.printed_value) + (
        "" if one.claim.unit == "1" else f" {one.claim.unit}"
    )


def shortened(printed_value: str) -> str:
    """A printed value, with six digits if all digits of a float were printed."""
    return printed_value if len(printed_value) <= 12 else f"{float(printed_value):.6g}..."
