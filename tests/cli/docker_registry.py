"""A real registry on 127.0.0.1 for the tests that push: Debian's docker-registry, with or without logins."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
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
        "log: {level: error}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'images'}}}}}",
        f"http: {{addr: '{address}:{port}'}}",
    ]
    if login:
        (folder / "users").write_text(_USERS)
        lines.append(f"auth: {{htpasswd: {{realm: tests, path: {folder / 'users'}}}}}")
    (folder / "config.yml").write_text("\n".join(lines) + "\n")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
        try:
            _wait(f"http://{address}:{port}/v2/", process, folder / "log")
            yield f"{address}:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except urllib.error.HTTPError:  # it wants a login: it is there
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the registry did not come up: {log.read_text()}") from error
            time.sleep(0.05)
