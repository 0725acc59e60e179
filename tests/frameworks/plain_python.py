"""A Python without elasticdl: programs run in forks of it, so that frameworks are imported once.

Run as a program, it is that Python: it reads orders and says how each copy of it ended.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

SECONDS = 120


def in_plain_python(program: str, directory: Path, *arguments: str, blocked: bool = True) -> None:
    """Run a program in a folder; it cannot import elasticdl, unless it is not blocked there and finds it itself."""
    python = _started()
    assert python.stdin is not None and python.stdout is not None
    python.stdin.write(json.dumps([program, str(directory), [str(directory), *arguments], blocked]) + "\n")
    python.stdin.flush()
    answer = python.stdout.readline()
    assert answer, "the plain Python has died"
    code, said = json.loads(answer)
    assert code == 0, said


@functools.cache
def _started() -> subprocess.Popen[str]:
    pipe, environment = subprocess.PIPE, os.environ | {"PYTHONPATH": ""}
    python = subprocess.Popen([sys.executable, __file__], env=environment, stdin=pipe, stdout=pipe, text=True, cwd="/")
    atexit.register(python.kill)
    return python


def _serve() -> None:
    sys.modules["elasticdl"] = None  # type: ignore[assignment]  # this is how an import is made to fail
    if os.environ.get("KERAS_BACKEND") == "torch":  # other backends do not work after a fork
        import keras
        import safetensors.numpy
        import safetensors.torch
        import torch

        _ = keras, safetensors, torch
    for line in sys.stdin:
        program, directory, arguments, blocked = json.loads(line)
        mouth, ear = os.pipe()[::-1]
        copy = os.fork()
        if copy == 0:
            os.dup2(mouth, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(_run(program, directory, arguments, blocked))
        os.close(mouth)
        with os.fdopen(ear, errors="replace") as file:
            said = file.read()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), said]), flush=True)


def _run(program: str, directory: str, arguments: list[str], blocked: bool) -> int:
    os.chdir(directory)
    sys.argv, sys.path[0] = ["-c", *arguments], ""
    if not blocked:
        del sys.modules["elasticdl"]
    try:
        exec(compile(program, "program", "exec"), {"__name__": "__main__", "sys": sys})
    except BaseException:  # another process wants the exit code
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    _serve()
