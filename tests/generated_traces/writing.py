"""Writes a trace as Kineto does, or as other tools save it again."""

import gzip
import json
from pathlib import Path
from typing import Literal

from tests.generated_traces.model import Trace

Layout = Literal["kineto", "one_line", "indented"]
# made once: a trace asks for tens of thousands of texts
_json = json.JSONEncoder(ensure_ascii=False).encode


def write_trace(trace: Trace, path: Path, layout: Layout = "kineto", keep: float = 1.0) -> Path:
    """Write a trace, compressed if the name ends in `.gz`, and return its path.

    `keep` < 1 leaves out the end of the text, as a killed job does; the compressed file itself
    stays whole.
    """
    text = trace_text(trace, layout).encode()
    text = text[: round(len(text) * keep)]
    path.write_bytes(
        gzip.compress(text, compresslevel=1, mtime=0) if path.suffix == ".gz" else text
    )
    return path


def cut_file(path: Path, keep: float) -> Path:
    """Leave out the end of a file's bytes, whatever they are."""
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * keep)])
    return path


def trace_text(trace: Trace, layout: Layout = "kineto") -> str:
    """A trace's JSON: one event after another over several lines, all on one line, or indented
    throughout.
    """
    if layout == "one_line":
        return json.dumps(trace, ensure_ascii=False)
    if layout == "indented":
        return json.dumps(trace, ensure_ascii=False, indent=2)
    members = [_member(key, value) for key, value in trace.items()]
    return "\n{\n" + ",\n".join(members) + "\n}\n"


def _member(key: str, value: object) -> str:
    if key == "traceEvents" and isinstance(value, list):
        return '  "traceEvents": [\n' + ",\n".join(_event_text(event) for event in value) + "\n  ]"
    return f'  "{key}": {json.dumps(value, ensure_ascii=False)}'


def _event_text(event: Trace) -> str:
    """`{ph, cat, name, pid, tid` on the first line, times on the next, the arguments on separate
    lines.
    """
    lines = ["  {", "   "]
    for key, value in event.items():
        if key == "args":
            continue
        if key == "ts" and event.get("ph") == "X":
            lines.append("   ")
        lines[-1] += f' "{key}": {_number(value) if key in ("ts", "dur") else _json(value)},'
    if "args" in event:
        arguments = ", ".join(
            f"{_json(key)}: {_json(value)}" for key, value in event["args"].items()
        )
        lines += ['    "args": {', f"      {arguments}", "    }"]
    return "\n".join([*lines, "  }"]).replace(",\n  }", "\n  }")


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else _json(value)
