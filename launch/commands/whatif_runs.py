"""`dpscope whatif` of a run folder or of traces: the replay's answers, printed, drawn and written."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.what_if.answers.options import (
    NamedScenario,
    WhatIfOptions,
    check_links,
    level_that_limits,
    need_of,
    scenarios_of,
    with_link,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.analysis.what_if.answers.bases import Question
    from dpscope.analysis.what_if.answers.output import RunAnswer
    from dpscope.analysis.what_if.answers.questions import Solution


@dataclass(frozen=True)
class RunQuestion:
    """A question about a run or a trace."""

    requested: WhatIfOptions
    cell: str | None
    solve: str | None
    need: str | None
    trace: Path | None
    figure: Path | None
    output_format: str


def of_run_or_traces(
    paths: list[Path],
    question: RunQuestion,
    stated: tuple[int | None, int | None, float | None, float | None],
) -> None:
    """Answer and print. `stated` is what the user states about a trace: devices, batch, bucket cap, bytes of gradients."""
    scenarios = scenarios_of(question.requested)
    _check(question, len(scenarios))
    from rich.console import Console

    from dpscope.analysis.output.analyze import load
    from dpscope.analysis.text.terminal import print_sentences, print_table, progress
    from dpscope.analysis.text.text_table import render
    from dpscope.analysis.what_if.answers import bases, output
    from dpscope.analysis.what_if.answers.cell_errors import with_cell_errors
    from dpscope.profiling.store.folders import is_run_folder

    if is_run_folder(paths[0]):
        if len(paths) > 1:
            raise DpscopeError(f"{paths[0]} is a run folder: give it alone")
        run = load(paths[0])
        with progress("Replaying the base"):
            found = bases.base_of_loaded(run, question.cell)
    else:
        with progress():
            found = bases.base_of_traces(paths, bases.StatedJob(*stated))
    check_links(question.requested, found.base, [one for _, one in scenarios])
    scenarios = with_link(question.requested, found.base, scenarios)
    if question.solve == "link":
        question = replace(question, solve=level_that_limits(found.base, scenarios[0][1]))
    with progress("Predicting") as tell:
        tell("the run's other cells")
        found, own = with_cell_errors(found)
        tell(counted(len(scenarios), "scenario"))
        answer = output.run_answer(found, own, scenarios, _solved(found, question, scenarios))
    if question.output_format == "json":
        sys.stdout.write(answer.as_json() + "\n")
    elif question.output_format == "csv":
        sys.stdout.write(render(output.csv_table(answer), "csv"))
        sys.stderr.write(f"{answer.solution.sentence}\n" if answer.solution is not None else "")
    else:
        console = Console(markup=False)
        with progress("Removing one part at a time"):
            saved = answer.savings_sentences if answer.solution is None else []
        print_sentences(
            console, output.run_answer_sentences(answer) if answer.solution is None else [answer.solution.sentence]
        )
        tables = (output.run_table(answer), output.ledger_table(answer))
        for table in tables if any(one.low_us is not None for _, _, one in answer.predictions) else ():
            if table.rows:
                print_table(console, table)
        console.print()
        print_sentences(console, saved + output.base_sentences(answer))
    _write(answer, question)


def _check(question: RunQuestion, scenarios: int) -> None:
    from dpscope.analysis.what_if.answers.questions import SOLVABLE

    known = ("link", *SOLVABLE)
    if question.solve is not None and question.solve not in known:
        raise DpscopeError(f"--solve {question.solve!r}: {choose_from(question.solve, known)}")
    targets = question.solve is not None and question.solve not in ("bucket-mb", "strategy")
    if targets and question.need is None:
        raise DpscopeError(f"--solve {question.solve} needs a target: --need efficiency=0.95 or --need step-ms=100")
    if question.solve is not None and getattr(question.requested, question.solve.replace("-", "_")) is not None:
        raise DpscopeError(f"--solve {question.solve} finds that itself: leave --{question.solve} out")
    if question.need is not None:
        need_of(question.need)
    if question.solve is not None and scenarios > 1:
        raise DpscopeError("--solve answers for one scenario: give one value for each other option")
    if question.trace is not None:
        from dpscope.analysis.what_if.answers.written import check_trace_name

        check_trace_name(question.trace)
    if question.figure is not None:
        from dpscope.analysis.what_if.answers.written import check_figure_name

        check_figure_name(question.figure)


def _solved(found: "Question", question: RunQuestion, scenarios: list[NamedScenario]) -> "Solution | None":
    """The inverse question's answer; None if there is no such question."""
    if question.solve is None:
        return None
    from dpscope.analysis.what_if.answers.questions import solve

    need = need_of(question.need) if question.need is not None else None
    return solve(found.base, scenarios[0][1], found.costs, question.solve, need)


def _write(answer: "RunAnswer", question: RunQuestion) -> None:
    if question.trace is not None:
        from dpscope.analysis.what_if.answers.written import write_replayed

        write_replayed(answer, question.trace)
    if question.figure is not None:
        from dpscope.analysis.what_if.answers.written import write_figure

        write_figure(answer, question.figure)
