"""What `dpscope compare` shows of why a traced step changed: a sentence, tables and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from dpscope.analysis.runs.class_change import ClassChange, PartChange
from dpscope.analysis.runs.compare import Outcome
from dpscope.analysis.runs.step_change import COMPUTE, StepChange
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import as_ranges, show_changes, show_share, show_time
from dpscope.profiling.records.finding import grouped

MOST_ROWS = 12  # classes in a table
GITHUB_ROWS = 5
_MOST_NAMED = 3  # parts in the sentence
_LEAST_NAMED = 0.05  # of all changes, either way
_LEAST_SHOWN = 0.01
_OTHER = "other"
_MOST_LETTERS = 26  # of an operator's name in a table of 80 columns
_LEAST_CHANGE = 0.001  # of the step
_NOTHING_US = 1e-3
_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class _Named:
    """What the sentence names: a part of the ledger, or an operator's kernels."""

    change_us: float
    words: str


def sentence_of(step: StepChange, outcome: Outcome = "same") -> str:
    """Such as ``ddp-d2-b32: traced step 4.1 ms longer (8.0%): +3.0 ms waiting for rank 3, ...``.

    `outcome` is that of the step which is judged.
    """
    if not _shows_change(step):
        return f"{step.cell}: the traced steps do not show it ({show_time(step.after_us)} in both)."
    named = []
    for part in step.parts:
        if step.classes and part.part == COMPUTE:
            continue
        named.append(_Named(part.change_us, part.part))
    named += _compute_named(step.classes)
    named.sort(key=lambda entry: -abs(entry.change_us))
    least_us = _LEAST_NAMED * sum(abs(entry.change_us) for entry in named)
    chosen = [entry for entry in named[:_MOST_NAMED] if abs(entry.change_us) > least_us]
    if len(named) > len(chosen):
        other_us = step.change_us - sum(entry.change_us for entry in chosen)
        chosen.append(_Named(other_us, _OTHER))
    changes = show_changes([step.change_us, *(entry.change_us for entry in chosen)])
    texts = _without_zero(zip(changes[1:], chosen, strict=True))
    direction = "longer" if step.change_us >= 0 else "shorter"
    share = show_share(abs(step.change_us) / step.before_us)
    change = f"{changes[0].lstrip('+-')} {direction} ({share})"
    of_ranks = _which_ranks(step)
    return f"{step.cell}: {_contrary(step, outcome)}traced step{of_ranks} {change}: {', '.join(texts)}."


def _without_zero(changes: Iterable[tuple[str, _Named]]) -> Iterator[str]:
    """Each change with its words, but for a rest that is shown as 0."""
    for change, entry in changes:
        is_zero = not change.strip("+-0. msµn")
        if entry.words != _OTHER or not is_zero:
            yield f"{change} {entry.words}"


def _which_ranks(step: StepChange) -> str:
    """Of which ranks the step is the mean, where a job traced others, too."""
    if not step.some_ranks:
        return ""
    ranks = as_ranges(step.ranks)
    noun = "ranks"
    if len(step.ranks) == 1:
        noun = "rank"
    return f" of {noun} {ranks}, which both jobs traced,"


def _contrary(step: StepChange, outcome: Outcome) -> str:
    """Parts of a traced step that became shorter explain no untraced one that became longer."""
    opposite = "faster" if step.change_us > 0 else "slower"
    return "the traced steps do not show it: " if outcome == opposite else ""


def _shows_change(step: StepChange) -> bool:
    """Whether the traced step, a part of it or a class of its kernels changed."""
    least_us = _LEAST_CHANGE * step.before_us
    for part in (*step.parts, *step.classes):
        if _size(part) >= least_us:
            return True
    return abs(step.change_us) >= least_us


def _compute_named(classes: Sequence[ClassChange]) -> Iterator[_Named]:
    """What changed in compute: by operator, and together what communication next to kernels costs.
    Where repeats show which classes changed, the others are one.
    """
    judged = any(kernel_class.significant is not None for kernel_class in classes)
    changed = [kernel_class for kernel_class in classes if not judged or kernel_class.significant]
    for operator, kernels in grouped(
        (kernel_class.part, kernel_class) for kernel_class in changed
    ).items():
        whole = _summed(kernels)
        why = _why(whole)
        if len(kernels) > 1:
            why += f" in {len(kernels)} classes"
        yield _Named(_alone_us(kernels), f"{_shown(operator)} ({why})")
    contention_us = sum(kernel_class.contention_us or 0.0 for kernel_class in changed)
    yield _Named(contention_us, "compute slowed by communication next to it")
    rest = [kernel_class for kernel_class in classes if kernel_class not in changed]
    if rest:
        change_us = sum(kernel_class.change_us for kernel_class in rest)
        yield _Named(change_us, "compute in which repeats show no difference")


def _alone_us(kernels: Sequence[ClassChange]) -> float:
    """Their change without contention."""
    return sum(kernel.change_us - (kernel.contention_us or 0.0) for kernel in kernels)


def _why(whole: ClassChange) -> str:
    """The larger reason for the change of an operator's kernels."""
    before, after = whole.calls_before, whole.calls_after
    if not before or not after:
        return f"{'gone' if before else 'new'}, {_calls(max(before, after))}"
    if abs(whole.count_us) > abs(whole.duration_us - (whole.contention_us or 0.0)):
        return f"{_number(before)} to {_calls(after)}"
    return f"duration, {_calls(after)}"


def _calls(count: float) -> str:
    return f"{_number(count)} {'call' if count == 1 else 'calls'}"


def _number(count: float) -> str:
    return f"{count:.0f}" if count == round(count) else f"{count:.1f}"


def _shown(operator: str) -> str:
    """Or the name of a kernel, which may be long."""
    name = operator.removeprefix(_NODE)
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 3]}..."


def _summed(classes: Sequence[ClassChange]) -> ClassChange:
    """Classes as one; what is not known of one of them is not known of all."""

    def total(name: str) -> float:
        values: list[float] = [getattr(kernels, name) for kernels in classes]
        return sum(values)

    def total_if_known(name: str) -> float | None:
        values = [getattr(kernels, name) for kernels in classes]
        return None if None in values else sum(values)

    return ClassChange(
        part=f"{len(classes)} others",
        before_us=total("before_us"),
        after_us=total("after_us"),
        kernel="",
        calls_before=total("calls_before"),
        calls_after=total("calls_after"),
        occurrence="both",
        count_us=total("count_us"),
        duration_us=total("duration_us"),
        alone_us=total_if_known("alone_us"),
        critical_change_us=total_if_known("critical_change_us"),
        probability=None,
    )


def tables_of(step: StepChange, most: int = MOST_ROWS) -> Iterator[TextTable]:
    """The parts of the step, which add up to it, and the classes of kernels, which add up to its
    compute: the largest changes first, small ones and those after the first `most` summed. None
    where nothing changed.
    """
    if not _shows_change(step):
        return
    whole = PartChange("traced step", step.before_us, step.after_us)
    parts = [part for part in step.parts if _is_there(part)]
    parts.sort(key=_size, reverse=True)
    notes = list(step.notes)
    if step.no_classes:
        notes.append(f"compute is not divided by kernels: {step.no_classes}")
    title = f"What changed in the traced step of {step.cell} [{{unit}}]"
    yield table_of(title, _PART_FIELDS, [*parts, whole], notes)
    rows = _largest(step, most)
    if len(rows) > 1:
        title = f"Compute of {step.cell} by kernels [{{unit}}]"
        yield table_of(title, _class_fields(step), rows, _class_notes(step))


def _size(part: PartChange) -> float:
    return abs(part.change_us)


def _is_there(part: PartChange) -> bool:
    """Whether either run has any of it, beyond what sums of whole nanoseconds leave."""
    return max(part.before_us, part.after_us) > _NOTHING_US


def _largest(step: StepChange, most: int) -> list[ClassChange]:
    """The classes with the largest changes; small ones, and those after the first `most`, as one."""
    ranked = sorted(step.classes, key=_size, reverse=True)
    others = (part for part in step.parts if part.part != COMPUTE)
    least_us = _LEAST_SHOWN * sum(map(_size, [*ranked, *others]))
    shown = [entry for entry in ranked if _size(entry) > least_us][:most]
    rest = ranked[len(shown) :]
    return [*shown, _summed(rest)] if rest else shown


_PART_FIELDS = (
    Field("part", "part"),
    Field("before", "before_us", "time"),
    Field("after", "after_us", "time"),
    Field("change", "change_us", "time"),
)
_CLASS_NOTES = (
    "a class has one operator, kernel name, input sizes, grid and block; it is named by the operator that launched it, "
    "or by its kernel where none is recorded",
    "count: what other numbers of calls cost, at the mean before; duration: what other durations cost; contention: of "
    "duration, what communication next to the kernels adds",
)


def _class_fields(step: StepChange) -> Iterator[Field]:
    yield Field("kernels of", lambda one: _shown(one.part), column="operator")
    yield Field("calls", _calls_text)
    yield Field("change", "change_us", "time")
    yield Field("count", "count_us", "time")
    yield Field("duration", "duration_us", "time")
    yield Field("contention", "contention_us", "time")
    if step.critical_rank is not None:
        yield Field(f"rank {step.critical_rank}", "critical_change_us", "time")
    if _judged(step):
        yield Field("differs", _differs)


def _class_notes(step: StepChange) -> list[str]:
    notes = list(_CLASS_NOTES)
    if step.critical_rank is not None:
        notes.append(_critical_note(step))
    if _judged(step):
        notes.append("differs: Welch's test over repeats, 5% for all classes together (Holm)")
    return notes


def _critical_note(step: StepChange) -> str:
    note = f"rank {step.critical_rank}: the change on that rank, which waits least for the others"
    if step.critical_rank == step.critical_rank_before:
        return f"{note} before and after"
    return f"{note} after; before, rank {step.critical_rank_before} does"


def _judged(step: StepChange) -> bool:
    return any(kernels.significant is not None for kernels in step.classes)


def _calls_text(one: ClassChange) -> str:
    before, after = _number(one.calls_before), _number(one.calls_after)
    return before if before == after else f"{before} > {after}"


def _differs(one: ClassChange) -> str:
    if one.occurrence in ("new", "gone"):
        return one.occurrence
    return {None: "", True: "yes", False: "not shown"}[one.significant]


def record_of(step: StepChange) -> dict[str, object]:
    """All parts and classes, for programs."""
    return {
        **asdict(step),
        "change_us": step.change_us,
        "parts": [asdict(part) | {"change_us": part.change_us} for part in step.parts],
        "classes": [_class_record(kernels) for kernels in step.classes],
    }


def _class_record(one: ClassChange) -> dict[str, object]:
    derived = {
        "change_us": one.change_us,
        "contention_us": one.contention_us,
        "significant": one.significant,
    }
    return asdict(one) | derived
