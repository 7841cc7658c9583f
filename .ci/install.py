"""Install this project by uv, which unpacks packages on all cores, from where pip would take them; by pip if uv cannot.

`PYTHON .ci/install.py CONSTRAINTS EXTRA,...` installs into PYTHON's environment.
"""

import ast
import os
import subprocess
import sys

# pip's settings that uv does not read, and uv's options for them
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
}
PIP = [sys.executable, "-m", "pip"]
QUIET = ["--quiet", "--disable-pip-version-check"]


def pip_settings() -> dict[str, list[str]]:
    """The values of each of pip's settings, of its files and of the environment."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    values: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        values.setdefault(name, []).extend(ast.literal_eval(value).split())
    return values


def install_by_uv(settings: dict[str, list[str]], wanted: list[str]) -> bool:
    """Whether uv could be had and has installed what is wanted."""
    if subprocess.run([*PIP, "install", *QUIET, "uv"], check=False).returncode != 0:
        return False
    options = [
        word
        for name, option in OPTIONS.items()
        for value in settings.get(name, [])
        for word in (option, value)
    ]
    environment = dict(os.environ)
    if certificates := settings.get("cert"):
        environment["SSL_CERT_FILE"] = certificates[0]
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    # the newest version of all indexes, as pip takes it
    command += ["--index-strategy", "unsafe-best-match", *options, *wanted]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main(constraints: str, extras: str) -> int:
    wanted = ["--constraint", constraints, "--editable", f".[{extras}]"]
    if install_by_uv(pip_settings(), wanted):
        return 0
    sys.stderr.write("uv cannot install these packages; pip installs them.\n")
    return subprocess.run(
        [*PIP, "install", *QUIET, "--no-compile", *wanted], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
