"""Values that others may overwrite, sealed with a secret and read without control characters."""

import hashlib
import hmac
from typing import Any, TypeVar

import msgspec

_SEAL = 64  # hexadecimal digits of SHA-256
_Kind = TypeVar("_Kind")


def sealed(secret: str, name: str, value: object) -> str:
    """The value as JSON behind its seal (HMAC, RFC 2104): nobody without the secret can make one, or move one to another name."""
    content = msgspec.json.encode(value)
    return (_seal(secret, name, content) + content).decode()


def unsealed(secret: str, name: str, stored: bytes, kind: type[_Kind]) -> _Kind:
    """What was sealed, fit to be printed; raises ValueError for anything else."""
    content = stored[_SEAL:]
    if not hmac.compare_digest(stored[:_SEAL], _seal(secret, name, content)):
        raise ValueError("its seal is wrong")
    try:
        return msgspec.convert(printable(msgspec.json.decode(content)), kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def printable(value: Any) -> Any:
    """Plain data whose texts have a space in place of each character that a terminal might act on."""
    if isinstance(value, str):
        return "".join(one if one.isprintable() else " " for one in value)
    if isinstance(value, list):
        return [printable(one) for one in value]
    return {key: printable(one) for key, one in value.items()} if isinstance(value, dict) else value


def _seal(secret: str, name: str, content: bytes) -> bytes:
    return hmac.new(secret.encode(), name.encode() + b"\0" + content, hashlib.sha256).hexdigest().encode()
