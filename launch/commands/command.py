"""A command from its declarations: options of settings, help, and the refusal of options without
effect.

Imports no torch; what a command runs is imported when it runs.
"""

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from dpscope.launch.commands.help_text import place_of, records_by_heading, word_of
from dpscope.profiling.machine.gpus import GPU_ORDER
from dpscope.profiling.records.settings import Setting
from dpscope.profiling.store.errors import READER_GONE, DpscopeError

if TYPE_CHECKING:
    from rich.console import Console

    from dpscope.launch.jobs.job_queue import Outcome

OptionValues = Mapping[str, Any]
UsageError: Any = typer.BadParameter.__base__  # typer has a copy of click, older versions click

_REPLACED = {
    "--link-gbps": "it is --link now, with a unit: --link 25GB/s (bytes) or --link 200Gb/s (bits)"
}


class Idle(NamedTuple):
    """Parameters of a command that have no effect in a situation, and why."""

    parameters: str  # their names, separated by spaces
    when: str | Callable[[OptionValues], bool]  # a parameter that has a value, or a condition
    why: str

    def holds(self, values: OptionValues) -> bool:
        if isinstance(self.when, str):
            return bool(values[self.when])
        return self.when(values)


NOTHING_PREDICTED = 3  # exit status where nothing that was asked for has a number
PREDICTED_NOTHING = (
    str(NOTHING_PREDICTED),
    "no prediction of anything asked for: reasons are given",
)


@dataclass(frozen=True)
class Help:
    """What `--help` of a command shows around its options.

    `usual` are parameters, separated by spaces: where there are any, `--help` shows these alone and
    `--help-all` shows all.
    """

    examples: tuple[str, ...] = ()  # arguments, and behind "  # " what the command does with them
    usual: str = ""
    exit_statuses: tuple[tuple[str, str], ...] = (
        ("0", "success"),
        ("1", "something failed, or a number cannot be trusted"),
        ("2", "a mistake in the command or its input"),
    )


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command is called with: the flags of its settings, and a field for each other
    option.
    """

    settings: ClassVar[Mapping[str, Setting]] = {}

    flags: dict[str, object]  # of settings, by option, as far as given
    given: dict[str, object]  # every option that has a value


def option(text: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A field of a request, or a parameter, that is an option with this help.

    `names` are those other than the field's, `default` MISSING makes it required, and `more` is as
    typer takes it.
    """
    declared = typer.Option(*names, help=text, **more)
    return field(default=default, metadata={"typer": declared})


def argument(text: str, default: Any = MISSING, **more: Any) -> Any:
    """A field of a request, or a parameter, that is an argument with this help."""
    declared = typer.Argument(help=text, **more)
    return field(default=default, metadata={"typer": declared})


def setting_option(declared: Setting, command: str = "") -> Any:
    """The option of a setting, in a command whose help may differ."""
    name = declared.option.replace("_", "-")
    written = f"--{name}"
    if _option_type(declared) is bool:
        written += f"/--no-{name}"
    return typer.Option(written, help=declared.help_of.get(command, declared.help))


def _option_type(declared: Setting) -> Any:
    """What the command line reads; text is read with the file's settings."""
    if declared.text is not None:
        return str
    return declared.kind if declared.listed or declared.kind in (bool, int, float) else str


def load_command(name: str, text: str) -> TyperCommand:
    """The command of the module of its name; `text` is its help."""
    module = importlib.import_module(f"dpscope.launch.commands.{name}")
    program = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    function = _with_options(getattr(module, name), name)
    program.command(name, cls=getattr(module, "COMMAND", Command), help=text)(function)
    command = typer.main.get_command(program)
    assert isinstance(command, Command)
    for parameter in command.params:
        parameter.metavar = parameter.metavar or word_of(parameter)
    command.idle = getattr(module, "IDLE", ())
    command.shown = getattr(module, "HELP", Help())
    command.defaults = getattr(module, "defaults", dict)
    return command


class _Declared(NamedTuple):
    """What a command's function takes: a request, or its own parameters."""

    request: Any  # the class of the request; None: the function takes the options themselves
    settings: Mapping[str, Setting]  # of the request, by option
    defaults: Mapping[str, Any]  # of all other options, by name
    hints: Mapping[str, Any]


def _declared(function: Callable[..., None]) -> _Declared:
    hints: dict[str, Any] = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    request = next((hints[name] for name in parameters if isinstance(hints[name], type)), None)
    if request is None or not issubclass(request, Request):
        return _Declared(
            None, {}, {name: parameter.default for name, parameter in parameters.items()}, hints
        )
    settings = {}
    for setting in request.settings.values():
        if setting.help:
            settings[setting.option] = setting
    defaults = {declared.name: declared for declared in fields(request)}
    del defaults["flags"], defaults["given"]
    hints = get_type_hints(request, include_extras=True)
    return _Declared(request, settings, defaults, hints)


def _with_options(function: Callable[..., None], command: str) -> Callable[..., None]:
    """The function as typer takes it: one that takes a request gets a parameter for each option
    instead.
    """
    declared = _declared(function)
    annotated: Any = Annotated  # as a value, not as a type
    parameters = []

    def add(name: str, hint: Any, default: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))

    for name, setting in declared.settings.items():
        add(name, annotated[_option_type(setting) | None, setting_option(setting, command)], None)
    for name, default in declared.defaults.items():
        hint = declared.hints[name]
        if isinstance(default, Field):
            if default.metadata:
                hint = annotated[hint, default.metadata["typer"]]
            required = default.default is MISSING
            default = inspect.Parameter.empty if required else default.default
        add(name, hint, default)

    def called(**values: Any) -> None:
        if declared.request is None:
            return function(**values)
        given = {name: value for name, value in values.items() if value}
        flags = {}
        for name in declared.settings:
            value = values.pop(name)
            if value is not None:
                flags[name] = value
        function(declared.request(flags=flags, given=given, **values))

    if declared.settings:
        parameters.sort(key=lambda parameter: place_of(parameter.name))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


class Command(TyperCommand):
    """A command whose help groups its options and shows their defaults, and which refuses options
    without effect.
    """

    takes_empty = False  # words, which are another program's
    # as NVML does and a run's jobs do: what it records of GPU 0 is of the one that they use
    orders_gpus = True
    idle: Sequence[Idle] = ()
    shown = Help()
    shows_all_options = False
    defaults: Callable[[], dict[str, str]]  # that are no parameters' defaults, by option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does. Raises DpscopeError for what typer refuses, a replaced option, and an empty
        word, which as a path would be the current folder.
        """
        before_files = args[: args.index("--")] if "--" in args else args
        if "" in args and not self.takes_empty:
            raise DpscopeError(
                "an argument is empty: is a variable in it not set? Omit it, or write . for the current folder"
            )
        for word in before_files:
            name = word.partition("=")[0]
            if name in _REPLACED:
                raise DpscopeError(f"{name}: {_REPLACED[name]}")
        if "--help-all" in before_files:
            self.shows_all_options = True
            args = ["--help"]
        words = list(args)  # typer takes them from the list
        try:
            return list(super().parse_args(ctx, args))
        except UsageError as error:
            from dpscope.launch.commands.mistakes import mistake_of

            raise mistake_of(error, ctx, words) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer does, with the defaults that are no parameters' defaults."""
        defaults = self.defaults()
        for option in self.params:
            default = defaults.get(option.opts[0])
            if default and isinstance(option, TyperOption):
                text = option.help or ""
                option.help = f"{text}  [default: {default}]"
        super().format_help(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As typer does, arguments as they are declared."""
        pieces = ["[OPTIONS]"]
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                pieces.append(str(parameter.metavar))
        return pieces

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """As typer does, with examples."""
        super().format_help_text(ctx, formatter)
        if self.shown.examples:
            with formatter.section("Examples"):
                for example in self.shown.examples:
                    formatter.write(f"  {ctx.command_path} {example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options under headings; those under none stand under "Options". Of a long list, those
        that most people need.
        """
        usual = self.shown.usual.split()
        if not usual or self.shows_all_options:
            for heading, records in records_by_heading(self.get_params(ctx), ctx).items():
                with formatter.section(heading):
                    formatter.write_dl(records)
            return
        parameters = {parameter.name: parameter for parameter in self.get_params(ctx)}
        records = [parameters[name].get_help_record(ctx) or ("", "") for name in usual]
        with formatter.section("Usual options"):
            formatter.write_dl(records)
        others = len(self.params) - len(usual)
        formatter.write(f"\n{others} more options: {ctx.command_path} --help-all\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The exit statuses."""
        with formatter.section("Exit status"):
            formatter.write_dl(self.shown.exit_statuses)

    def invoke(self, ctx: Any) -> Any:
        """Run it; raises DpscopeError for an option without effect."""
        if self.orders_gpus:
            os.environ.setdefault(*GPU_ORDER)  # before torch starts CUDA, which reads it once
        stated = self.refuse_idle(ctx)
        if "out" not in stated and ctx.params.get("config") is not None:
            from dpscope.launch.planning.run_config import out_folder

            named = out_folder(ctx.params["config"])
            ctx.params["out"] = named or ctx.params["out"]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # of which click makes status 1, which `compare` has for a regression
            raise SystemExit(READER_GONE) from None

    def refuse_idle(self, ctx: Any) -> set[str]:
        """The stated options; raises DpscopeError for one that has no effect."""
        stated = set()
        for name in ctx.params:
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                stated.add(name)
        values: OptionValues = ctx.params
        for rule in self.idle:
            idle = [name for name in rule.parameters.split() if name in stated]
            if not idle or not rule.holds(values):
                continue
            # it is named as it was given, --no-... included
            stated_first = idle[0]
            option = next(param for param in self.params if param.name == stated_first)
            names = option.opts
            if values[stated_first] is False:
                names = option.secondary_opts
            flag = names[0]
            raise DpscopeError(f"{flag} does nothing here: {rule.why}; omit it")
        return stated

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of its help, whole."""
        return (self.help or "").partition("\n")[0]


def open_console(stderr: bool = False) -> "Console":
    """The terminal, on which square brackets are no markup."""
    from dpscope.analysis.text.terminal import Terminal

    return Terminal(stderr)


def exit_after(outcome: "Outcome[Any]", show: Callable[[], bool], console: "Console") -> NoReturn:
    """Show what was measured and end the command; `show` returns whether the numbers can be relied
    on.

    A report that cannot be made is an error by itself only where every job ended well; otherwise
    the failed jobs are its cause. Of a job that the user stopped, its own line has said so.
    """
    sound = False
    try:
        sound = show()
    except DpscopeError as error:  # the settings were valid: what failed, failed while measuring
        if outcome.ok:
            raise
        if not outcome.interrupted:
            console.print(f"\n{error}", style="bold red", highlight=False, soft_wrap=True)
    raise typer.Exit(outcome.exit_status or int(not sound))
