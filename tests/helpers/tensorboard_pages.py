"""A running TensorBoard server, read through its HTTP endpoints."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def running(*command: str | Path) -> Iterator[str]:
    """A server process, ended with the block; yields the address it prints."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+/", line):
                yield found[0]
                return
        pytest.fail(f"the server ended with status {process.wait()}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def get(
    address: str,
    path: str,
    body: dict[str, Any] | None = None,
    until: Callable[[Any], bool] = bool,
    **query: str,
) -> Any:
    """A JSON answer; retried while the server still loads and `until` does not hold."""
    url = f"{address}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    deadline = time.monotonic() + 60
    while True:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            url, data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                content = answer.read()
            found = json.loads(content) if content else None
        except (urllib.error.HTTPError, urllib.error.URLError):
            found = None
        if found and until(found):
            return found
        assert time.monotonic() < deadline, f"{url} gives nothing"
        time.sleep(0.3)


def scalars(address: str, run: str, tag: str, count: int) -> list[list[float]]:
    """[wall time, step, value] of a tag, once so many are there."""
    answer: list[list[float]] = get(
        address,
        "data/plugin/scalars/scalars",
        until=lambda found: len(found) >= count,
        run=run,
        tag=tag,
    )
    return answer


def hparams(address: str, count: int) -> list[dict[str, Any]]:
    """The sessions, once so many are there."""
    body = {
        "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN", "STATUS_RUNNING"],
        "colParams": [], "startIndex": 0, "sliceSize": 10,
    }  # fmt: skip
    groups: list[dict[str, Any]] = get(
        address,
        "data/plugin/hparams/session_groups",
        body,
        until=lambda found: len(found.get("sessionGroups", [])) >= count,
    )["sessionGroups"]
    return groups


SERVE = (
    "from pathlib import Path; import sys; from dpscope.launch.commands.tensorboard import serve; "
)
SERVE += "serve(Path(sys.argv[1]), 'localhost', 0, lambda address: print(address, flush=True))"


@contextmanager
def serving(logs: Path, scripts: Path) -> Iterator[str]:
    """dpscope's server on a folder of event files; `scripts` takes the program that starts it."""
    script = scripts / "serve.py"
    # its loaders are processes that import it
    script.write_text(f"if __name__ == '__main__':\n    {SERVE}\n")
    with running(script, logs) as address:
        yield address
