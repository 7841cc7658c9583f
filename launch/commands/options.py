"""Options that several commands of `dpscope` share: type and help text of each flag. Imports typer alone."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperOption

from dpscope.launch.commands.idle_options import check_options
from dpscope.profiling.records.strategies import STRATEGY_LIST
from dpscope.profiling.records.typed_text import choose_from, parse_size
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.analysis.traces.reading.limits import ReadLimits
    from dpscope.profiling.records.links import LinkRate

DEFAULT_OUT = Path("runs/default")
Out = Annotated[Path, typer.Option(help="the run folder; what is done there already is kept")]

Strategy = Annotated[str | None, typer.Option(help=f"{STRATEGY_LIST}, or several: single,ddp")]
Devices = Annotated[str | None, typer.Option(help="device counts, such as 1,2,4; 2x4 is 2 nodes with 4 each")]
BatchSize = Annotated[
    str | None, typer.Option(help="per device (weak) or global (strong): 32,128, or 32x4 for 32, 128, 512, ...")
]
Scaling = Annotated[str | None, typer.Option(help="weak, strong or both")]
Model = Annotated[
    str | None,
    typer.Option(
        help="auto, resnet18_cifar, resnet8_cifar, gpt_5m, a torchvision model, or your own package.module:function"
    ),
]
Data = Annotated[str | None, typer.Option(help="synthetic, fake, digits or cifar10")]
DataDir = Annotated[str | None, typer.Option(help="where cifar10 lies")]
Download = Annotated[bool | None, typer.Option("--download/--no-download", help="fetch cifar10")]
SamplesPerEpoch = Annotated[int | None, typer.Option(help="samples an epoch of synthetic and fake data")]
Workers = Annotated[int | None, typer.Option(help="loader workers per process")]
WorkersTotal = Annotated[int | None, typer.Option(help="loader workers per cell, shared by its processes")]
Transforms = Annotated[
    Literal["per-batch", "per-image"] | None,
    typer.Option(
        help="images are transformed a batch at a time from memory, or one by one from PIL images by torchvision's transforms"
    ),
]
PinMemory = Annotated[
    bool | None, typer.Option("--pin-memory/--no-pin-memory", help="copy batches to GPUs from page-locked memory")
]
Amp = Annotated[str | None, typer.Option(help="off, bf16 or fp16, or several: off,bf16")]
Lr = Annotated[float | None, typer.Option(help="SGD's learning rate")]
Momentum = Annotated[float | None, typer.Option(help="SGD's momentum")]
WeightDecay = Annotated[float | None, typer.Option(help="SGD's weight decay")]
Warmup = Annotated[int | None, typer.Option(help="untimed steps before anything is measured, 5 or more")]
Steps = Annotated[int | None, typer.Option(help="timed steps per repeat")]
Epochs = Annotated[int | None, typer.Option(help="whole timed epochs instead, after one untimed")]
TracedSteps = Annotated[int | None, typer.Option(help="whole traced steps; one more is traced")]
Repeats = Annotated[int | None, typer.Option(help="interleaved repeats of every cell")]
Detect = Annotated[
    str | None,
    typer.Option(metavar="CHANGE", help="instead of --repeats: as many as show a change of this size, such as 5%"),
]
DETECT_LIMIT_S = 1800.0
DetectLimit = Annotated[
    float | None,
    typer.Option(
        help=f"no repeat beyond the first three begins after so many seconds; {DETECT_LIMIT_S:g} unless given"
    ),
]
Seed = Annotated[int | None, typer.Option(help="of weights and data")]
Timeout = Annotated[float | None, typer.Option(help="seconds one cell's job may take")]
Device = Annotated[str | None, typer.Option(help="auto, cuda or cpu")]
CommHook = Annotated[
    str | None, typer.Option(help="gradients travel as none, fp16 or bf16 (DDP, FSDP), powersgd (DDP), or several")
]
NcclEngines = Annotated[
    str | None, typer.Option(help="torch's engine for NCCL: default, legacy or nccl2 (torch 2.15 or newer), or several")
]
DdpArgs = Annotated[
    str | None,
    typer.Option(help="more arguments of DDP, as batched_grad_copy=true; several variants: default;NAME=VALUE"),
]
BucketMb = Annotated[
    str | None, typer.Option(help="DDP's bucket cap in MiB, or with a unit (25MB), or default, or several")
]
Overlap = Annotated[str | None, typer.Option(help="on, off (one bucket, after backward), or on,off")]
GradientAsBucketView = Annotated[
    bool | None,
    typer.Option("--gradient-as-bucket-view/--no-gradient-as-bucket-view", help="DDP: gradients live in the buckets"),
]
StaticGraph = Annotated[
    bool | None, typer.Option("--static-graph/--no-static-graph", help="DDP: the graph never changes")
]
Compile = Annotated[str | None, typer.Option(help="torch.compile: off, a mode such as default, aot_eager, or several")]
Accumulate = Annotated[str | None, typer.Option(help="micro-batches a step, or several: 1,4")]
BroadcastBuffers = Annotated[str | None, typer.Option(help="on, off, or on,off")]
DdpAlone = Annotated[bool | None, typer.Option("--ddp-alone/--no-ddp-alone", help="also measure DDP on one device")]
Config = Annotated[Path | None, typer.Option(help="a TOML file with the same settings; flags win")]
Wandb = Annotated[bool, typer.Option("--wandb", help="mirror the scalars to wandb, offline unless WANDB_MODE is set")]
WandbOnline = Annotated[bool, typer.Option("--wandb-online", help="mirror them to wandb's server")]

GlobalBatchSize = Annotated[
    str | None, typer.Option(help="of a step over all devices (strong) or per device (weak): 32")
]
TrainScaling = Annotated[str | None, typer.Option(help="strong: same global batch everywhere; weak: it grows")]
TrainEpochs = Annotated[int | None, typer.Option("--epochs", help="epochs of every training")]
Seeds = Annotated[str | None, typer.Option(help="0,1,2: a training of every cell with each")]
TrainModel = Annotated[
    str | None,
    typer.Option("--model", help="resnet8_cifar, resnet18_cifar, a torchvision model, or package.module:function"),
]
TrainData = Annotated[str | None, typer.Option("--data", help="digits, cifar10 or fake")]
Augment = Annotated[bool | None, typer.Option("--augment/--no-augment", help="random shifts, and flips of cifar10")]
FakeSamples = Annotated[int | None, typer.Option("--samples", help="samples an epoch of fake data")]
LearningRateScaling = Annotated[str | None, typer.Option(help="none, sqrt or linear in the growth of the global batch")]
WarmupEpochs = Annotated[int | None, typer.Option(help="epochs over which the learning rate grows, step by step")]
Milestones = Annotated[str | None, typer.Option(help="6,8: epochs after which it is multiplied by gamma")]
Gamma = Annotated[float | None, typer.Option(help="factor at every milestone")]
LabelSmoothing = Annotated[float | None, typer.Option(help="of the training loss, 0 for none")]
EvalBatchSize = Annotated[int | None, typer.Option(help="samples a device tests at a time")]
CheckpointSteps = Annotated[int | None, typer.Option(help="a checkpoint every so many steps, besides every epoch's")]
MaxRestarts = Annotated[int | None, typer.Option(help="times torchrun restarts a failed training from its checkpoint")]
ResumeFrom = Annotated[
    str | None,
    typer.Option(help="previous: the checkpoint before the last; or a file, of any strategy, to begin trainings from"),
]
TrainTimeout = Annotated[float | None, typer.Option("--timeout", help="seconds one training may take")]

Calibrate = Annotated[
    bool | None,
    typer.Option(
        "--calibrate/--no-calibrate", help="time the collectives first, in seconds, unless the folder holds it"
    ),
]
Link = Annotated[
    str | None,
    typer.Option(help='the link between the devices, one way: 100Gb/s, 12.5GB/s, "PCIe 4.0 x16", "NVLink 3"'),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", help="predict from it: calibration.json, a run folder, or nccl-tests' logs"),
]
NcclLogs = Annotated[
    list[Path] | None,
    typer.Option("--nccl-log", help="NCCL's own log (NCCL_DEBUG=INFO) of the job: a file or a folder; may be repeated"),
]
ReportFolder = Annotated[Path | None, typer.Option("--report", help="where the report goes; a run's into its folder")]
TargetEfficiency = Annotated[float | None, typer.Option(help="judged in the findings: 0.8 is 80%")]
Published = Annotated[
    str | None,
    typer.Option(help="a CSV file of published values, which --tables shows beside the measured ones"),
]
TargetAccuracy = Annotated[float | None, typer.Option(help="percent: when did trainings reach it?")]
Figures = Annotated[
    str | None,
    typer.Option(help="files of figures beside the page: png, svg, pdf or some of them, or none"),
]
Nodes = Annotated[
    str | None,
    typer.Option(help="nodes that this command is started on, once on each: auto (from srun, mpirun, ...) or a number"),
]
NodeRank = Annotated[int | None, typer.Option(help="this node's number, from 0, if no launcher gives it")]
Rendezvous = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="where the nodes meet, on node 0, if no launcher gives it")
]
WaitForNodes = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="how long nodes wait for each other; 300 unless given", min=1)
]
Fresh = Annotated[bool, typer.Option("--fresh", help="measure every cell again")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the plan, its estimates and commands only")]
MaxBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="read no more of a trace than this, uncompressed, such as 4GB; default: 16 GiB"),
]
MaxEvents = Annotated[int | None, typer.Option(help="refuse a trace with more events than this; default: 10 million")]


_REPLACED = {"--link-gbps": "it is --link now, with a unit: --link 25GB/s (bytes) or --link 200Gb/s (bits)"}


class DefaultsInHelp(TyperCommand):
    """A command whose --help ends each option with its default, and whose one line in the list is never cut.

    An option that was replaced is refused by the name of the one that replaced it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; raises DpscopeError for an option that is no more."""
        before_files = args[: args.index("--")] if "--" in args else args
        for name in (one.partition("=")[0] for one in before_files):
            if name in _REPLACED:
                raise DpscopeError(f"{name}: {_REPLACED[name]}")
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            if wrong := re.search(r"'([^']*)' is not one of (.*)\.$", error.message):
                known = re.findall(r"'([^']*)'", wrong[2])
                error.message = f"{wrong[1]!r}: {choose_from(wrong[1], known)}"
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer does, of options that say what they are by default."""
        from dpscope.launch.commands.option_defaults import defaults

        found = defaults(self.name or "")
        for option in self.params:
            if isinstance(option, TyperOption) and (default := found.get(option.opts[0])):
                option.help = f"{option.help or ''}  [default: {default}]"
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options under the headings of OPTION_GROUPS, in its order; what is in no group stands under "Options"."""
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", *OPTION_GROUPS, "Options")}
        headings = {name: heading for heading, names in OPTION_GROUPS.items() for name in names}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                heading = "Arguments" if is_argument else headings.get(parameter.name or "", "Options")
                groups[heading].append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Run it, unless an option was given that does nothing."""
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        stated = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        flags = {parameter.name: parameter.opts[0] for parameter in self.params if parameter.name is not None}
        check_options(self.name or "", stated, ctx.params, flags)
        if "out" not in stated and ctx.params.get("config") is not None:
            from dpscope.launch.planning.run_config import out_folder

            ctx.params["out"] = out_folder(ctx.params["config"]) or ctx.params["out"]
        return super().invoke(ctx)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of its help, whole."""
        return (self.help or "").partition("\n")[0]


OPTION_GROUPS = {
    "What is compared": (
        *("strategy", "devices", "batch_size", "scaling", "amp", "comm_hook", "bucket_mb", "overlap", "accumulate"),
        "compile",
        "nccl_engine",
        "ddp_alone",
        *(
            "gradient_as_bucket_view",
            "static_graph",
            "ddp_args",
            "broadcast_buffers",
            "sync_batch_norm",
            "freeze_batch_norm",
        ),
    ),
    "Model and data": (
        *("model", "data", "data_dir", "download", "augment", "samples", "workers", "workers_total", "pin_memory"),
        *(
            "transforms",
            "lr",
            "learning_rate_scaling",
            "warmup_epochs",
            "milestones",
            "gamma",
            "momentum",
            "weight_decay",
        ),
        *("label_smoothing", "dtype", "seed", "seeds"),
    ),
    "How much is measured": (
        *(
            "warmup",
            "steps",
            "epochs",
            "traced_steps",
            "repeats",
            "detect",
            "detect_limit",
            "iterations",
            "collectives",
        ),
        *(
            "min_bytes",
            "max_bytes",
            "max_events",
            "eval_batch_size",
            "checkpoint_steps",
            "max_restarts",
            "timeout",
            "device",
        ),
    ),
    "Models and targets": (*("calibrate", "calibration", "link", "target_efficiency", "target_accuracy", "published"),),
    "Files and output": (
        *(
            "config",
            "out",
            "report",
            "fresh",
            "resume_from",
            "dry_run",
            "output_format",
            "classic",
            "figures",
            "open_page",
        ),
        *("verbose", "quiet", "wandb", "wandb_online"),
    ),
    "Several nodes": ("nodes", "node_rank", "rendezvous", "wait_for_nodes"),
}  # how --help groups options of all commands, by the names of their parameters


def read_link(text: str | None) -> "LinkRate | None":
    """The link that --link states; raises DpscopeError for a text that states none."""
    if text is None:
        return None
    from dpscope.profiling.machine.link_text import parse_link

    try:
        return parse_link(text)
    except ValueError as error:
        raise DpscopeError(f"--link {error}") from error


def check_targets(target_efficiency: float | None = None, target_accuracy: float | None = None) -> None:
    """Raises DpscopeError for a target that is no such number."""
    if target_accuracy is not None and not 0 < target_accuracy <= 100:
        raise DpscopeError(f"--target-accuracy {target_accuracy:g}: must be above 0 and at most 100; 95 is 95%")
    if target_efficiency is not None and not 0 < target_efficiency <= 1:
        raise DpscopeError(f"--target-efficiency {target_efficiency:g}: must be above 0 and at most 1; 0.8 is 80%")


def read_figures(text: str | None) -> tuple[str, ...] | None:
    """The formats that --figures names; raises DpscopeError for another."""
    if text is None or text == "none":
        return None if text is None else ()
    formats = tuple(dict.fromkeys(text.split(",")))
    known = ("png", "svg", "pdf", "none")
    if unknown := [one for one in formats if one not in known[:3]]:
        raise DpscopeError(f"--figures {text}: {unknown[0]!r} is no format; {choose_from(unknown[0], known)}")
    return formats


def check_seconds(option: str, seconds: float | None) -> None:
    """Raises DpscopeError for a limit of time that is none."""
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise DpscopeError(f"{option} {seconds:g}: must be above 0 seconds")


def read_size(option: str, text: str | None, unit_bytes: int = 1) -> float | None:
    """The bytes of a size such as ``4096``, ``4 MB`` or ``4MiB``; raises DpscopeError for a text that states none."""
    if text is None:
        return None
    try:
        return parse_size(text, unit_bytes)
    except ValueError as error:
        raise DpscopeError(f"{option} {error}") from error


def read_limits(max_bytes: str | None, max_events: int | None) -> "ReadLimits":
    """The limits of one trace file; raises DpscopeError for one that leaves nothing to read."""
    from dpscope.analysis.traces.reading.limits import DEFAULT_LIMITS, ReadLimits

    size = read_size("--max-bytes", max_bytes)
    if max_events is not None and max_events < 1:
        raise DpscopeError(f"--max-events {max_events}: must be 1 or more")
    return ReadLimits(
        max(1, round(size)) if size else DEFAULT_LIMITS.max_bytes, max_events or DEFAULT_LIMITS.max_events
    )


OpenPage = Annotated[bool, typer.Option("--open", help="open the report's page in the browser")]
Verbose = Annotated[bool, typer.Option("--verbose", help="print every table and finding, not only the first screen")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print the report's path alone")]


def detail(verbose: bool, quiet: bool) -> Literal["summary", "everything", "path"]:
    """How much of a run is printed."""
    return "everything" if verbose else "path" if quiet else "summary"
