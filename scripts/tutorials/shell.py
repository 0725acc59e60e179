"""A simulated terminal: runs commands, waits for output and keeps a transcript."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

COMMAND_SECONDS = 600.0


class Shell:
    """Runs commands in bash and keeps their output, with names of this machine replaced."""

    def __init__(self, folder: Path, env: Mapping[str, str], renamed: Sequence[tuple[str, str]] = ()) -> None:
        self.folder, self.env, self._renamed = folder, {**os.environ, **env}, renamed
        self._parts: list[str] = []
        self._other: subprocess.Popen[str] | None = None

    def say(self, text: str) -> None:
        """A paragraph between two commands."""
        self._parts.append(text)

    def type(self, command: str, *, seconds: float = COMMAND_SECONDS, show: Callable[[str], str] = str) -> str:
        """Run a command to its end and show it with its output; raises if it fails."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env, timeout=seconds, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode} of\n{command}\n{done.stdout}")
        shown = show(done.stdout).rstrip("\n")
        self._parts.append(
            "```text\n$ " + self._clean(command) + (f"\n{self._clean(shown)}" if shown else "") + "\n```"
        )
        return done.stdout

    def until(self, command: str, enough: Callable[[str], bool], seconds: float) -> str:
        """Run a following command, without showing it, until its output is enough."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        clock = threading.Timer(seconds, process.kill)
        clock.start()
        seen = ""
        try:
            assert process.stdout is not None
            for line in process.stdout:
                seen += line
                if enough(seen):
                    return seen
        finally:
            clock.cancel()
            process.kill()
            process.wait()
        raise TimeoutError(f"not within {seconds:g} s, or ended before:\n{command}\n{seen[-3000:]}")

    def begin(self, command: str) -> None:
        """Start a command in another terminal; `finish` shows its output."""
        self._parts.append(f"```text\n$ {self._clean(command)}\n```")
        self._other = subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def finish(self, seconds: float) -> str:
        """Wait for the command that `begin` started, and show its output."""
        assert self._other is not None
        try:
            text, _ = self._other.communicate(timeout=seconds)
        finally:
            self._other.kill()
        if self._other.returncode:
            raise RuntimeError(f"exit code {self._other.returncode}\n{text}")
        self._parts.append(f"```text\n{self._clean(text.rstrip())}\n```")
        return text

    def quietly(self, command: str) -> None:
        """Run a command that is not part of a tutorial; it may fail."""
        words = ["bash", "-c", command]
        subprocess.run(words, cwd=self.folder, env=self.env, timeout=COMMAND_SECONDS, capture_output=True)

    def transcript(self) -> str:
        return "\n\n".join(self._parts) + "\n"

    def _clean(self, text: str) -> str:
        for name, shown in self._renamed:
            text = text.replace(name, shown)
        return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
