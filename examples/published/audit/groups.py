"""Claims of one study and run, picked by what their numbers show, and how messages quote them."""

from collections.abc import Callable, Sequence

from dpscope.analysis.epoch_times.wording import at, listed
from examples.published.audit.claims import NotComputable, agreement
from examples.published.audit.verdicts import AuditedClaim

ClaimGroup = Sequence[AuditedClaim]


def _known(condition: Callable[[AuditedClaim], bool], audited: AuditedClaim) -> bool:
    """A condition, False where the tables do not hold what it asks for."""
    try:
        return condition(audited)
    except (NotComputable, ZeroDivisionError):
        return False


def which(
    group: ClaimGroup, quantities: tuple[str, ...], condition: Callable[[AuditedClaim], bool]
) -> list[AuditedClaim]:
    """The claims of these quantities for which a condition holds, and can be checked."""
    return [one for one in group if one.audit.quantity in quantities and _known(condition, one)]


def cells(group: ClaimGroup) -> str:
    """Printed values with their settings."""
    return listed([f"{printed(one)} at {at(one.audit.batch_size, one.audit.devices)}" for one in group])


def printed(one: AuditedClaim) -> str:
    """A claim's value with its unit, as printed."""
    return shortened(one.audit.printed_value) + ("" if one.audit.unit == "1" else f" {one.audit.unit}")


def agrees(value: float, printed_value: str) -> bool:
    """Whether a value has these digits, rounded or cut off."""
    return agreement(value, printed_value) != "differs"


def shortened(printed_value: str) -> str:
    """A printed value, to six digits where a whole float was printed."""
    return printed_value if len(printed_value) <= 12 else f"{float(printed_value):.6g}..."
