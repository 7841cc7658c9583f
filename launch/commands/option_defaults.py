"""What the commands take for options that are not given, told by --help and by docs/commands.md. Imports no torch."""

from typing import Any

from dpscope.launch.equality.settings import DEFAULTS as EQUAL_SETTINGS
from dpscope.launch.equality.settings import EQUALITY_BATCH_SIZES
from dpscope.launch.planning.cells import DEFAULT_BATCH_SIZES, DEFAULT_MODELS, DEFAULT_REPEATS, DEFAULT_STEPS
from dpscope.launch.planning.run_config import flag_name, load_config
from dpscope.launch.training.cells import TRAINING_BATCH_SIZE
from dpscope.launch.training.settings import load_train_config
from dpscope.profiling.records.settings import settings_of, shown

_OF_READING = {
    "analyze": {"--figures": "those of the report that is there; png for the first"},
    "compare": {"--fail-over": "5%"},
}
_DEVICES = "all GPUs in powers of two; 1,2 on the CPU"


def defaults(command: str) -> dict[str, str]:
    """Defaults of the settings of `run`, `train` and `equal`, by option; other commands' stand in their signatures."""
    models = _by_device(*(DEFAULT_MODELS[kind] for kind in ("cuda", "cpu")))
    if command == "run":
        return _told(load_config(None, {})) | {
            "--devices": _DEVICES,
            "--batch-size": _by_device(*(shown(DEFAULT_BATCH_SIZES[kind]) for kind in ("cuda", "cpu"))),
            "--steps": _by_device(*(str(DEFAULT_STEPS[kind]) for kind in ("cuda", "cpu"))),
            "--model": models,
            "--repeats": _by_device(*(str(DEFAULT_REPEATS[kind]) for kind in ("cuda", "cpu"))),
            "--ddp-alone": _by_device("on", "off"),
        }
    if command == "train":
        config = load_train_config(None, {})
        told = {option: default for option, default in _told(config).items() if option != "--seed"}
        return told | {"--devices": _DEVICES, "--batch-size": str(TRAINING_BATCH_SIZE)}
    if command == "equal":
        batch_size = _by_device(str(EQUALITY_BATCH_SIZES["cuda"]), str(EQUALITY_BATCH_SIZES["cpu"]))
        settings = _told(load_config(None, EQUAL_SETTINGS)) | {"--batch-size": batch_size, "--model": models}
        return {option: default for option, default in settings.items() if option != "--samples"}
    return _OF_READING.get(command, {})


def _told(config: Any) -> dict[str, str]:
    """The settings of a configuration that are values, by option; a switch that is off is not told."""
    values = {flag_name(name): value for name, value in settings_of(config).items()}
    return {
        option: "on" if value is True else f"{value:g}" if isinstance(value, float) else shown(value)
        for option, value in values.items()
        if value is not None and value is not False and value not in ((), ("off",))
    }


def _by_device(cuda: str, cpu: str) -> str:
    return f"{cuda}; {cpu} on the CPU"
