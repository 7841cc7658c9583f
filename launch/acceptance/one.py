"""One check in a process of its own: `python -m dpscope.launch.acceptance.one FUNCTION FOLDER KIND GPUS`.

Its verdicts go to FOLDER/verdicts.json; without that file the check has failed, for whatever reason the log tells.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from dpscope.launch.acceptance.verdict import CheckVerdict
from dpscope.launch.acceptance.workplace import Workplace
from dpscope.launch.jobs.devices import DeviceType
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json

VERDICTS_NAME = "verdicts.json"


def main() -> None:
    """Run the check that the arguments name."""
    function, folder, kind, gpus = sys.argv[1:5]
    module, _, name = function.partition(":")
    place = Workplace(Path(folder), cast(DeviceType, kind), int(gpus))
    place.folder.mkdir(parents=True, exist_ok=True)
    path = module if "." in module else f"dpscope.launch.acceptance.{module}"
    check: Callable[[Workplace], list[CheckVerdict]] = getattr(importlib.import_module(path), name)
    try:
        verdicts = check(place)
    except DpscopeError as error:
        sys.exit(f"dpscope: {error}")
    write_json(place.folder / VERDICTS_NAME, verdicts)


if __name__ == "__main__":
    main()
