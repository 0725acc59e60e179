"""Two exporters to one directory: the first is stopped before each of its file operations, while the second exports.

Run by test_publishing.py: a process without threads, which may fork. It prints how many ways it tried. With numbers
of a master, the second exporter has the later request, even if it starts first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from elasticdl.errors import DataError
from elasticdl.frameworks import export
from elasticdl.frameworks.publishing import Turn

DONE, TOO_LATE, STOPPED = 0, 3, -1
TELLING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "shutil.rmtree"}
NEVER = 1000
NUMBERED = "numbered" in sys.argv
TURNS = {"old": Turn(6, 9), "first": Turn(7, 1), "second": Turn(7, 2)}  # the old one belongs to another job


def write(directory: Path, writer: str, stop_at: int = NEVER) -> int:
    """Start an exporter that stops itself before its `stop_at`th access to the directory; returns its pid."""
    if pid := os.fork():
        return pid
    status, seen = 1, 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = event in TELLING or (event == "open" and "w" in str(given[1]))
        if writes and str(given[0]).startswith(str(directory)):
            seen += 1
            if seen == stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(watch)
    try:
        if NUMBERED:
            with export.whole(directory, TURNS[writer]) as folder:
                for name, text in (("one", writer), ("two", writer), ("model.json", json.dumps({"writer": writer}))):
                    (folder / name).write_text(text)
        else:
            with export.into(directory, "torch", {"writer": writer}) as target:
                for name in ("one", "two"):
                    target.path(name).write_text(writer)
        status = DONE
    except DataError as error:
        assert "another process has started a newer export" in str(error)
        status = TOO_LATE
    finally:
        os._exit(status)


def wait(pid: int) -> int:
    _, status = os.waitpid(pid, os.WUNTRACED)
    return STOPPED if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def go_on(pid: int) -> int:
    os.kill(pid, signal.SIGCONT)
    return wait(pid)


def whole(directory: Path) -> str:
    """The writer of the published export; empty if there is none."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
    except FileNotFoundError:
        return ""
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == entry["sha256"], name
    writer = (directory / "one").read_text()
    assert writer == (directory / "two").read_text() == json.loads((directory / "model.json").read_text())["writer"]
    return writer


def fresh(directory: Path) -> None:
    """A directory with an older export, which is to be replaced."""
    old = directory.with_name("old")
    if not old.exists():
        assert wait(write(old, "old")) == DONE
        (old / "notes").write_text("the user's own")
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(old, directory)
    assert whole(directory) == "old"


def check_end(directory: Path, winner: str) -> None:
    assert whole(directory) == winner, (whole(directory), winner)
    found = {p.name for p in directory.iterdir()}
    if NUMBERED:
        assert {p.name for p in (directory / ".partial").iterdir()} == {"turn"}
        found.remove(".partial")
    assert found == {"notes", "one", "two", "model.json", "manifest.json"}


def goes_on(directory: Path, first_at: int, second_at: int) -> tuple[bool, bool]:
    """The first continues while the second is stopped or finished; returns whether both got that far."""
    fresh(directory)
    first = write(directory, "first", first_at)
    first_ended = wait(first)
    has_begun = any((directory / ".partial").glob("*-*"))
    second = write(directory, "second", second_at)
    second_ended = wait(second)
    whole(directory)
    reached = first_ended == STOPPED, second_ended == STOPPED
    if first_ended == STOPPED:
        first_ended = go_on(first)
    whole(directory)
    if second_ended == STOPPED:
        second_ended = go_on(second)
    ends = {"first": first_ended, "second": second_ended}
    assert set(ends.values()) <= {DONE, TOO_LATE}, ends
    if NUMBERED or has_begun or not reached[0]:
        assert second_ended == DONE, ends
        check_end(directory, "second")
    else:  # it was the first in name only
        winner = whole(directory)
        assert ends[winner] == DONE, ends
        check_end(directory, winner)
    return reached


def is_killed(directory: Path, first_at: int) -> bool:
    fresh(directory)
    first = write(directory, "first", first_at)
    if wait(first) != STOPPED:
        return False
    os.kill(first, signal.SIGKILL)
    assert wait(first) == -signal.SIGKILL
    assert whole(directory) in ("", "old", "first")
    assert wait(write(directory, "second")) == DONE
    check_end(directory, "second")
    return True


def try_all(directory: Path, every: int) -> int:
    """The first is stopped at every point, the second at one of `every` so many."""
    ways = first_at = 0
    reached = True
    while reached:
        first_at += 1
        reached, second_at, more = is_killed(directory, first_at), 0, True
        while more:
            second_at += every
            try:
                _, more = goes_on(directory, first_at, second_at)
            except AssertionError as error:
                raise AssertionError(f"the first stopped at {first_at}, the second at {second_at}: {error}") from error
            ways += 1
    return ways


if __name__ == "__main__":
    os.fsync = lambda fd: None  # a crash of the machine is not tested here, and there are hundreds of ways
    print(try_all(Path(sys.argv[1]), int(sys.argv[2])))
