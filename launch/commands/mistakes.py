"""What typer refuses, as one line: what, where, what to do. Loaded when there is a mistake."""

from collections.abc import Iterable, Sequence
from typing import Any

from dpscope.profiling.records.typed_text import choose_from, nearest
from dpscope.profiling.store.errors import DpscopeError

_RESEMBLES = 0.75  # of option names, many of which share a word


def no_command(word: str, commands: Iterable[str]) -> DpscopeError:
    """The first word is none of the known commands."""
    near = nearest(word, commands)
    see = f"did you mean {near[0]}? See" if near else "see"
    return DpscopeError(f"{word}: no such command; {see} dpscope -h")


def mistake_of(error: Any, ctx: Any, words: Sequence[str]) -> DpscopeError:
    """A UsageError of a command that was called with these words."""
    text = _refused(error, ctx, words)
    see = "; see"
    if text.endswith("?"):
        see = " See"
    return DpscopeError(f"{text}{see} dpscope {ctx.info_name} -h")


def _refused(error: Any, ctx: Any, words: Sequence[str]) -> str:
    # typer's errors are distinguished by what they hold: its classes moved between its versions
    parameter = getattr(error, "param", None)
    if parameter is not None:
        return _value_refused(parameter, words, bool(error.message))
    option = getattr(error, "option_name", None)
    if option is not None:
        return _option_refused(option, ctx)
    extra = error.message.partition("(s) (")[2]
    if extra:
        extra = extra.removesuffix(")")
        return f"{extra}: dpscope {ctx.info_name} takes no such argument"
    return str(error.message)


def _option_refused(option: str, ctx: Any) -> str:
    """One that the command does not have, or that stands last, without its value."""
    options = {}
    for parameter in ctx.command.params:
        for name in parameter.opts:
            options[name.lstrip("-")] = name
        for name in parameter.secondary_opts:
            options[name.lstrip("-")] = name
    word = option.lstrip("-")
    if word in options:
        return f"{option} needs a value"
    text = f"{option}: dpscope {ctx.info_name} has no such option"
    near = nearest(word, options, cutoff=_RESEMBLES)
    if near:
        text += f"; did you mean {options[near[0]]}?"
    return text


def _value_refused(parameter: Any, words: Sequence[str], is_there: bool) -> str:
    """The parameter with its value, and what it takes."""
    name = parameter.opts[0]
    if parameter.param_type_name == "argument":
        name = parameter.metavar
    if not is_there:
        return f"{name} is missing: {parameter.help}"
    word = _value_of(parameter.opts, words)
    return f"{name} {word}: {_takes(parameter, word)}"


def _takes(parameter: Any, word: str) -> str:
    kind = parameter.type_descriptor
    if kind.is_choice:
        return choose_from(word, map(str, kind.choices))
    if kind.annotation is float:
        return "give a number, such as 0.8"
    if kind.annotation is not int:
        return str(parameter.help)
    least = kind.parameter_info.min
    if least is None:
        return "give a whole number"
    return f"give a whole number of {least} or more"


def _value_of(names: Sequence[str], words: Sequence[str]) -> str:
    """The word that stands for an option's value: the last one, as for typer."""
    value = ""
    before = ""
    for word in words:
        name, equals, rest = word.partition("=")
        if before in names:
            value = word
        elif equals and name in names:
            value = rest
        before = word
    return value
