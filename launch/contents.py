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

COMMANDS = {
    "run": "Run single, DP and DDP under torchrun, trace them, compare, report.",
    "attach": "Measure a training script as it is, on one or more device counts.",
    "analyze": "Read a run folder or torch.profiler traces: where a step goes, and what communication costs.",
    "compare": "Report what got faster or slower between two runs; exit status 1: slower beyond noise, 3: cannot be judged.",
    "merge": "Make one trace of all ranks for Perfetto: clocks aligned, communication, wait and transfer as tracks.",
    "reduce": "Reduce traces to one small file where they are stored, to analyze anywhere; traces already reduced are not read "
    "again.",
    "calibrate": "Time this machine's collectives by message size and fit what they cost; predictions use it.",
    "tensorboard": "Write a run's TensorBoard folder and serve it: HParams, Text, Images, Scalars (live of trainings), and the "
    "traces.",
    "estimate": "Report what published or hand-timed times can and cannot show, and predict those of other device counts.",
    "whatif": "Predict steps that were not measured from a run or traces by replaying one, with a band or a reason.",
    "doctor": "Check devices, driver, backends, peer access, shared memory, the tracer and disk space, in seconds.",
    "bundle": "Pack a run into one file of at most 16 MB for a bug report: host and user names replaced, traces reduced.",
    "train": "Train single, DP and DDP on the same batches, with the same settings; losses and accuracies per epoch.",
    "equal": "Train from one seed on the same global batches under every strategy; report whether, where and why they differ.",
}
"""Each with its help."""


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


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
