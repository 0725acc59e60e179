"""A user's own reader behind the Reader protocol: what happens when it breaks its contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from elasticdl.data.custom import CustomReader
from elasticdl.errors import DataError


class Letters:
    """Five letters in one shard that starts at 10."""

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {"letters": (10, 5)}

    def read_records(self, task: Any) -> Iterator[str]:
        assert task.name == task.shard_name == "letters"
        yield from "abcde"[task.start - 10 : task.end - 10]


def test_record_numbers_start_where_the_shard_does() -> None:
    reader = CustomReader(Letters(), "odps://table")
    assert reader.describe().records == 5
    assert reader.describe().path == "odps://table"
    assert reader.read("letters", 1, 3) == ["b", "c"]


def test_metadata_may_be_a_mapping_an_object_or_absent() -> None:
    class Columns:
        def __init__(self) -> None:
            self.column_names = ["a"]

    reader = Letters()
    assert CustomReader(reader).metadata == {}
    reader.metadata = {"k": 1}  # type: ignore[attr-defined]
    assert CustomReader(reader).metadata == {"k": 1}
    reader.metadata = Columns()  # type: ignore[attr-defined]
    assert CustomReader(reader).metadata == {"column_names": ["a"]}


def test_a_reader_without_the_methods_gets_the_contract_in_the_error() -> None:
    with pytest.raises(
        DataError, match=r"custom_data_reader object: it has no method create_shards.*read_records\(task\)"
    ):
        CustomReader(object())


@pytest.mark.parametrize("shards", [None, {}, [("a", 1)], {"a": 5}, {"a": (0, "5")}, {"a": (-1, 5)}, {3: (0, 5)}])
def test_shards_of_a_wrong_shape_are_shown(shards: Any) -> None:
    class Wrong(Letters):
        def create_shards(self) -> Any:
            return shards

    with pytest.raises(DataError, match=r"custom_data_reader Wrong: create_shards\(\) returned"):
        CustomReader(Wrong()).describe()


def test_too_few_records_are_counted() -> None:
    class Short(Letters):
        def read_records(self, task: Any) -> Iterator[str]:
            yield "a"

    with pytest.raises(DataError, match="yielded 1 records for 10 to 15 of shard 'letters'"):
        CustomReader(Short()).read("letters", 0, 5)


def test_the_users_own_exception_passes_through() -> None:
    class Broken(Letters):
        def read_records(self, task: Any) -> Iterator[str]:
            raise ConnectionError("the table is gone")

    with pytest.raises(ConnectionError, match="the table is gone"):
        CustomReader(Broken()).read("letters", 0, 1)


def test_close_reaches_the_users_reader() -> None:
    class Closing(Letters):
        closed = False

        def close(self) -> None:
            self.closed = True

    user = Closing()
    CustomReader(user).close()
    CustomReader(Letters()).close()
    assert user.closed
