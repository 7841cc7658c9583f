"""TensorBoard event files, and trainings in TensorBoard while they run: a run per cell and seed.
Imports no torch.

R/tensorboard/training/<cell>/seed<k>/    one event file: a session of the HParams page and the
scalars of every epoch

Events are written with tensorboard's writer: torch's `add_hparams` makes a timestamped sub-run for
every call; here each summary goes into the run it belongs to.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dpscope.profiling.mirrors.mirror import (
    MEANINGS,
    TrainingMirror,
    WriteEpoch,
    training_scalars,
    training_settings,
)
from dpscope.profiling.records.training import EpochRecord, TrainConfig
from dpscope.profiling.store.ownership import EVENTS_SUFFIX, remove_events
from dpscope.profiling.store.shown_text import cleaned, one_line

_DT_STRING = 7

HyperParameter = str | float | int | bool


class EventLog(AbstractContextManager["EventLog"]):
    """One TensorBoard run: a folder with one event file. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder), filename_suffix=EVENTS_SUFFIX)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is buffered; nothing can be written afterwards."""
        self._writer.close()

    def scalar(
        self, tag: str, value: float, step: int, meaning: str, at_s: float | None = None
    ) -> None:
        """Write a number at a step and a Unix time (default: now); the tag holds the unit."""
        described = SummaryMetadata(summary_description=meaning)
        scalar = Summary.Value(tag=tag, simple_value=value, metadata=described)
        self._add(Summary(value=[scalar]), step, at_s)

    def flush(self) -> None:
        """Make everything written so far visible to readers."""
        self._writer.flush()

    def text(self, tag: str, markdown: str) -> None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(
            dtype=_DT_STRING,
            string_val=[cleaned(markdown).encode()],
            tensor_shape=TensorShapeProto(),
        )
        self._add(
            Summary(
                value=[Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)]
            )
        )

    def image(self, tag: str, png: bytes, width: int, height: int, description: str) -> None:
        """With what TensorBoard shows behind the image's information sign."""
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        metadata = SummaryMetadata(summary_description=cleaned(description))
        self._add(Summary(value=[Summary.Value(tag=tag, metadata=metadata, image=image)]))

    def experiment(
        self, hyperparameters: Mapping[str, Sequence[HyperParameter]], metrics: Mapping[str, str]
    ) -> None:
        """Declare the HParams page: each parameter with its values, and the metrics' meanings by
        tag.
        """
        infos = [
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), description=meaning)
            for tag, meaning in metrics.items()
        ]
        experiment = api_pb2.Experiment(metric_infos=infos)
        for name, values in hyperparameters.items():
            field, kind = _field_and_type(values[0] if values else "")
            differs = len(set(values)) > 1
            info = experiment.hparam_infos.add(name=name, type=kind, differs=differs)
            if field == "string_value":
                info.domain_discrete.extend(sorted({one_line(str(value)) for value in values}))
        self._hparams(
            metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment)
        )

    def session(
        self,
        hyperparameters: Mapping[str, HyperParameter],
        metrics: Mapping[str, float],
        meanings: Mapping[str, str],
    ) -> None:
        self.begin_session(hyperparameters)
        for tag, value in metrics.items():
            self.scalar(tag, value, 0, meanings[tag])
        self.end_session()

    def begin_session(self, hyperparameters: Mapping[str, HyperParameter]) -> None:
        """Begin a session of the HParams page; the scalars that follow are its metrics."""
        start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for name, parameter in hyperparameters.items():
            shown = one_line(parameter) if isinstance(parameter, str) else parameter
            setattr(start.hparams[name], _field_and_type(parameter)[0], shown)
        self._hparams(
            metadata.SESSION_START_INFO_TAG,
            plugin_data_pb2.HParamsPluginData(session_start_info=start),
        )

    def end_session(self) -> None:
        end = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time()
        )
        self._hparams(
            metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end)
        )

    def _hparams(self, tag: str, data: plugin_data_pb2.HParamsPluginData) -> None:
        data.version = metadata.PLUGIN_DATA_VERSION
        plugin_data = SummaryMetadata.PluginData(
            plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString()
        )
        value = Summary.Value(
            tag=tag, metadata=SummaryMetadata(plugin_data=plugin_data), tensor=metadata.NULL_TENSOR
        )
        self._add(Summary(value=[value]))

    def _add(self, summary: Summary, step: int = 0, at_s: float | None = None) -> None:
        self._writer.add_event(
            Event(wall_time=time.time() if at_s is None else at_s, step=step, summary=summary)
        )


def _field_and_type(parameter: HyperParameter) -> tuple[str, Any]:
    """The field of a protobuf Value that holds the parameter, and its type on the HParams page."""
    if isinstance(parameter, bool):
        return "bool_value", api_pb2.DATA_TYPE_BOOL
    if isinstance(parameter, str):
        return "string_value", api_pb2.DATA_TYPE_STRING
    return "number_value", api_pb2.DATA_TYPE_FLOAT64


def events_folder(run: Path) -> Path:
    return run / "tensorboard" / "training"


def training_folder(run: Path, record: EpochRecord) -> Path:
    return events_folder(run) / record.cell / f"seed{record.seed}"


def training_events(run: Path, config: TrainConfig | None) -> TrainingMirror:
    """Shows the trainings of a run folder in TensorBoard; nothing is written before the first
    epoch.
    """

    @contextmanager
    def mirrored(first: EpochRecord) -> Iterator[WriteEpoch]:
        folder = training_folder(run, first)
        remove_events(folder)
        trained = 0

        def write(record: EpochRecord) -> None:
            nonlocal trained
            for tag, value in training_scalars(record).items():
                log.scalar(tag, value, record.epoch, MEANINGS[tag], record.ended_at_s)
            log.flush()
            trained = record.epoch

        with EventLog(folder) as log:
            log.begin_session(training_settings(first, config))
            yield write
            # HParams calls a session without an end running
            if config is None or trained >= config.epochs:
                log.end_session()

    return TrainingMirror(mirrored)
