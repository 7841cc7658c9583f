"""The table of contents: the commands by name. Each is a module of commands/, imported when it is
called.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer.core import TyperCommand

GROUPS = {
    "Start here": {
        "run": "Run single, DP and DDP under torchrun, trace them, compare, report.",
        "attach": "Measure a training script as it is, on one or more device counts.",
    },
    "Read runs and traces": {
        "analyze": "Read a run, traces, nsys exports or records: where does a step go?",
        "compare": "Report what got slower or faster between two runs.",
        "tensorboard": "Write a run's TensorBoard folder and serve it.",
        "merge": "Make one trace of all ranks for Perfetto, on one clock.",
        "reduce": "Reduce traces to one small file, to analyze elsewhere.",
        "bundle": "Pack a run into one file for a bug report, names replaced.",
    },
    "Predict what was not measured": {
        "whatif": "Replay a traced step on other devices, links and options.",
        "estimate": "Judge published or hand-timed times, and predict others.",
        "calibrate": "Time this machine's collectives, on which predictions rest.",
    },
    "Check": {
        "doctor": "Check devices, driver, backends, tracer and disk, in seconds.",
        "train": "Train under each strategy: do accuracy and loss stay the same?",
        "equal": "Compare the tensors of every strategy, step by step.",
    },
}
"""The commands with their help, by what they are for; a command is added here."""
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}


class _Loaded(Mapping[str, "TyperCommand"]):
    """The commands by name, loaded when they are looked up."""

    def __getitem__(self, name: str) -> "TyperCommand":
        text = COMMANDS[name]
        from dpscope.launch.commands.command import load_command

        return load_command(name, text)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Contents(TyperGroup):
    """All commands; listing them loads none."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.commands = _Loaded()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does. Raises DpscopeError for an option that only commands have."""
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:
            option = getattr(error, "option_name", None)
            if option is None:
                raise
            from dpscope.profiling.store.errors import DpscopeError

            raise DpscopeError(
                f"{option}: dpscope has no such option before a command; see dpscope -h"
            ) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does. Raises DpscopeError for a word that is no command."""
        if args[0] not in COMMANDS:
            from dpscope.launch.commands.mistakes import no_command

            raise no_command(args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands by group, then the options."""
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])
        records = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])


app = typer.Typer(
    cls=_Contents,
    help="Measure what data-parallel training costs on this machine, and where the time goes.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(", ".join(f"{name} {_installed_version(name)}" for name in ("dpscope", "torch")))
        raise typer.Exit


def _installed_version(name: str) -> str:
    """A package's version, from the name of its record: importlib.metadata takes longer to load
    than all of this.
    """
    for folder in sys.path:
        for record in sorted(Path(folder or ".").glob(f"{name}-*.dist-info")):
            return record.name.removesuffix(".dist-info").removeprefix(f"{name}-")
    import importlib.metadata  # for packages that are recorded otherwise, or not at all
    import importlib.util

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(name) is None:
            return "not installed"
        return str(getattr(importlib.import_module(name), "__version__", "of unknown version"))


@app.callback(no_args_is_help=True)
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the versions of dpscope and torch.",
        ),
    ] = False,
) -> None:
    pass
