"""TensorBoard event files as readings; needs the extra `importers`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.load import AnalysisError
from analysis.readings import Reading, Readings

NAME = "*tfevents*"


def read_event_files(source: Path, incomplete_end: bool) -> Readings:
    """Scalars of all event files of one run, in the order in which the files were begun.

    `source` is the run's folder or one file.  Raises AnalysisError where it holds no event file or several
    runs, and where a file is damaged; one that ends in an incomplete record is read up to there with
    `incomplete_end`.
    """
    files = _files(source)
    readings: list[Reading] = []
    remarks: list[str] = []
    others: set[str] = set()
    contents = {file: list(_events(file, incomplete_end, remarks)) for file in files}
    files.sort(key=lambda file: contents[file][0].wall_time)  # every file begins with an event of its start
    for file in files:
        for event in contents[file]:
            for value in event.summary.value:
                number = _scalar(value)
                if number is None:
                    others.add(value.tag)
                else:
                    readings.append(Reading(value.tag, int(event.step), number))
    if others:
        remarks.append(f"no scalars, left out: {', '.join(sorted(others))}")
    if not readings:
        raise AnalysisError(f"{source}: its event files hold no scalars")
    return Readings(tuple(files), readings, remarks)


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise AnalysisError(f"{source}: there is no such file or folder")
    files = sorted(path for path in source.rglob(NAME) if path.is_file())
    folders = sorted({path.parent for path in files})
    if not files:
        raise AnalysisError(f"{source}: holds no event file (events.out.tfevents...)")
    if len(folders) > 1:
        listed = ", ".join(str(folder.relative_to(source)) for folder in folders)
        raise AnalysisError(f"{source}: holds several runs ({listed}); name the folder of one")
    return files


def _events(file: Path, incomplete_end: bool, remarks: list[str]) -> Iterator[Any]:
    """Events of a file; unlike TensorBoard's own loader it says where a file is damaged."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub import errors
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(file))
    count = 0
    while True:
        try:
            reader.GetNext()
            event = Event.FromString(reader.record())
        except errors.OutOfRangeError:
            break
        except (errors.DataLossError, DecodeError) as error:
            text = str(getattr(error, "message", error))
            if count == 0:
                raise AnalysisError(f"{file}: is no TensorBoard event file: {text}") from None
            if "truncated" not in text:
                raise AnalysisError(
                    f"{file}: is damaged after record {count}: {text}; restore the file"
                ) from None
            if not incomplete_end:
                raise AnalysisError(
                    f"{file}: ends in an incomplete record after record {count}; restore the file, or import "
                    "what comes before with --incomplete-end"
                ) from None
            remarks.append(f"{file.name} ends in an incomplete record, which was left out")
            break
        count += 1
        yield event
    if count == 0:
        raise AnalysisError(f"{file}: is empty, and no event file")


def _scalar(value: Any) -> float | None:
    """The number of a summary value, in the writer's old form or the new one; None for any other kind."""
    from tensorboard.util.tensor_util import make_ndarray

    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    plugin = value.metadata.plugin_data.plugin_name
    if kind != "tensor" or plugin not in ("", "scalars"):
        return None
    array = make_ndarray(value.tensor)
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiu" else None
