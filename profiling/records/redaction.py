"""Hides what looks like a secret in commands and variables before they are stored or shown. Imports
no torch.
"""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence

HIDDEN = "***"
# The end of a word of a name: api_key, --hfToken, DB_PASSWORD. Not tokenizer or max_tokens, which
# training scripts often have.
_SECRET_WORD = re.compile(
    r"(?:^|api|access|auth|private|secret|ssh|sign(?:ing)?|encryption)keys?$"
    r"|(?:token|secrets?|pass(?:word|wd|phrase|code)s?|pwd|credentials?|creds?|auth|authorization|bearer|cookie)$"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s?#]*@")
_PAIR = re.compile(
    r"""(?P<start>(?<![\w.-])(?P<name>[\w.-]{1,100})["']?\s*[:=](?!//)\s*["']?)(?:bearer |basic )?[^\s"',;&}]+""",
    re.IGNORECASE,
)
_LONG = re.compile(r"[\w.+-]{20,}", re.ASCII)
_UNBROKEN = re.compile(r"[A-Za-z0-9+]{20,}")
_OPTION_NAME = re.compile(r"--[A-Za-z][\w.-]*|-[A-Za-z]{1,3}(?==|$)|-[A-Za-z]")  # -pVALUE is -p
# between small letters, capitals and digits: about 0.5 in random text, 0.3 in CamelCase
_CHANGES_PER_CHARACTER = 0.34


def has_secret_name(name: str) -> bool:
    """Whether the values of such an option or variable are likely to be secrets.

    >>> [has_secret_name(name) for name in ("--api-key", "HF_TOKEN", "dbPassword", "--tokenizer", "--max-tokens")]
    [True, True, True, False, False]
    """
    return any(_SECRET_WORD.search(word.lower()) for word in _WORD.findall(name))


def without_secrets(text: str) -> str:
    """A text with `***` for values after a name of a secret, user information of URLs, and long
    random strings.

    >>> without_secrets("https://me:hunter2@host/data?token=abc")
    'https://***@host/data?token=***'
    """
    shown = _USER_INFORMATION.sub(f"{HIDDEN}@", text)
    shown = _PAIR.sub(
        lambda pair: pair["start"] + HIDDEN if has_secret_name(pair["name"]) else pair[0], shown
    )
    return _LONG.sub(
        lambda long: HIDDEN if any(map(_is_random, _UNBROKEN.findall(long[0]))) else long[0], shown
    )


def _is_random(text: str) -> bool:
    kinds = [
        "digit" if character.isdigit() else "capital" if character.isupper() else "small"
        for character in text
    ]
    changes = sum(first != second for first, second in itertools.pairwise(kinds))
    return "digit" in kinds and changes >= _CHANGES_PER_CHARACTER * len(text)


def command_without_secrets(command: str) -> str:
    """A shell command in which values of options that look like secrets are `***`.

    >>> command_without_secrets("train.py --lr 0.1 --api-key 1234 --url=http://a:b@host")
    'train.py --lr 0.1 --api-key *** --url=http://***@host'
    """
    words = _words(command)
    shown = _words_without_secrets(words)
    return command if shown == words else " ".join(map(_quoted, shown))


def _words_without_secrets(words: Sequence[str]) -> list[str]:
    shown = []
    is_value = False
    for word in words:
        is_option = word.startswith("-")
        hidden = is_value and not word.startswith("--")
        name, equals, value = word.partition("=")
        if equals and value and "/" not in name and has_secret_name(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(HIDDEN if hidden else without_secrets(word))
        is_value = is_option and not hidden and not equals and has_secret_name(word)
    return shown


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation mark without its pair
        return command.split()


def _quoted(word: str) -> str:
    """The word as a shell needs it, but `***` alone without quotation marks."""
    is_plain = shlex.quote(rest := word.replace(HIDDEN, "x")) == rest
    return word if is_plain else shlex.quote(word)


def variables_without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of the environment with `***` for values that look like secrets."""
    return {
        name: HIDDEN if has_secret_name(name) else without_secrets(value)
        for name, value in variables.items()
    }


def options_of(command: str) -> str:
    """The script or module of a command and the names of its options, without values and folders.

    >>> options_of("-m package.train --lr=0.1 --data /home/me/images model.depth=8")
    '-m package.train --lr --data'
    >>> options_of("/home/me/train.py --lr 0.1")
    'train.py --lr'
    """
    first, *others = _words_without_secrets(_words(command)) or [""]
    is_module = first == "-m" and bool(others)
    program = f"-m {others[0]}" if is_module else first.rpartition("/")[2]
    names = (_OPTION_NAME.match(word) for word in others[is_module:])
    return " ".join([program, *(name[0] for name in names if name is not None)])
