"""The job's data as a worker, or the check before the job, opens it."""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl.data.custom import CustomReader
from elasticdl.data.dataset import Dataset
from elasticdl.data.files import Record
from elasticdl.data.reader import Reader, open_reader
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.job.spec import JobSpec


class UsersReader:
    """The model file's own reader; what it raises carries the user's traceback."""

    def __init__(self, code: ModelFile, reader: CustomReader) -> None:
        self._code, self._reader = code, reader

    @property
    def metadata(self) -> Mapping[str, object]:
        return self._reader.metadata

    def describe(self) -> Dataset:
        with self._code.running("asking the custom data reader for its shards"):
            return self._reader.describe()

    def read(self, name: str, start: int, end: int) -> list[Record]:
        with self._code.running("reading with the custom data reader"):
            return self._reader.read(name, start, end)

    def close(self) -> None:
        self._reader.close()


def open_source(spec: JobSpec, code: ModelFile, path: str, flag: str) -> Reader:
    """The reader of a path: the model file's own where it has one, else by the format of the files."""
    if code.custom_data_reader is None:
        return open_reader(path, spec.data_reader_params, flag=flag)
    with code.running(f"calling {spec.custom_data_reader}"):
        made = code.custom_data_reader(path, **spec.data_reader_params)
    return UsersReader(code, CustomReader(made, path))
