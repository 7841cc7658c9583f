"""Values that people derived from epoch times: read, and computed again by the method that they name.

A claim names its method as a short formula, such as `TN-T1/N` or `printed speedup/N`; METHODS holds the known ones, mistakes
included. K is the number of parameters, N the devices, T an epoch time, and `printed x` another claim of the same setting.
"""

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.epoch_times.baselines import Baselines, steps_in_epoch
from dpscope.analysis.epoch_times.estimates import BYTES_PER_PARAMETER
from dpscope.analysis.epoch_times.table import EpochTime
from dpscope.analysis.text.csv_rows import CsvRow, read_rows
from dpscope.profiling.records.finding import counted

CLAIM_COLUMNS = ("quantity", "method", "printed_value", "unit")
"""Needed; study, run, strategy, batch_size and devices may be absent."""


class Claim(NamedTuple):
    """One value somebody derived, as printed, and the method that gives its digits; None is unknown."""

    study: str | None
    run: str | None
    strategy: str | None
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


def read_claims(path: Path) -> list[Claim]:
    """Read and check a table of derived values; raises DpscopeError for anything that cannot be read as one."""
    return [_claim(row) for row in read_rows(path, CLAIM_COLUMNS)[1]]


def _claim(row: CsvRow) -> Claim:
    printed = row.required_text("printed_value")
    row.decimal("printed_value", lambda value: True, "the number as it was printed")
    strategy = row.text("strategy")
    return Claim(
        study=row.text("study"),
        run=row.text("run"),
        strategy=strategy.lower() if strategy else None,
        quantity=row.required_text("quantity"),
        method=row.required_text("method"),
        batch_size=row.whole("batch_size"),
        devices=row.whole("devices"),
        printed_value=printed,
        unit=row.required_text("unit"),
    )


UNIT_SIZES = {
    "1": 1.0,
    "%": 0.01,
    "s": 1.0,
    "ms": 1e-3,
    "GiB": 2.0**30,
    "GiB/s": 2.0**30,
    "GB": 1e9,
    "GB/s": 1e9,
    "MB": 1e6,
    "MB/s": 1e6,
    "elements": 1.0,
    "1e9 elements/s": 1e9,
}
"""One of each unit in seconds, bytes, bytes a second, elements or a plain ratio."""


class NotComputable(Exception):  # noqa: N818 (an answer, not a fault)
    """Why a claim's value cannot be computed from the tables."""


class Reproduction(NamedTuple):
    """What a claim's method gives, in the claim's unit."""

    value: float | None
    agreement: str  # digits, truncated, differs, or unknown
    reason: str  # why unknown; else empty


class ClaimSetting:
    """A claim, the rows it speaks of and the other claims of its study."""

    def __init__(self, claim: Claim, rows: Sequence[EpochTime], claims: Sequence[Claim]) -> None:
        self.claim = claim
        self._rows = [row for row in rows if row.study == claim.study]
        self._claims = [other for other in claims if other.study == claim.study and other is not claim]
        self._baselines = Baselines(self._rows)

    @property
    def devices(self) -> int:
        if self.claim.devices is None:
            raise NotComputable("the claim names no number of devices")
        return self.claim.devices

    @property
    def row(self) -> EpochTime:
        """The one multi-device row the claim speaks of."""
        found = [row for row in self.rows_at_devices if row.batch_size == self.claim.batch_size]
        if len(found) != 1:
            what = "no row" if not found else counted(len(found), "row")
            raise NotComputable(f"the table has {what} for it")
        return found[0]

    @property
    def rows_at_devices(self) -> list[EpochTime]:
        """The multi-device rows of the claim's study, run, strategy and number of devices, at any batch."""
        return [
            row
            for row in self._rows
            if row.devices == self.claim.devices
            and row.devices > 1
            and self.claim.run in (None, row.run)
            and self.claim.strategy in (None, row.strategy)
        ]

    @property
    def any_row(self) -> EpochTime:
        """A row that stands for all batches: those at these devices must be of one strategy."""
        found = self.rows_at_devices
        if len({row.strategy for row in found}) != 1:
            raise NotComputable("the table has no rows, or several strategies, at this number of devices")
        return found[0]

    @property
    def parameters(self) -> int:
        """K, of the study's model."""
        found = {row.parameters for row in self._rows}
        if len(found) != 1 or (count := next(iter(found))) is None:
            raise NotComputable("the table does not give one number of parameters for the study")
        return count

    @property
    def ring_elements(self) -> float:
        """Elements one device sends in a ring all-reduce of K elements: 2K(N-1)/N."""
        return (bus_factor("all_reduce", self.devices) or 0.0) * self.parameters

    @property
    def steps(self) -> int:
        steps = steps_in_epoch(self.row)
        if steps is None:
            raise NotComputable("the table does not give the steps of an epoch")
        return steps

    @property
    def t_n(self) -> float:
        if self.row.epoch_seconds is None:
            raise NotComputable("the run ended out of memory")
        return self.row.epoch_seconds

    def t_1(self, run: str | None = None) -> float:
        """T_1 at the same number in `batch_size`, of the claim's run or the named one."""
        row = self.row if run is None else self.row._replace(run=run)
        baseline = self._baselines.find(row, row.batch_size, sweep_first=False)
        if baseline.seconds is None:
            raise NotComputable(baseline.note)
        return baseline.seconds.value

    def sibling(self, quantity: str) -> Claim | None:
        """Another claim of this setting: the same batch and devices, else one for these devices at any batch."""
        mine = (self.claim.run, self.claim.batch_size, self.claim.devices)
        for wanted in (mine, (self.claim.run, None, self.claim.devices)):
            for other in self._claims:
                if other.quantity == quantity and (other.run, other.batch_size, other.devices) == wanted:
                    return other
        return None

    def printed(self, quantity: str) -> float:
        """The printed value of another claim of this setting, in base units."""
        other = self.sibling(quantity)
        if other is None:
            raise NotComputable(f"no printed {quantity} for it")
        return base_value(other)

    def communication_seconds(self) -> float:
        """The claimed communication where it is printed, else T_N - T_1/N, which is what is then meant."""
        if self.sibling("communication_seconds"):
            return self.printed("communication_seconds")
        return self.t_n - self.t_1() / self.devices

    def bandwidth_unit_bytes(self) -> float:
        other = self.sibling("effective_bandwidth")
        return UNIT_SIZES.get(other.unit, 1e9) if other else 1e9


def base_value(claim: Claim) -> float:
    """A claim's printed value in seconds, bytes, bytes a second, elements or a plain ratio."""
    if claim.unit not in UNIT_SIZES:
        raise NotComputable(f"the unit {claim.unit} is not known")
    return claim.value * UNIT_SIZES[claim.unit]


def reproduce(setting: ClaimSetting) -> Reproduction:
    """A claim's value by its own method, and whether its digits are the printed ones."""
    try:
        for pattern, formula in METHODS:
            match = re.fullmatch(pattern, setting.claim.method)
            if match:
                value = formula(setting, match) / UNIT_SIZES.get(setting.claim.unit, math.nan)
                if not math.isfinite(value):
                    raise NotComputable(f"its method has no finite value in {setting.claim.unit}")
                return Reproduction(value, agreement(value, setting.claim.printed_value), "")
    except NotComputable as why:
        return Reproduction(None, "unknown", str(why))
    except ZeroDivisionError:
        return Reproduction(None, "unknown", "its method divides by zero")
    stated = "stated by the source: no formula over the tables gives it"
    return Reproduction(None, "unknown", stated)


def agreement(value: float, printed: str) -> str:
    """Whether `value` rounds to the printed digits, only truncates to them, or differs.

    The last printed digit counts; a value printed with all of a float's digits may differ by its last bits.
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
    """Worth of one in the last printed digit: 0.01 for `4.20`."""
    return 10.0 ** min(300, int(Decimal(printed).as_tuple().exponent))


_Formula = Callable[[ClaimSetting, re.Match[str]], float]
_A_NUMBER = r"\d+(?:\.\d+)?"


def _with_run(setting: ClaimSetting, match: re.Match[str]) -> float:
    return setting.t_n - setting.t_1(match["run"])


def _quotient(_: ClaimSetting, match: re.Match[str]) -> float:
    top = float(match["top"]) * UNIT_SIZES[match["top_unit"] or "1"]
    return top / (float(match["bottom"]) * UNIT_SIZES[match["bottom_unit"] or "1"])


def _amdahl(setting: ClaimSetting, match: re.Match[str]) -> float:
    """Amdahl (AFIPS 1967): 1/(s + (1 - s)/N)."""
    serial = float(match["top"]) / float(match["bottom"])
    return 1 / (serial + (1 - serial) / setting.devices)


def _ring_bytes(setting: ClaimSetting) -> float:
    return BYTES_PER_PARAMETER * setting.ring_elements


METHODS: tuple[tuple[str, _Formula], ...] = (
    (r"T1/TN", lambda s, _: s.t_1() / s.t_n),
    (r"N\*T1/TN", lambda s, _: s.devices * s.t_1() / s.t_n),
    (r"TN-T1(?: \(T1 of (?P<run>[\w.-]+)\))?", _with_run),
    (r"TN-T1/N", lambda s, _: s.t_n - s.t_1() / s.devices),
    (r"T1/N", lambda s, _: s.t_1() / s.devices),
    (r"TN-printed compute_seconds", lambda s, _: s.t_n - s.printed("compute_seconds")),
    (r"printed speedup/N", lambda s, _: s.printed("speedup") / s.devices),
    (r"printed (?P<top>\w+)/printed (?P<bottom>\w+)", lambda s, m: s.printed(m["top"]) / s.printed(m["bottom"])),
    (r"4\*parameters", lambda s, _: float(BYTES_PER_PARAMETER * s.parameters)),
    (r"2K\(N-1\)/N\*4", lambda s, _: _ring_bytes(s)),
    (r"steps\*2K\(N-1\)/N", lambda s, _: s.steps * s.ring_elements),
    (r"one_allreduce_per_epoch", lambda s, _: _ring_bytes(s) / s.communication_seconds()),
    (r"elements_not_bytes", lambda s, _: s.steps * s.ring_elements / s.communication_seconds()),
    (
        rf"effective_bandwidth/(?P<peak>{_A_NUMBER})",
        lambda s, m: s.printed("effective_bandwidth") / (float(m["peak"]) * s.bandwidth_unit_bytes()),
    ),
    (
        rf"ring at (?P<peak>{_A_NUMBER}) (?P<unit>GiB|GB)/s",
        lambda s, m: _ring_bytes(s) / (float(m["peak"]) * UNIT_SIZES[m["unit"]]),
    ),
    (
        rf"(?P<top>{_A_NUMBER})(?: (?P<top_unit>MB|GB))?/(?P<bottom>{_A_NUMBER})(?: (?P<bottom_unit>ms|s))?",
        _quotient,
    ),
    (rf"1/\(s\+\(1-s\)/N\), s=(?P<top>{_A_NUMBER})/(?P<bottom>{_A_NUMBER})(?: \(.*\))?", _amdahl),
)
"""Formula by the pattern of its name; values in seconds, bytes, bytes a second, elements or plain ratios."""
