"""`elasticdl zoo` with a real Docker engine, and with a real registry on this machine."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.main import main
from tests.cli import docker_registry
from tests.cli.docker_registry import registry
from tests.cli.tls_engine import SOCKET, make_certificates, tls_engine

docker = pytest.importorskip("docker")
ROOT = Path(__file__).parents[2]
BASE = os.environ.get("ELASTICDL_TEST_BASE_IMAGE", "debian-python:bookworm")
Output = pytest.CaptureFixture[str]


pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("engine")]
needs_base = pytest.mark.usefixtures("base_image")
needs_registry = pytest.mark.skipif(docker_registry.PROGRAM is None, reason="docker-registry is not installed")


@functools.cache
def _engine() -> Any:
    """The engine; None where none answers soon."""
    try:
        found = docker.from_env(timeout=5).api
    except docker.errors.DockerException:
        return None
    found.timeout = 120
    return found


@pytest.fixture(scope="module")
def engine() -> None:
    if _engine() is None:
        pytest.skip("no Docker engine answers")


@pytest.fixture(scope="module")
def base_image(engine: None) -> None:
    if BASE not in (name for image in _engine().images() for name in image["RepoTags"] or []):
        pytest.skip(f"no image {BASE}; name one in ELASTICDL_TEST_BASE_IMAGE")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model zoo and a Dockerfile of the user's own, which needs no base image."""
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo" / "model.py").write_text(f"# {uuid.uuid4()}\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY model_zoo /model_zoo\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker_config"))
    return tmp_path


@pytest.fixture
def image() -> Iterator[str]:
    """An unused name; an image of this name is removed at the end."""
    name = f"elasticdl-test-{uuid.uuid4().hex[:12]}:zoo"
    yield name
    _remove(name)


def _remove(name: str) -> None:
    with contextlib.suppress(docker.errors.APIError):
        _engine().remove_image(name, force=True)


def _files(image: str) -> set[str]:
    container = _engine().create_container(image, "nothing")["Id"]
    try:
        stream, _ = _engine().get_archive(container, "/model_zoo")
        return set(tarfile.open(fileobj=io.BytesIO(b"".join(stream))).getnames())
    finally:
        _engine().remove_container(container)


def _tagged(image: str, registry: str) -> str:
    name = f"{registry}/{image}"
    _engine().tag(image, *name.rsplit(":", 1))
    return name


def test_a_build_shows_its_steps_and_leaves_out_what_is_ignored(here: Path, image: str, capsys: Output) -> None:
    (here / ".dockerignore").write_text("# not these\n**/*.pyc\n!model_zoo/kept.pyc\n")
    (here / "model_zoo" / "kept.pyc").touch()
    (here / "model_zoo" / "left.pyc").touch()
    assert main(["zoo", "build", f"--image={image}", "."]) == 0
    shown = capsys.readouterr().out
    assert "Step 1/2 : FROM scratch\n" in shown and f"Successfully tagged {image}\n" in shown
    assert re.search(rf"^Built {image}: \d+ kB, \d+ s\.$", shown, re.MULTILINE)
    assert _files(image) == {"model_zoo", "model_zoo/model.py", "model_zoo/kept.pyc"}
    assert main(["zoo", "build", f"--image={image}"]) == 0
    assert "Using cache" in capsys.readouterr().out


@needs_base
def test_a_step_that_fails_is_named_after_its_output(here: Path, image: str, capsys: Output) -> None:
    (here / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo on the way; echo and gone >&2; exit 7\n")
    assert main(["zoo", "build", f"--image={image}", "."]) == 1
    shown = capsys.readouterr()
    assert "on the way" in shown.out and "and gone" in shown.out
    assert "elasticdl zoo: step 2 of 2 (RUN echo on the way; echo and gone >&2; exit 7) failed: " in shown.err
    assert "returned a non-zero code: 7. The lines above say why." in shown.err


@needs_base
def test_a_python_that_is_missing_or_a_version_that_no_index_has_is_explained(
    here: Path, image: str, capsys: Output
) -> None:
    (here / "Dockerfile").write_text(f"FROM {BASE}\nRUN python3 -m pip install --no-index elasticdl==999\n")
    assert main(["zoo", "build", f"--image={image}", "."]) == 1
    assert "The index does not have this version of ElasticDL" in capsys.readouterr().err


def test_a_base_image_that_is_nowhere(here: Path, image: str, capsys: Output) -> None:
    (here / "Dockerfile").write_text("FROM 127.0.0.1:1/no/none:0\n")
    assert main(["zoo", "build", f"--image={image}", "."]) == 1
    said = capsys.readouterr().err
    assert "step 1 of 1 (FROM 127.0.0.1:1/no/none:0) failed" in said
    assert "The base image is not on this engine and could not be pulled." in said


def test_a_file_that_is_not_in_the_folder(here: Path, image: str, capsys: Output) -> None:
    (here / "Dockerfile").write_text("FROM scratch\nCOPY nothing /nothing\n")
    assert main(["zoo", "build", f"--image={image}", "."]) == 1
    assert "What COPY names must be in the folder to build" in capsys.readouterr().err


def test_a_dockerfile_that_cannot_be_parsed(here: Path, image: str, capsys: Output) -> None:
    (here / "Dockerfile").write_text("FROM scratch\nCOPPY a b\n")
    assert main(["zoo", "build", f"--image={image}", "."]) == 1
    assert "COPPY" in capsys.readouterr().err


@needs_registry
def test_a_push_arrives_and_a_second_one_sends_nothing(here: Path, image: str, capsys: Output, tmp_path: Path) -> None:
    with registry(tmp_path) as host:
        name = f"{host}/{image}"
        try:
            assert main(["zoo", "build", f"--image={name}", "."]) == 0
            assert f"Next: elasticdl zoo push {name}" in capsys.readouterr().out
            assert main(["zoo", "push", name]) == 0
            shown = capsys.readouterr().out
            assert re.search(r"^[0-9a-f]{12}: Pushed$", shown, re.MULTILINE)
            assert re.search(rf"^Pushed {re.escape(name)}: sha256:[0-9a-f]{{64}}, \d+ s\.$", shown, re.MULTILINE)
            repository, tag = image.split(":")
            with urllib.request.urlopen(f"http://{host}/v2/{repository}/tags/list", timeout=10) as reply:
                assert json.load(reply)["tags"] == [tag]
            assert main(["zoo", "push", name]) == 0
            assert "Layer already exists" in capsys.readouterr().out
        finally:
            _remove(name)


@needs_registry
def test_on_a_terminal_each_layer_has_a_bar(here: Path, image: str, tmp_path: Path) -> None:
    (here / "model_zoo" / "weights").write_bytes(os.urandom(3_000_000))
    assert main(["zoo", "build", f"--image={image}", "."]) == 0
    with registry(tmp_path) as host:
        name = _tagged(image, host)
        master, slave = pty.openpty()
        try:
            environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", "elasticdl", "zoo", "push", name]
            process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
            os.close(slave)
            shown = b""
            try:
                while chunk := os.read(master, 65536):
                    shown += chunk
            except OSError:  # the terminal closed: the command is done
                pass
            assert process.wait(60) == 0
        finally:
            os.close(master)
            _remove(name)
    assert b"\xe2\x94\x81" in shown and b"Pushed" in shown and b"3.0/3.0 MB" in shown  # a bar of rich


def test_an_image_that_was_never_built(here: Path, capsys: Output) -> None:
    assert main(["zoo", "push", "127.0.0.1:1/no/none:0"]) == 2
    assert "no such image on this Docker engine. Build it first: elasticdl zoo build" in capsys.readouterr().err


def test_a_registry_that_is_not_there(here: Path, image: str, capsys: Output) -> None:
    assert main(["zoo", "build", f"--image={image}", "."]) == 0
    name = _tagged(image, "127.0.0.1:1")
    try:
        assert main(["zoo", "push", name]) == 1
        said = capsys.readouterr().err
        assert f"{name} was not pushed" in said and "No answer from 127.0.0.1:1" in said
    finally:
        _remove(name)


@needs_registry
def test_a_registry_that_wants_a_login(here: Path, image: str, capsys: Output, tmp_path: Path) -> None:
    assert main(["zoo", "build", f"--image={image}", "."]) == 0
    with registry(tmp_path, login=True) as host:
        name = _tagged(image, host)
        try:
            assert main(["zoo", "push", name]) == 1
            assert f"Log in first: docker login {host}." in capsys.readouterr().err
            login = base64.b64encode(f"me:{docker_registry.PASSWORD}".encode()).decode()
            (here / "docker_config").mkdir()
            (here / "docker_config" / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
            assert main(["zoo", "push", name]) == 0
        finally:
            _remove(name)


@needs_registry
def test_a_registry_without_tls_elsewhere_than_on_loopback(
    here: Path, image: str, capsys: Output, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only asks which address this machine would use
        except OSError:
            pytest.skip("this machine has no network")
        address = probe.getsockname()[0]
    assert main(["zoo", "build", f"--image={image}", "."]) == 0
    with registry(tmp_path, address) as host:
        name = _tagged(image, host)
        try:
            assert main(["zoo", "push", name]) == 1
            assert f"{host} uses plain HTTP." in capsys.readouterr().err
        finally:
            _remove(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without access to the socket")
def test_a_user_who_may_not_use_the_socket(here: Path) -> None:
    # Asked once in vain as root: then everything is imported that the other user may not be able to read.
    code = (
        "import os, sys; from elasticdl.cli.main import main; ask = lambda: main(['zoo', 'push', 'a:b']); "
        "os.environ['DOCKER_HOST'] = 'unix:///nowhere'; ask(); del os.environ['DOCKER_HOST']; "
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(ask())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DOCKER_CONFIG"} | {
        "PYTHONPATH": str(ROOT)
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert "this user has no access to the Docker engine" in done.stderr and "usermod -aG docker" in done.stderr


@pytest.mark.skipif(not SOCKET.exists() or not shutil.which("openssl"), reason="needs the engine's socket and openssl")
def test_an_engine_behind_tls_as_minikube_offers_it(
    here: Path, image: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(here / "certs")
    make_certificates(here / "others")
    (here / ".dockerignore").write_text("certs\nothers\n")
    with tls_engine(here / "certs") as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(here / "certs"))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(here / "others" / "ca.pem"))  # of the web: not the engine's
        assert main(["zoo", "build", f"--image={image}", "."]) == 0
        assert f"Built {image}" in capsys.readouterr().out
        monkeypatch.setenv("DOCKER_CERT_PATH", str(here / "others"))
        assert main(["zoo", "push", image]) == 1
        said = capsys.readouterr().err
        assert f"cannot use the Docker engine at {address}" in said and "certificate" in said


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ElasticDL's wheel, made here, and those of all that it needs; or ELASTICDL_TEST_WHEELS."""
    given = os.environ.get("ELASTICDL_TEST_WHEELS")
    if given is not None:
        return Path(given)
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", f"--wheel-dir={folder}", str(ROOT)], check=True, timeout=600)
    (own,) = folder.glob("elasticdl-*.whl")
    wanted = [f"{own}[keras]", f"--constraint={ROOT / 'constraints.txt'}", f"--dest={folder}"]
    subprocess.run([*pip, "download", "-q", *wanted], check=True, timeout=600)
    return folder


@needs_base
@pytest.mark.timeout(1500)
@pytest.mark.long
def test_a_zoo_on_local_wheels_is_built_offline_runs_as_nobody_special_and_a_changed_model_costs_one_layer(
    here: Path, image: str, wheels: Path, capsys: Output
) -> None:
    (here / "Dockerfile").unlink()
    shutil.rmtree(here / "model_zoo")
    shutil.copytree(ROOT / "model_zoo", here / "model_zoo", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(wheels, here / "build")
    words = [f"--base_image={BASE}", "--model_zoo=model_zoo", "--local_pkg_dir=./build"]
    assert main(["zoo", "init", *words]) == 0
    docker.from_env(timeout=900).images.build(path=str(here), tag=image, network_mode="none", rm=True)
    capsys.readouterr()
    program = (
        "import os; os.environ['KERAS_BACKEND'] = 'torch'; "
        "import torch, keras, elasticdl.ps._native; from elasticdl.frameworks import model_file as m; "
        "print(os.getuid(), m.locate(m.ModelRequest('model_zoo', 'mnist.mnist_functional_api.custom_model')).file, "
        "m.locate(m.ModelRequest('model_zoo', 'mnist_functional_api.mnist_functional_api.custom_model')).file)"
    )
    said = docker.from_env(timeout=300).containers.run(image, ["python", "-c", program], remove=True).decode()
    found = "model_zoo/mnist/mnist_functional_api.py"
    assert said.splitlines()[-1] == f"1000 {found} {found}"
    with (here / "model_zoo" / "mnist" / "records.py").open("a") as model:
        model.write("# changed\n")
    assert main(["zoo", "build", f"--image={image}", "."]) == 0
    shown = capsys.readouterr().out
    assert "Collecting" not in shown and "Installing" not in shown and "Using cache" in shown
