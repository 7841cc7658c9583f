"""The command that is attached to: checked before anything starts; where it cannot be, what its user probably meant is told."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError

_UNDER_TORCHRUN = "-m dpscope.launch.attach --out runs/mine"
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")  # Python's own options that take one more word
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh", "fish")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_LAUNCHERS = ("accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")


def check_script(command: Sequence[str]) -> None:
    """Raise DpscopeError unless the command begins with a Python script that is there, or with -m and a module that is."""
    if not command:
        raise DpscopeError(
            "no script to attach to: name one, such as dpscope attach --out runs/mine -- train.py --epochs 1"
        )
    if command[0] == "-m":
        _check_module(command)
        return
    path = Path(command[0])
    if not path.is_file():
        raise DpscopeError(_why_no_script(command))
    first = _first_line(path)
    if path.suffix == ".ipynb":
        raise DpscopeError(
            f"{path}: a notebook; save it as a script first: jupyter nbconvert --to script {shlex.quote(str(path))}"
        )
    if first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first) or path.suffix == ".sh":
        raise DpscopeError(_not_python(str(path)))


def _why_no_script(command: Sequence[str]) -> str:
    """What is wrong with a first word that is no file, and what to give in its place."""
    word, rest = command[0], command[1:]
    name = os.path.basename(word)
    if re.fullmatch(r"[A-Za-z_]\w*=.*", word):
        return f"{word}: a variable of the environment goes before dpscope or torchrun, not before the script"
    if word.startswith("-"):
        return f"{word}: the script comes first and its options after it, such as train.py --epochs 1"
    if _PYTHON.fullmatch(name):
        return _without_python(word, rest)
    if name == "torchrun":
        return _without_torchrun(word, rest)
    if name in _SHELLS:
        script = next((one for one in rest if not one.startswith("-")), "a shell's command")
        return _not_python(script if Path(script).is_file() else word)
    if name in _LAUNCHERS:
        return f"{word}: dpscope starts scripts by torchrun; give the script alone, or: torchrun {_UNDER_TORCHRUN} train.py"
    if Path(word).is_dir():
        return f"{word}: is a folder; name the Python script that trains, with the path to it"
    return f"{word}: no such file; {_similar(word)}"


def _without_python(word: str, rest: Sequence[str]) -> str:
    words = list(rest)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        flag = words.pop(0)
        if flag in _WITH_VALUE and words:
            words.pop(0)
    if words[:1] == ["-m"] and words[1:2] and words[1] in _TORCHRUN_MODULES:
        return _without_torchrun(f"{word} -m {words[1]}", words[2:])
    if not words or words[0] in ("-c", "-"):
        return f"{word}: dpscope attaches to a script in a file, or to a module by -m; name it without {word}"
    return f"{word}: dpscope starts Python itself; give the script without it: {shlex.join(words)}"


def _without_torchrun(word: str, rest: Sequence[str]) -> str:
    own, script = _torchrun_s(rest)
    command = shlex.join(script) or "train.py"
    return (
        f"{word}: dpscope starts torchrun itself; give the script without it: {command}; or attach under your own torchrun: "
        f"{' '.join(('torchrun', *map(shlex.quote, own)))} {_UNDER_TORCHRUN} {command}"
    )


def _torchrun_s(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """torchrun's own options, and the script or module with its arguments."""
    for at, word in enumerate(words):
        if word in ("-m", "--module"):
            return list(words[:at]), ["-m", *words[at + 1 :]]
        if word.endswith(".py"):
            return list(words[:at]), list(words[at:])
    return list(words), []


def _not_python(path: str) -> str:
    return (
        f"{path}: dpscope attaches to a Python script, and this is none; give the script that it starts, or write in it "
        f"python {_UNDER_TORCHRUN} train.py where it says python train.py, and run it"
    )


def _similar(word: str) -> str:
    """What of the same folder, or which module, has nearly this name."""
    path = Path(word)
    if not path.suffix and Path(f"{word}.py").is_file():
        return f"did you mean {word}.py?"
    if "/" not in word and not word.endswith(".py") and _module_spec(word) is not None:
        return f"for a module write -m {word}"
    scripts = [one.name for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
    if found := nearest(path.name, scripts):
        return f"did you mean {path.parent / found[0]}?"
    return "name the Python script that trains, with the path to it"


def _check_module(command: Sequence[str]) -> None:
    if len(command) < 2:
        raise DpscopeError("-m: no module to attach to; name one, such as -m package.train")
    name = command[1]
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise DpscopeError(f"-m {name}: takes a module's name, such as -m {module}; or give the file without -m")
    if name in _TORCHRUN_MODULES:
        raise DpscopeError(_without_torchrun(f"-m {name}", command[2:]))
    spec = _module_spec(name)
    if spec is None:
        raise DpscopeError(f"-m {name}: no such module in {os.getcwd()} or among Python's; give its full name")
    if spec.submodule_search_locations is not None and _module_spec(f"{name}.__main__") is None:
        raise DpscopeError(f"-m {name}: is a package without a __main__; name the module in it that trains")


def _module_spec(name: str) -> ModuleSpec | None:
    """Where a module lies, by the working folder and Python's path; nothing of it is imported."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    spec, within = _found(parts[0], [os.getcwd(), *sys.path]), parts[0]
    for part in parts[1:]:
        if spec is None or spec.submodule_search_locations is None:
            return None
        within = f"{within}.{part}"
        spec = _found(within, spec.submodule_search_locations)
    return spec


def _found(name: str, places: Iterable[str]) -> ModuleSpec | None:
    """By every finder that Python has: packages that are installed for editing bring their own."""
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return next((spec for find in finders if find is not None and (spec := find(name, places)) is not None), None)


def _first_line(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.readline(200)
