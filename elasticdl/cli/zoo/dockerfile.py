"""The Dockerfile of a model zoo: its text for given flags, and whether a file is one of ours."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from typing import Literal

BASE_IMAGE = "python:3.11-slim"
ZOO = "model_zoo"  # its folder in the image: below /, where jobs start, so that they find it by this name
CLUSTER_SPEC = "/cluster_spec"
USER_ID = 1000
FRAMEWORKS = "keras"  # the extra of our package; it brings PyTorch along

IGNORED = """\
# What `docker build` and `elasticdl zoo build` leave out of the image.
.git
.venv*
venv
**/__pycache__
**/*.pyc
**/.*_cache
**/.ipynb_checkpoints
**/.env
"""

_PIP = "python -m pip install --no-cache-dir"
_MARK = "# Made by `elasticdl zoo init`, and yours to edit: once edited, init leaves it alone. Mark: "


@dataclass(frozen=True)
class Recipe:
    """What goes into an image. Paths are relative to the build context, with slashes."""

    version: str  # of our package, where the index has to have it
    base_image: str = BASE_IMAGE
    model_zoo: str = "."
    requirements: bool = False  # whether the zoo has a requirements.txt
    wheels: str = ""  # the folder of wheels; empty: all comes from the index
    own_wheel: bool = False  # whether our package is among them
    extra_index: str = ""
    cluster_spec: str = ""


def text(recipe: Recipe) -> str:
    """The Dockerfile: what seldom changes first, the models last."""
    zoo = recipe.model_zoo
    index = f" --extra-index-url={shlex.quote(recipe.extra_index)}" if recipe.extra_index else ""
    parts = [
        [
            f"FROM {recipe.base_image}",
            "USER root",
            f"# Jobs start here: --model_zoo={ZOO} is /{ZOO}.",
            "WORKDIR /",
        ],
        [
            "# An environment of its own, which also sees what the base image has: a PyTorch for its GPUs, say.",
            "ENV PATH=/opt/elasticdl/bin:$PATH PYTHONUNBUFFERED=1",
            "RUN python3 -m venv --system-site-packages --without-pip /opt/elasticdl \\",
            f" && {{ id elasticdl >/dev/null 2>&1 || useradd --non-unique --uid {USER_ID} --create-home elasticdl; }}",
        ],
        _packages(recipe, index),
    ]
    if recipe.requirements:
        links = " --find-links=/wheels" if recipe.wheels else ""
        parts.append(
            [
                "# Before the models: changing one of them does not install this again.",
                f"COPY {_words(_below(zoo, 'requirements.txt'), f'/{ZOO}/')}",
                f"RUN {_PIP}{links}{index} -r /{ZOO}/requirements.txt",
            ]
        )
    last = [f"COPY {_words(recipe.cluster_spec, CLUSTER_SPEC + '/')}"] if recipe.cluster_spec else []
    last.append(f"COPY --chown={USER_ID}:{USER_ID} {_words(zoo, f'/{ZOO}')}")
    parts.append([*last, f"USER {USER_ID}"])
    body = "\n\n".join("\n".join(part) for part in parts) + "\n"
    return f"{_MARK}{_digest(body)}\n{body}"


def _packages(recipe: Recipe, index: str) -> list[str]:
    name = f"elasticdl[{FRAMEWORKS}]"
    if not recipe.wheels:
        return [
            "# ElasticDL as on the machine that submits the jobs, with Keras and PyTorch.",
            f'RUN {_PIP}{index} "{name}=={recipe.version}"',
        ]
    wanted = name if recipe.own_wheel else f"{name}=={recipe.version}"
    return [
        "# The wheels first, as they are; what they and Keras need besides comes from the index.",
        f"COPY {_words(_below(recipe.wheels, '*.whl'), '/wheels/')}",
        f"RUN {_PIP} --no-deps --force-reinstall /wheels/*.whl \\",
        f' && {_PIP} --find-links=/wheels{index} "{wanted}"',
    ]


def _below(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


def _words(*paths: str) -> str:
    """As COPY takes them: in JSON where a blank would cut one in two."""
    return json.dumps(list(paths)) if any(" " in path for path in paths) else " ".join(paths)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def author(content: str) -> Literal["init", "edited", "user"]:
    """Whether a Dockerfile is as `text` wrote it, was edited since, or is the user's own."""
    first, _, body = content.partition("\n")
    if not first.startswith(_MARK):
        return "user"
    return "init" if first.removeprefix(_MARK).strip() == _digest(body) else "edited"
