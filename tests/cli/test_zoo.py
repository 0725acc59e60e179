"""`elasticdl zoo` without an engine: the Dockerfile for each flag, which Dockerfiles are kept, and what is refused."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from elasticdl import __version__
from elasticdl.cli.main import main
from elasticdl.cli.zoo import dockerfile, remedies
from elasticdl.cli.zoo.dockerfile import Recipe

Output = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model_zoo" / "mnist").mkdir(parents=True)
    (tmp_path / "model_zoo" / "mnist" / "mnist_functional_api.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)  # the engine of the user that runs the tests
    return tmp_path


def _lines(here: Path) -> list[str]:
    return (here / "Dockerfile").read_text().splitlines()


def _steps(here: Path) -> list[str]:
    """The instructions, each in one line."""
    text = (here / "Dockerfile").read_text().replace("\\\n", "")
    return [" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("#")]


def test_without_flags_this_folder_is_the_zoo_on_a_python_image(here: Path, capsys: Output) -> None:
    assert main(["zoo", "init"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Wrote Dockerfile and .dockerignore: /model_zoo will hold this folder, on python:3.11-slim.",
        "Next: elasticdl zoo build --image=NAME:TAG .",
    ]
    steps = _steps(here)
    assert steps[0] == "FROM python:3.11-slim"
    assert steps[-2:] == ["COPY --chown=1000:1000 . /model_zoo", "USER 1000"]
    assert "WORKDIR /" in steps  # a relative --model_zoo of a job is found below it
    assert f'RUN python -m pip install --no-cache-dir "elasticdl[keras]=={__version__}"' in steps
    assert not any("requirements" in step or "wheels" in step or "index-url" in step for step in steps)


def test_the_command_of_the_first_tutorial(here: Path) -> None:
    assert main(["zoo", "init", "--model_zoo=model_zoo"]) == 0
    assert "COPY --chown=1000:1000 model_zoo /model_zoo" in _steps(here)


def test_local_wheels_come_before_the_index(here: Path) -> None:
    (here / "build").mkdir()
    (here / "build" / "elasticdl-2.0.0-cp311-cp311-linux_x86_64.whl").touch()
    words = ["--base_image=elasticdl:dev_allreduce", "--model_zoo=model_zoo", "--local_pkg_dir=./build"]
    assert main(["zoo", "init", *words]) == 0
    steps = _steps(here)
    assert steps[0] == "FROM elasticdl:dev_allreduce"
    copied = steps.index("COPY build/*.whl /wheels/")
    pip = "python -m pip install --no-cache-dir"
    first, second = steps[copied + 1].removeprefix("RUN ").split(" && ")
    assert first == f"{pip} --no-deps --force-reinstall /wheels/*.whl"
    assert second == f'{pip} --find-links=/wheels "elasticdl[keras]"'  # whatever version the wheel has


def test_wheels_without_ours_leave_its_version_pinned(here: Path) -> None:
    (here / "build").mkdir()
    (here / "build" / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    assert main(["zoo", "init", "--local_pkg_dir=build"]) == 0
    assert f'--find-links=/wheels "elasticdl[keras]=={__version__}"' in (here / "Dockerfile").read_text()


def test_requirements_are_installed_before_the_models_are_copied(here: Path) -> None:
    (here / "model_zoo" / "requirements.txt").write_text("scikit-learn\n")
    assert main(["zoo", "init", "--model_zoo=model_zoo"]) == 0
    steps = _steps(here)
    at = steps.index("COPY model_zoo/requirements.txt /model_zoo/")
    assert steps[at + 1] == "RUN python -m pip install --no-cache-dir -r /model_zoo/requirements.txt"
    assert at + 1 < steps.index("COPY --chown=1000:1000 model_zoo /model_zoo")
    (here / "requirements.txt").write_text("scikit-learn\n")
    assert main(["zoo", "init"]) == 0
    assert "COPY requirements.txt /model_zoo/" in _steps(here)


def test_another_index_is_asked_wherever_packages_are_installed(here: Path, capsys: Output) -> None:
    (here / "requirements.txt").write_text("scikit-learn\n")
    assert main(["zoo", "init", "--extra_pypi_index=https://example.org/simple"]) == 0
    installs = [step for step in _steps(here) if "pip install" in step]
    assert len(installs) == 2
    assert all("--extra-index-url=https://example.org/simple" in step for step in installs)
    assert capsys.readouterr().err == ""
    assert main(["zoo", "init", "--extra_pypi_index=https://me:secret@example.org/simple"]) == 0
    assert "contains a login" in capsys.readouterr().err


def test_the_cluster_spec_is_copied(here: Path) -> None:
    (here / "specs").mkdir()
    (here / "specs" / "on_prem.py").write_text("")
    assert main(["zoo", "init", "--cluster_spec=specs/on_prem.py"]) == 0
    assert "COPY specs/on_prem.py /cluster_spec/" in _steps(here)


def test_a_path_with_a_blank_stays_one_path(here: Path) -> None:
    (here / "my models").mkdir()
    assert main(["zoo", "init", "--model_zoo=my models"]) == 0
    assert 'COPY --chown=1000:1000 ["my models", "/model_zoo"]' in _steps(here)


def test_it_is_short_and_nobody_runs_as_root(here: Path) -> None:
    assert main(["zoo", "init"]) == 0
    assert len(_lines(here)) < 25 and max(map(len, _lines(here))) <= 120
    assert _lines(here)[-1] == "USER 1000"


def test_init_writes_again_what_nobody_edited(here: Path) -> None:
    assert main(["zoo", "init"]) == 0
    before = (here / ".dockerignore").read_text() + "data\n"
    (here / ".dockerignore").write_text(before)
    assert main(["zoo", "init", "--base_image=debian-python:bookworm"]) == 0
    assert _steps(here)[0] == "FROM debian-python:bookworm"
    assert (here / ".dockerignore").read_text() == before


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text + "RUN true\n", "was edited since elasticdl zoo init wrote it"),
        (lambda text: "FROM python:3.11\n", "was not written by elasticdl zoo init"),
    ],
)
def test_a_dockerfile_of_the_users_own_stays(here: Path, capsys: Output, edit: object, says: str) -> None:
    assert callable(edit)
    assert main(["zoo", "init"]) == 0
    theirs = edit((here / "Dockerfile").read_text())
    (here / "Dockerfile").write_text(theirs)
    capsys.readouterr()
    assert main(["zoo", "init"]) == 2
    said = capsys.readouterr().err
    assert f"Dockerfile: {says}." in said and "--force" in said
    assert (here / "Dockerfile").read_text() == theirs
    assert main(["zoo", "init", "--force"]) == 0
    assert dockerfile.author((here / "Dockerfile").read_text()) == "init"


def test_all_that_is_wrong_is_said_at_once(here: Path, capsys: Output) -> None:
    (here / "empty").mkdir()
    words = [
        "--model_zoo=/",
        "--local_pkg_dir=empty",
        "--cluster_spec=no.py",
        "--extra_pypi_index=index",
        "--base_image=",
    ]
    assert main(["zoo", "init", *words]) == 2
    said = capsys.readouterr().err
    assert "elasticdl zoo: 5 problems" in said
    assert "--model_zoo=/: is outside the folder to build" in said
    assert "--local_pkg_dir=empty: no wheel in it. Put some there: scripts/docker_build_wheel.sh makes" in said
    assert "--cluster_spec=no.py: no such file" in said
    assert "--extra_pypi_index=index: not an address" in said
    assert not (here / "Dockerfile").exists()


def test_build_says_what_is_missing_before_it_asks_an_engine(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert main(["zoo", "build", "--image=Elastic DL", "."]) == 2
    said = capsys.readouterr().err
    assert "--image=Elastic DL: not the name of an image" in said
    assert ".: no Dockerfile in it. Write one there first: elasticdl zoo init." in said
    assert main(["zoo", "build", "--image=a:b", "nothing"]) == 2
    assert "nothing: no such directory" in capsys.readouterr().err
    assert main(["zoo", "build"]) == 2
    assert "--image" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["build", "--image=a:b"], ["push", "a:b"]])
def test_no_engine(here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    assert main(["zoo", "init"]) == 0
    monkeypatch.setenv("DOCKER_HOST", f"unix://{here}/docker.sock")
    capsys.readouterr()
    assert main(["zoo", *words]) == 1
    assert capsys.readouterr().err == (
        f"elasticdl zoo: no Docker engine answers at unix://{here}/docker.sock. "
        "Start Docker, or name another engine in DOCKER_HOST; for Minikube's: eval $(minikube docker-env).\n"
    )


def test_an_engine_whose_certificates_are_missing(here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(here / "certs"))
    assert main(["zoo", "push", "a:b"]) == 1
    said = capsys.readouterr().err
    assert "cannot use the Docker engine at tcp://127.0.0.1:1" in said and "DOCKER_CERT_PATH" in said


def test_an_engine_of_the_current_context(here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    folder = here / "config" / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    folder.mkdir(parents=True)
    endpoint = {"docker": {"Host": "unix:///far/away.sock", "SkipTLSVerify": False}}
    (folder / "meta.json").write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": endpoint}))
    (here / "config" / "config.json").write_text('{"currentContext": "far"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(here / "config"))
    assert main(["zoo", "push", "a:b"]) == 1
    assert "no Docker engine answers at unix:///far/away.sock" in capsys.readouterr().err


@contextlib.contextmanager
def _engine(known: tuple[int, str]) -> Iterator[str]:
    """Something like an engine: answers so when asked about an image; its builds and pushes break off."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = (200, '{"ApiVersion": "1.41"}') if self.path == "/version" else known
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            line = b'{"stream": "Step 1/1 : FROM scratch\\n"}\r\n'
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize("words", [["build", "--image=r.example/a:b"], ["push", "r.example/a:b"]])
def test_an_engine_that_goes_away_and_a_login_helper_that_is_missing(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (here / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setenv("DOCKER_CONFIG", str(here / "config"))
    with _engine((200, '{"Size": 1}')) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        assert main(["zoo", *words]) == 1
        said = capsys.readouterr().err
        assert f"the Docker engine at {address} stopped answering" in said and "Check that it is running" in said
        (here / "config").mkdir()
        helpers = {"credHelpers": {"r.example": "none-such"}, "credsStore": "none-such"}
        (here / "config" / "config.json").write_text(json.dumps(helpers))
        with pytest.warns(UserWarning, match="none-such"):
            assert main(["zoo", *words]) == 1
        said = capsys.readouterr().err
        assert "docker-credential-none-such not installed" in said and "The login helper of" in said


@pytest.mark.parametrize(
    ("code", "message", "exit_code", "says"),
    [
        (404, "No such image: a:b", 2, "no such image on this Docker engine. Build it first"),
        (500, "the disk is on fire", 1, "a:b was not pushed: the disk is on fire"),
    ],
)
def test_only_an_image_that_is_not_there_is_said_not_to_be(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, code: int, message: str, exit_code: int, says: str
) -> None:
    with _engine((code, json.dumps({"message": message}))) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        assert main(["zoo", "push", "a:b"]) == exit_code
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "tail", "says"),
    [
        ("pull access denied for no/none, repository does not exist", "", "--base_image"),
        ("Get https://registry.example/v2/: dial tcp: lookup registry.example: no such host", "", "docker images"),
        ("COPY failed: file not found in build context or excluded by .dockerignore: stat x", "", ".dockerignore"),
        ("the --mount option requires BuildKit", "", "docker build -t"),
        ("returned a non-zero code: 1", "that require a different python version: 2.0 Requires-Python >=3.11", "3.11"),
        ("returned a non-zero code: 1", "ERROR: No matching distribution found for elasticdl[keras]==2.0", "wheel"),
        ("returned a non-zero code: 127", "/bin/sh: 1: python3: not found", "--base_image"),
        ("returned a non-zero code: 1", "x.whl is not a supported wheel on this platform.", "base image"),
        (
            "returned a non-zero code: 1",
            "Failed to establish a new connection: [Errno 111] connection refused",
            "index",
        ),
        ("returned a non-zero code: 1", "OSError: [Errno 28] No space left on device", "docker system prune"),
        ("returned a non-zero code: 3", "make: *** wrong", "The lines above say why."),
    ],
)
def test_a_failed_step_has_a_remedy(problem: str, tail: str, says: str) -> None:
    assert says in remedies.of_build(problem, tail)


@pytest.mark.parametrize(
    ("image", "registry", "problem", "says"),
    [
        ("elasticdl:m", "docker.io", "denied: requested access to the resource is denied", "names no registry"),
        ("gcr.io/p/m", "gcr.io", "unauthorized: not logged in", "gcloud auth configure-docker gcr.io"),
        ("r.example/m", "r.example", "no basic auth credentials", "docker login r.example."),
        ("r.example:5/m", "r.example:5", "http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("r.example/m", "r.example", "x509: certificate signed by unknown authority", "/etc/docker/certs.d/r.example"),
        ("r.example/m", "r.example", "dial tcp: lookup r.example: no such host", "No answer from r.example"),
        ("r.example/m", "r.example", "name unknown: the repository is not known", "Create the repository"),
    ],
)
def test_a_refused_push_has_a_remedy(image: str, registry: str, problem: str, says: str) -> None:
    assert says in remedies.of_push(image, registry, problem)


def test_help_names_every_flag_and_loads_no_docker(capsys: Output) -> None:
    assert main(["zoo", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("init", "build", "push"))
    assert main(["zoo", "init", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Write a Dockerfile for a folder of models." in shown
    for flag in ("--base_image", "--model_zoo", "--local_pkg_dir", "--extra_pypi_index", "--cluster_spec", "--force"):
        assert flag in shown
    code = (
        "import sys; from elasticdl.cli.main import main; "
        "main(['zoo', 'init', '--help']); main(['--help']); sys.exit('docker' in sys.modules or 'rich' in sys.modules)"
    )
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30).returncode == 0
    assert time.monotonic() - began < 5


def test_the_text_depends_on_the_recipe_only() -> None:
    assert dockerfile.text(Recipe("2.0")) == dockerfile.text(Recipe("2.0"))
    assert dockerfile.text(Recipe("2.0")) != dockerfile.text(Recipe("2.1"))
    assert dockerfile.author(dockerfile.text(Recipe("2.0"))) == "init"
