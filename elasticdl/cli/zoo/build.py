"""`elasticdl zoo build`: sends the folder to the Docker engine and shows the engine's output."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from elasticdl.cli.zoo.engine import connect, explained, failure, troubles
from elasticdl.cli.zoo.layers import Layers, megabytes
from elasticdl.cli.zoo.remedies import of_build
from elasticdl.errors import ImageError, Problem, UsageError
from elasticdl.job import names

if TYPE_CHECKING:
    from docker import APIClient

_LARGE_BYTES = 500_000_000
_KEPT_LINES = 60  # enough of a failed step to see why


def run(path: str, image: str) -> int:
    """Builds the image of the folder."""
    folder = names.expanded(path).absolute()
    problems = _problems(folder, path, image)
    if problems:
        raise UsageError(problems)
    began = time.monotonic()
    client = connect()
    with _context(folder) as context:
        size = _build(client, context, image)
    print(f"Built {image}: {megabytes(size)}, {time.monotonic() - began:.0f} s.")
    registry = "/" in image and any(mark in image.split("/")[0] for mark in ".:")
    if registry:
        print(f"Next: elasticdl zoo push {image}")
    return 0


def _problems(folder: Path, path: str, image: str) -> list[Problem]:
    from docker.utils.build import match_tag

    problems = []
    if not match_tag(image):
        remedy = "Write it as NAME:TAG or HOST/NAME:TAG, in lower case except for the tag: elasticdl:mnist."
        problems.append(Problem("--image", image, "not the name of an image", remedy))
    if not folder.is_dir():
        problems.append(Problem(path, "", "no such directory", "Give the folder with the Dockerfile."))
    elif not (folder / "Dockerfile").is_file():
        problems.append(Problem(path, "", "no Dockerfile in it", "Write one there first: elasticdl zoo init."))
    return problems


def _context(folder: Path) -> IO[bytes]:
    """The folder as the engine gets it: without what .dockerignore names."""
    from docker.utils.build import tar

    ignored = folder / ".dockerignore"
    lines = ignored.read_text().splitlines() if ignored.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    try:
        packed: IO[bytes] = tar(str(folder), exclude=patterns)
    except OSError as error:
        what = f"{error}: {(error.__cause__ or error).__class__.__name__}"
        raise ImageError(what, "Make it readable, or name it in .dockerignore.") from error
    size = packed.seek(0, 2)
    packed.seek(0)
    print(f"Sending {megabytes(size)} to the Docker engine.", flush=True)
    if size > _LARGE_BYTES:
        print("That is large: name in .dockerignore what the image does not need.", file=sys.stderr)
    return packed


def _build(client: APIClient, context: IO[bytes], image: str) -> int:
    """Its size in bytes."""
    step, tail = "", deque[str](maxlen=_KEPT_LINES)
    try:
        events = client.build(
            fileobj=context, custom_context=True, tag=image, rm=True, forcerm=True, decode=True, timeout=client.timeout
        )
        with Layers() as layers:
            for event in events:
                problem = failure(event)
                if problem:
                    layers.settle()
                    raise _failed(step, problem, "".join(tail))
                if "status" in event:
                    layers.show(event)
                elif "stream" in event:
                    layers.settle()
                    step = _step(event) or step
                    tail.append(event["stream"])
                    sys.stdout.write(event["stream"])
                    sys.stdout.flush()
        return int(client.inspect_image(image)["Size"])
    except troubles() as error:
        problem, remedy = explained(error)
        raise _failed(step, problem, "".join(tail), remedy) from error


def _step(event: dict[str, Any]) -> str:
    found = re.match(r"Step (\d+)/(\d+) : (.*)", event["stream"])
    if not found:
        return ""
    number, count, instruction = found.groups()
    return f"step {number} of {count} ({instruction if len(instruction) <= 70 else instruction[:69] + '…'})"


def _failed(step: str, problem: str, tail: str, remedy: str = "") -> ImageError:
    return ImageError(f"{step or 'the build'} failed: {problem.rstrip('.')}", remedy or of_build(problem, tail))
