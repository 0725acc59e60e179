"""A real registry on 127.0.0.1 for the tests that push: Debian's docker-registry, with or without logins."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = shutil.which("docker-registry") or shutil.which("registry")
PASSWORD = "opensesame"
# bcrypt of the password above
_USERS = "me:$2b$05$D2rF4Qc3P/cViZzcog0hr.unHsyQ4gWht1AQNwKlgCGEBFDn2lv7i\n"
_START_SECONDS = 20.0


@contextmanager
def registry(folder: Path, address: str = "127.0.0.1", login: bool = False) -> Iterator[str]:
    """HOST:PORT of a registry that keeps its images in the folder."""
    assert PROGRAM is not None
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    lines = [
        "version: 0.1",
        "log: {level: info}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'images'}}}}}",
        f"http: {{addr: '{address}:{port}'}}",
    ]
    if login:
        (folder / "users").write_text(_USERS)
        lines.append(f"auth: {{htpasswd: {{realm: tests, path: {folder / 'users'}}}}}")
    (folder / "config.yml").write_text("\n".join(lines) + "\n")
    process = subprocess.Popen(
        [PROGRAM, "serve", str(folder / "config.yml")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said: list[str] = []
    listening = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "listening on" in line:
                listening.set()
        listening.set()  # it ended

    reading = threading.Thread(target=read)
    reading.start()
    try:
        there = listening.wait(_START_SECONDS) and process.poll() is None
        assert there, f"the registry did not come up: {''.join(said)}"
        yield f"{address}:{port}"
    finally:
        process.terminate()
        process.wait(10)
        reading.join()
