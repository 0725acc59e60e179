"""The scripts and Dockerfiles for images: they exist as tutorials name them, and say what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("scripts/docker_build_wheel.sh", "scripts/travis/build_images.sh", "scripts/gen_dataset.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_can_be_run_and_is_bash(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(ROOT / script)], timeout=10).returncode == 0


def test_gen_dataset_takes_a_python_that_has_the_packages(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "_SOURCE").write_text("MNIST\nMNIST from a test\n")  # made already: nothing is downloaded
    script = str(ROOT / "scripts" / "gen_dataset.sh")
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([script, "."], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"already in {tmp_path}/mnist;" in done.stdout
    environment = os.environ | {"PYTHON": "false"}
    done = subprocess.run([script, "data"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no Python with ElasticDL's packages" in done.stderr


def test_every_argument_that_the_scripts_pass_is_one_of_the_dockerfile() -> None:
    known = set(re.findall(r"^ARG (\w+)", (ROOT / "elasticdl/docker/Dockerfile").read_text(), re.MULTILINE))
    assert known == {"BASE_IMAGE", "EXTRA_PYPI_INDEX", "GEN_DATA", "DATA_IMAGE"}
    for script in SCRIPTS[:2]:
        passed = re.findall(r"--build-arg (\w+)=", (ROOT / script).read_text())
        assert passed and set(passed) <= known


def test_every_folder_that_a_dockerfile_copies_is_there_and_not_ignored() -> None:
    build = pytest.importorskip("docker.utils.build")
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    sent = build.exclude_paths(str(ROOT), patterns, dockerfile="elasticdl/docker/Dockerfile")
    for path in ("pyproject.toml", "README.md", "LICENSE", "native/CMakeLists.txt", "elasticdl/__init__.py", "scripts"):
        assert path in sent
    assert not [path for path in sent if path.startswith((".git/", ".venv/")) or path.endswith((".so", ".pyc"))]
