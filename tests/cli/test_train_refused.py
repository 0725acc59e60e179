"""Bad input to `elasticdl train`: a clear message and exit code 2, before anything starts and with nothing left."""

from __future__ import annotations

import fcntl
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from elasticdl.cli.job_dir import claim
from elasticdl.cli.main import main
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.data.tfrecord import TFRecordWriter
from elasticdl.job.names import JobPaths
from tests.cli.launched import MODELS, flip_byte, run_on_terminal, write_ids, write_manifest

MODEL = """
import numpy as np
import torch

def custom_model(): return torch.nn.Linear(1, 1)
def loss(labels, predictions): return predictions.sum()
def optimizer(parameters): return torch.optim.SGD(parameters, lr=0.1)
def feed(records, mode, metadata):
    return np.zeros((len(records), 1), np.float32), np.zeros(len(records), np.float32)
def eval_metrics_fn(): return {}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ids(tmp_path_factory.mktemp("refused") / "ids", 64)


class Asking:
    """Runs `elasticdl train` in this process and keeps what it said."""

    def __init__(self, folder: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state_dir, self._data, self._capsys = folder / "jobs", data, capsys
        self.output = ""

    def refusal(self, *flags: str) -> str:
        """What it complains about, having ended with code 2 and left no job behind."""
        given = {flag.partition("=")[0] for flag in flags}
        usual = {
            "--model_zoo": str(MODELS),
            "--model_def": "witness.custom_model",
            "--training_data": str(self._data),
            "--state_dir": str(self.state_dir),
            "--job_name": "refused",
        }
        words = [*flags, *(f"{k}={v}" for k, v in usual.items() if k not in given)]
        assert main(["train", *words]) == 2
        self.output, complaint = self._capsys.readouterr()
        assert "Traceback (most recent call last)" not in complaint.partition("\n")[0]
        assert not (self.state_dir / "refused" / "job.json").exists()
        return complaint


@pytest.fixture
def ask(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(tmp_path, data, capsys)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "zoo"
    folder.mkdir()
    return folder


# What the parser sees.


def test_an_unknown_flag_is_named_with_the_nearest(ask: Asking) -> None:
    assert "--num_worker=3: unknown flag. Did you mean --num_workers?" in ask.refusal("--num_worker=3")


def test_a_value_of_the_wrong_type_is_named(ask: Asking) -> None:
    assert "--num_epochs=many" in ask.refusal("--num_epochs=many")


def test_no_workers_at_all_are_refused(ask: Asking) -> None:
    assert "--num_workers=0: below 1" in ask.refusal("--num_workers=0")


# What only the check process sees.


def test_a_missing_data_directory_is_named(ask: Asking, tmp_path: Path) -> None:
    complaint = ask.refusal(f"--training_data={tmp_path / 'nowhere'}")
    assert f"--training_data={tmp_path / 'nowhere'}" in complaint


def test_an_empty_data_directory_is_named(ask: Asking, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"--training_data={tmp_path / 'empty'}" in ask.refusal(f"--training_data={tmp_path / 'empty'}")


def test_a_truncated_file_is_named_with_its_offset(ask: Asking, tmp_path: Path) -> None:
    folder = write_ids(tmp_path / "cut", 64)
    whole = (folder / "ids-1.recordio").read_bytes()
    (folder / "ids-1.recordio").write_bytes(whole[:-5])
    complaint = ask.refusal(f"--training_data={folder}")
    assert "ids-1.recordio at byte" in complaint
    assert "truncated" in complaint


def test_a_flipped_byte_in_a_recordio_chunk_is_named_with_the_offset_of_the_chunk(ask: Asking, tmp_path: Path) -> None:
    folder = write_ids(tmp_path / "flipped", 40000)
    victim = folder / "ids-1.recordio"
    second_chunk = 20 + int.from_bytes(victim.read_bytes()[12:16], "little")
    flip_byte(victim, second_chunk + 1000)
    complaint = ask.refusal(f"--training_data={folder}")
    damage = f"{victim} at byte {second_chunk}: the checksum of this chunk is wrong"
    assert f"--training_data={folder}: {damage}" in complaint
    assert "Copy or convert the file again" in complaint


def test_a_flipped_byte_in_a_tfrecord_is_named_with_the_offset_of_the_record(ask: Asking, tmp_path: Path) -> None:
    (tmp_path / "flipped").mkdir()
    for number in range(2):
        with TFRecordWriter(tmp_path / "flipped" / f"ids-{number}.tfrecord") as writer:
            for record in range(100):
                writer.write(record.to_bytes(8, "little"))
    size = 8 + 4 + 8 + 4  # length, its checksum, the record, its checksum
    flip_byte(tmp_path / "flipped" / "ids-0.tfrecord", 70 * size + 14)
    complaint = ask.refusal(f"--validation_data={tmp_path / 'flipped'}")
    assert f"--validation_data={tmp_path / 'flipped'}: " in complaint
    assert f"ids-0.tfrecord at byte {70 * size}: the checksum of this record is wrong" in complaint


def test_every_damaged_file_is_named(ask: Asking, tmp_path: Path) -> None:
    training, validation = write_ids(tmp_path / "training", 64, files=4), write_ids(tmp_path / "validation", 64)
    for damaged in (training / "ids-0.recordio", training / "ids-2.recordio", validation / "ids-1.recordio"):
        flip_byte(damaged, 40)
    (training / "ids-3.recordio").write_bytes((training / "ids-3.recordio").read_bytes()[:-1])
    complaint = ask.refusal(f"--training_data={training}", f"--validation_data={validation}")
    assert complaint.splitlines()[0] == "elasticdl train: 4 problems"
    for damaged in (training / "ids-0", training / "ids-2", training / "ids-3", validation / "ids-1"):
        assert f"{damaged}.recordio at byte 0" in complaint
    assert f"{training / 'ids-1'}" not in complaint


def test_a_damaged_image_is_named(ask: Asking, tmp_path: Path) -> None:
    for animal in ("cat", "dog"):
        (tmp_path / "pets" / animal).mkdir(parents=True)
        (tmp_path / "pets" / animal / "1.gif").write_bytes(b"GIF89a....;")
    (tmp_path / "pets" / "dog" / "2.gif").write_bytes(b"GIF89a....")
    complaint = ask.refusal(f"--training_data={tmp_path / 'pets'}")
    assert f"{tmp_path / 'pets' / 'dog' / '2.gif'} at byte 10: the image is truncated" in complaint


def test_a_damaged_page_of_a_parquet_file_is_named(ask: Asking, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    table = pyarrow.table({"id": list(range(10000))})
    pyarrow.parquet.write_table(table, tmp_path / "rows" / "a.parquet", compression="none", write_page_checksum=True)
    flip_byte(tmp_path / "rows" / "a.parquet", 5000)
    complaint = ask.refusal(f"--training_data={tmp_path / 'rows'}")
    assert "a.parquet at byte " in complaint
    assert "truncated, corrupt or not Parquet" in complaint


def test_a_check_that_takes_long_says_what_it_does(tmp_path: Path) -> None:
    """A small file that decompresses to much, linked many times: about a second of reading."""
    folder = tmp_path / "zeros"
    folder.mkdir()
    with RecordIOWriter(folder / "0.recordio", "gzip") as writer:
        for _ in range(100):
            writer.write(bytes(1 << 17))
    for number in range(1, 60):
        (folder / f"{number}.recordio").hardlink_to(folder / "0.recordio")
    (folder / "99.recordio").write_bytes((folder / "0.recordio").read_bytes())
    flip_byte(folder / "99.recordio", 500)
    words = [f"--model_zoo={MODELS}", "--model_def=witness.custom_model", f"--training_data={folder}"]
    command = [sys.executable, "-m", "elasticdl", "train", *words, f"--state_dir={tmp_path / 'jobs'}"]
    code, text = run_on_terminal(command)
    assert code == 2
    assert re.search(r"verifying --training_data: [\d,]+ of 6,100 records …", text)
    assert "99.recordio at byte " in text


def test_a_file_that_cannot_be_read_is_named(ask: Asking, tmp_path: Path) -> None:
    folder = write_ids(tmp_path / "linked", 64)
    (folder / "ids-9.recordio").symlink_to(tmp_path / "gone")
    assert "ids-9.recordio" in ask.refusal(f"--training_data={folder}")


def test_a_model_file_that_does_not_exist_is_named(ask: Asking) -> None:
    complaint = ask.refusal("--model_def=withness.custom_model")
    assert "--model_def" in complaint
    assert "withness.py" in complaint


def test_a_model_file_that_does_not_import_shows_the_users_own_traceback(ask: Asking, zoo: Path) -> None:
    (zoo / "broken.py").write_text("print('hello from the model')\nimport no_such_module_at_all\n")
    complaint = ask.refusal(f"--model_zoo={zoo}", "--model_def=broken.custom_model")
    assert "No module named 'no_such_module_at_all'" in complaint
    assert 'broken.py", line 2' in complaint
    assert "importlib" not in complaint
    assert "hello from the model" in ask.output


def test_a_model_file_without_loss_is_told_so(ask: Asking, zoo: Path) -> None:
    (zoo / "lossless.py").write_text(MODEL.replace("def loss(", "def lost("))
    complaint = ask.refusal(f"--model_zoo={zoo}", "--model_def=lossless.custom_model")
    assert "loss" in complaint
    assert "lossless.py" in complaint


def test_an_optimizer_that_is_not_supported_is_named(ask: Asking, zoo: Path) -> None:
    (zoo / "exotic.py").write_text(
        MODEL.replace("torch.optim.SGD(parameters, lr=0.1)", "torch.optim.Rprop(parameters)")
    )
    assert "Rprop" in ask.refusal(f"--model_zoo={zoo}", "--model_def=exotic.custom_model")


def test_a_model_that_kills_its_process_is_told_so(ask: Asking, zoo: Path) -> None:
    (zoo / "deadly.py").write_text(
        "import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    complaint = ask.refusal(f"--model_zoo={zoo}", "--model_def=deadly.custom_model")
    assert "the process that checked it was killed by SIGSEGV" in complaint
    assert "last words" in ask.output


def test_a_model_that_does_not_load_in_time_is_told_so(ask: Asking, zoo: Path) -> None:
    (zoo / "sleepy.py").write_text("import time\ntime.sleep(600)\n")
    complaint = ask.refusal(f"--model_zoo={zoo}", "--model_def=sleepy.custom_model", "--start_seconds=2")
    assert "loading it took longer than 2 s" in complaint


# What the launcher sees.


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as another job's master does
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_everything_that_is_wrong_is_said_at_once(ask: Asking, tmp_path: Path, taken_port: int) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    complaint = ask.refusal(
        f"--master_port={taken_port}",
        f"--output={tmp_path / 'full'}",
        f"--checkpoint_dir={tmp_path / 'file' / 'below'}",
        f"--checkpoint_dir_for_init={tmp_path / 'nowhere'}",
        f"--training_data={tmp_path / 'missing'}",
    )
    lines = complaint.splitlines()
    assert lines[0] == "elasticdl train: 5 problems"
    assert f"--master_port={taken_port}: this port cannot be used: Address already in use" in complaint
    assert "this directory holds files that are not an exported model" in complaint
    assert f"cannot be a directory: {tmp_path / 'file'} is a file" in complaint
    assert f"--checkpoint_dir_for_init={tmp_path / 'nowhere'}: there is no such directory" in complaint
    assert f"--training_data={tmp_path / 'missing'}" in complaint


def test_two_jobs_of_one_name_are_refused(ask: Asking) -> None:
    held = claim(JobPaths(ask.state_dir, "refused"))
    complaint = ask.refusal()
    held.release()
    assert "--job_name=refused: job refused is running since" in complaint
    assert "Stop it with `elasticdl stop refused`, or choose another --job_name." in complaint


def test_a_state_directory_that_cannot_be_used_is_named(ask: Asking, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    complaint = ask.refusal(f"--state_dir={tmp_path / 'file'}")
    assert f"--state_dir={tmp_path / 'file'}: jobs cannot be kept here" in complaint


def test_a_checkpoint_without_all_its_parts_is_refused(ask: Asking, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "version-7"
    write_manifest(checkpoint, {"ps-0": [{"name": "ps-0-of-1.0.safetensors", "bytes": 1, "crc32c": 1}]})
    complaint = ask.refusal(f"--checkpoint_dir_for_init={tmp_path / 'checkpoints'}")
    part = checkpoint / "ps-0-of-1.0.safetensors"
    assert f"{part}: this part of the checkpoint cannot be read (No such file or directory)" in complaint


def test_a_checkpoint_of_other_data_or_another_order_is_refused(ask: Asking, tmp_path: Path) -> None:
    write_manifest(tmp_path / "checkpoints", {}, num_minibatches_per_task=8)
    complaint = ask.refusal(f"--checkpoint_dir_for_init={tmp_path / 'checkpoints'}", "--minibatch_size=16")
    assert "--minibatch_size=16: the checkpoint was made with 32. Give that" in complaint
    assert "--seed=0: the checkpoint was made with 5. Give that" in complaint
    assert "not the data that the checkpoint was made with" in complaint
    assert "--num_minibatches_per_task" not in complaint


def test_a_refused_job_leaves_an_earlier_one_of_its_name_alone(ask: Asking, tmp_path: Path) -> None:
    root = ask.state_dir / "refused"
    root.mkdir(parents=True)
    (root / "launcher.pid").write_text("1\n2.0\n")
    (root / "result.json").write_text('{"outcome": "succeeded"}')
    ask.refusal(f"--training_data={tmp_path / 'missing'}")
    assert (root / "launcher.pid").read_text() == "1\n2.0\n"
    assert (root / "result.json").exists()


def test_a_checkpoint_folder_that_another_running_job_uses_is_refused(tmp_path: Path, ask: Asking) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with (folder / ".job").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        complaint = ask.refusal(f"--checkpoint_dir={folder}")
    assert f"--checkpoint_dir={folder}: another running job stores its checkpoints here" in complaint
