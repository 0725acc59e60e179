"""What is particular to CSV, TFRecord, Parquet and image folders."""

from __future__ import annotations

import csv
import io
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data.images import damage
from elasticdl.data.reader import open_reader
from elasticdl.data.tfrecord import TFRecordFile, masked_crc
from elasticdl.errors import DataError, UsageError
from tests.data.sources import png

cells = st.text(alphabet='ab", \n;é\t', max_size=8) | st.just("two\r\nlines")


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=200),
    ends=st.sampled_from(["\n", "\r\n"]),
    data=st.data(),
)
def test_csv_written_by_pythons_writer_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ends: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator=ends).writerows([("left", "right"), *rows])
    reader = open_reader(str(path))
    assert reader.describe().records == len(rows)
    start = data.draw(st.integers(0, len(rows)))
    expected = [{"left": left, "right": right} for left, right in rows]
    assert reader.read("a.csv", start, len(rows)) == expected[start:]


def test_rows_that_cross_the_scanners_windows_are_counted_once(tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("id", "text"))
    long = 'line one\nline "two", ' * 40
    writer.writerows((number, long if number % 3 else "plain") for number in range(15_000))
    (tmp_path / "a.csv").write_text(text.getvalue(), newline="")
    assert (tmp_path / "a.csv").stat().st_size > 8 * 2**20, "several windows of four MiB"
    reader = open_reader(str(tmp_path))
    assert reader.describe().records == 15_000
    for number in (0, 4_999, 9_998, 14_999):
        assert reader.read("a.csv", number, number + 1) == [
            {"id": str(number), "text": long if number % 3 else "plain"}
        ]


def test_blank_lines_a_byte_order_mark_and_a_missing_last_line_break_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfa,b\r\n\r\n1,2\n\n\n3,4")
    reader = open_reader(str(tmp_path))
    assert reader.describe().records == 2
    assert reader.read("a.csv", 0, 2) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_the_delimiter_and_the_columns_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;2\n3;4\n")
    for delimiter in (";", "semicolon"):
        reader = open_reader(str(tmp_path), {"delimiter": delimiter, "columns": "x, y"})
        assert reader.read("a.csv", 0, 2) == [{"x": "1", "y": "2"}, {"x": "3", "y": "4"}]
    (tmp_path / "a.csv").rename(tmp_path / "b.tsv")
    (tmp_path / "b.tsv").write_text("x\ty\n1\t2\n")
    assert open_reader(str(tmp_path)).read("b.tsv", 0, 1) == [{"x": "1", "y": "2"}]


def test_quotes_may_be_ordinary_characters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('size,name\n5" pipe,x\n6,y\n')
    with pytest.raises(DataError, match="quoting=none"):
        open_reader(str(tmp_path)).describe()
    reader = open_reader(str(tmp_path), {"quoting": "none"})
    assert reader.read("a.csv", 0, 2) == [{"size": '5" pipe', "name": "x"}, {"size": "6", "name": "y"}]


@pytest.mark.parametrize(
    ("text", "offset", "what"),
    [
        (b"a,b\n1,2\n3\n", 8, "has 1 columns, the header has 2"),
        (b'a,b\n1,"2\n3,4\n', 6, "the quote here is not closed"),
        (b"a,b\n", 4, "it has a header row but no records"),
        (b"\n\n", 0, "it has no header row"),
        (b"a,a\n1,2\n", 0, "has a column name twice"),
        (b"a,b\n1,\xff\n", 6, "it is not UTF-8 text"),
    ],
)
def test_wrong_csv_names_the_byte(tmp_path: Path, text: bytes, offset: int, what: str) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(DataError, match=rf"a\.csv at byte {offset}: .*{what}"):
        open_reader(str(tmp_path)).describe()


def test_a_short_row_in_the_middle_is_found_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n5,6\n")
    reader = open_reader(str(tmp_path))
    assert reader.describe().records == 3
    with pytest.raises(DataError, match="row 1 from here has 1 columns"):
        reader.read("a.csv", 0, 3)


@pytest.mark.parametrize(("first", "second"), [("a,b\n1,2\n", "a,c\n1,2\n"), ("a,b\n1,2\n", "b,a\n1,2\n")])
def test_files_with_other_columns_are_named(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "1.csv").write_text(first)
    (tmp_path / "2.csv").write_text(second)
    with pytest.raises(DataError, match=r"2\.csv.*are not those of 1\.csv"):
        open_reader(str(tmp_path)).describe()


def test_wrong_csv_parameters_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(UsageError) as caught:
        open_reader(str(tmp_path), {"delimiter": ";;", "quoting": "sometimes", "columns": "a,a"})
    assert len(caught.value.problems) == 3


def test_the_masked_checksum_is_the_published_one() -> None:
    # CRC-32C of "123456789" is 0xe3069283 in every catalogue; masked: rotated by 15, plus 0xa282ead8.
    rotated = (0xE3069283 >> 15) | (0xE3069283 << 17) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_a_tfrecord_made_by_hand_is_read(tmp_path: Path) -> None:
    length = struct.pack("<Q", 5)
    record = length + struct.pack("<I", masked_crc(length)) + b"hello" + struct.pack("<I", masked_crc(b"hello"))
    (tmp_path / "a").write_bytes(record * 200)
    assert TFRecordFile(tmp_path / "a").read(63, 130) == [b"hello"] * 67


def test_a_wrong_length_in_a_tfrecord_differs_from_a_truncated_file(tmp_path: Path) -> None:
    length = struct.pack("<Q", 5)
    record = length + struct.pack("<I", masked_crc(length)) + b"hello" + struct.pack("<I", masked_crc(b"hello"))
    (tmp_path / "a").write_bytes(record + b"\x06" + record[1:])
    with pytest.raises(DataError, match="at byte 21: corrupt"):
        TFRecordFile(tmp_path / "a")
    (tmp_path / "a").write_bytes(record * 2 + record[:15])
    with pytest.raises(DataError, match=r"at byte 42: the file is truncated: this record ends 6 bytes"):
        TFRecordFile(tmp_path / "a")


def test_parquet_without_pyarrow_names_what_to_install(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "a.parquet")
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from elasticdl.data.reader import open_reader\n"
        "from elasticdl.errors import UsageError\n"
        f"try: open_reader({str(tmp_path)!r})\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs pyarrow" in done.stdout
    assert "pip install 'elasticdl[parquet]'" in done.stdout


def test_reading_recordio_loads_neither_pyarrow_nor_a_framework() -> None:
    program = (
        "import sys, elasticdl.data.reader, elasticdl.data.ranges, elasticdl.data.example, elasticdl.data.convert\n"
        "heavy = {'pyarrow', 'torch', 'keras', 'tensorflow', 'rich', 'sklearn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_parquet_values_keep_their_types(tmp_path: Path) -> None:
    rows = [{"n": 1, "f": 0.5, "s": "é", "b": b"\x00", "missing": None, "flag": True, "list": [1, 2]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert open_reader(str(tmp_path)).read("a.parquet", 0, 1) == rows


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (png(1, 2), None),
        (png(1, 2)[:-1], "truncated"),
        (png(1, 2)[:20], "truncated"),
        (b"\xff\xd8\xff\xe0 jpeg \xff\xd9", None),
        (b"\xff\xd8\xff\xe0 jpeg ", "truncated"),
        (b"GIF89a...;", None),
        (b"GIF89a...", "truncated"),
        (b"BM" + struct.pack("<I", 10) + b"....", None),
        (b"BM" + struct.pack("<I", 11) + b"....", "truncated"),
        (b"RIFF" + struct.pack("<I", 4) + b"WEBP", None),
        (b"RIFF" + struct.pack("<I", 5) + b"WEBP", "truncated"),
        (b"plain text", "not a PNG, JPEG"),
    ],
)
def test_images_that_are_cut_are_seen_without_decoding_them(data: bytes, what: str | None) -> None:
    found = damage(data)
    assert (found is None) if what is None else (found is not None and what in found[0])


def test_a_class_folder_without_images_is_named(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    (tmp_path / "ant" / "1.png").write_bytes(png(1, 1))
    with pytest.raises(DataError, match="bee: there is no image in this class folder"):
        open_reader(str(tmp_path)).describe()
