"""A master or a worker that the user starts by hand, in two terminals or containers: what their flags mean."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from elasticdl.errors import ElasticDLError, Problem, UsageError
from elasticdl.job import names
from elasticdl.job.resolve import Resolved, resolve
from elasticdl.job.spec import JobSpec

PORT = 50001
WORKER = "python -m elasticdl.python.elasticdl.worker.main"


def run(program: str, what: Callable[[list[str]], int]) -> int:
    """Run `what` with the words of the command line, and print its problems."""
    try:
        return what(sys.argv[1:])
    except UsageError as error:
        for problem in error.problems:
            print(f"{program}: {problem}", file=sys.stderr)
        return error.exit_code
    except ElasticDLError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code


def master(words: Sequence[str]) -> int:
    """Run a job whose workers the user starts; this process starts the parameter servers."""
    from elasticdl.cli import train

    resolved = master_job(words)
    token = read_token(resolved.require())
    os.environ.setdefault(names.ENV_POD_IP, own_address())  # where workers find its parameter servers
    return train.run(resolved, token)


def master_job(words: Sequence[str]) -> Resolved:
    """The job that a master's command line describes."""
    from elasticdl.cli import flags

    given, problems = flags.read_spec(words, "by-hand")
    here = "local" if given.image_name or given.worker_image or given.ps_image else given.runtime  # whatever is named
    spec = given.with_values(runtime=here, workers_by_hand=True, master_port=given.master_port or PORT)
    asked = resolve(spec, problems)
    problems = [*asked.problems]
    if spec.encrypt_data_plane:
        what = "workers that are started by hand have no key"
        problems.append(Problem("--encrypt_data_plane", "true", what, "Leave it out, or use elasticdl train."))
    open_to_all = (
        f"No --token_file is given: any process that reaches port {spec.master_port} of this machine can join, watch "
        "and stop the job."
    )
    start = f"Workers are started by hand: {WORKER} --worker_id=1 --master_addr=HOST:{spec.master_port}"
    notes = (*asked.notes, *(() if spec.token_file else (open_to_all,)), start)
    return replace(asked, problems=tuple(problems), notes=notes)


def worker_job(words: Sequence[str]) -> JobSpec:
    """The job of a worker's command line, which mostly gives the master's address."""
    from elasticdl.cli import flags

    given, problems = flags.read_spec(words, "by-hand")
    if given.master_addr is None:
        what, remedy = "needed: it names the master", f"Give --master_addr=localhost:{PORT}."
        raise UsageError([*problems, Problem("--master_addr", "", what, remedy)])
    asked = flags.read_request(words, "by-hand").resolved
    if asked.problems:
        raise UsageError(asked.problems)
    return asked.spec


def read_token(spec: JobSpec) -> str:
    """The secret that master and workers share; empty where there is none."""
    if spec.token_file is None:
        return ""
    try:
        token = Path(spec.token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read: {error.strerror if isinstance(error, OSError) else 'not text'}"
        problem = Problem("--token_file", spec.token_file, what, "Give a file that contains the secret.")
        raise UsageError([problem]) from error
    if not token or not token.isascii() or not token.isprintable():
        what = "contains no secret: it needs one line of ASCII text"
        remedy = f"Create one: openssl rand -hex 32 > {spec.token_file}"
        raise UsageError([Problem("--token_file", spec.token_file, what, remedy)])
    return token


def own_address() -> str:
    """The address at which others reach this machine or container; the loopback address where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only picks the address that a packet would leave from
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
