"""What to do about an error of the Docker engine or of a registry: found by the error's text."""

from __future__ import annotations

import re

_NO_NETWORK = r"no such host|i/o timeout|connection refused|request canceled|network is unreachable|TLS handshake|EOF$"

_PRUNE = "Make room on the engine's disk: docker system prune."

# (error text, remedy), the first that matches: in the engine's message, and in the output of the step that failed.
_ENGINE = (
    (
        rf"pull access denied|manifest for|manifest unknown|repository does not exist|{_NO_NETWORK}",
        "The base image is not on this engine and could not be pulled. `docker images` lists what is there: give "
        "one of them as --base_image of elasticdl zoo init, or docker login, docker pull it, and build again.",
    ),
    (
        r"COPY failed|not found in build context|no source files were specified|failed to compute cache key",
        "What COPY names must be in the folder to build, and not in .dockerignore.",
    ),
    (r"BuildKit", "This Dockerfile needs BuildKit: build it with docker build -t NAME:TAG . instead."),
    (r"no space left on device", _PRUNE),
)
_STEP = (
    (r"[Nn]o space left on device", _PRUNE),
    (
        r"Requires-Python|requires a different Python|Python>=3\.|not a supported wheel on this platform",
        "ElasticDL needs Python 3.11 or newer, and wheels that were made for the Python of the base image: "
        "choose another --base_image, or build the wheels on this one.",
    ),
    (
        r"[Nn]o matching distribution found for elasticdl",
        "The index does not have this version of ElasticDL: make a wheel with scripts/docker_build_wheel.sh, and run "
        "elasticdl zoo init with --local_pkg_dir=build.",
    ),
    (
        r"python3: (command )?not found|No module named '?(pip|venv)|ensurepip is not available",
        "The base image needs Python 3.11 or newer with pip: choose another --base_image.",
    ),
    (
        r"name resolution|Failed to establish a new connection|Connection timed out|ReadTimeoutError",
        "The build cannot reach the package index: check the engine's network, give an index that it reaches with "
        "--extra_pypi_index, or provide the wheels with --local_pkg_dir.",
    ),
    (r"No matching distribution found", "Add the wheel to the folder of --local_pkg_dir, or name its index."),
)


def of_build(problem: str, tail: str) -> str:
    """What to do about a step that failed with this problem after these lines."""
    for said, known in ((problem, _ENGINE), (tail, _STEP)):
        for words, remedy in known:
            if re.search(words, said, re.MULTILINE):
                return remedy
    return "The lines above say why."


def of_push(image: str, registry: str, problem: str) -> str:
    """What to do about a push that a registry refused with this error."""
    host = "Docker Hub" if registry == "docker.io" else registry
    if re.search(r"HTTP response to HTTPS client", problem):
        return (
            f"{host} uses plain HTTP. If that is intended, add it to insecure-registries in the engine's daemon.json "
            "(and of every node that pulls), and restart the engine; registries on 127.0.0.1 need none of this."
        )
    if re.search(r"x509|certificate", problem):
        return f"Install the certificate of its authority on the engine: /etc/docker/certs.d/{host}/ca.crt."
    if re.search(r"denied|unauthorized|authentication required|no basic auth|forbidden|insufficient_scope", problem):
        if registry == "docker.io":
            return (
                f"{image} names no registry, so it goes to Docker Hub. Run docker login, and build it as USER/NAME:TAG "
                "of yours, or as HOST/NAME:TAG of another registry."
            )
        google = f" (Google's: gcloud auth configure-docker {host})" if host.endswith(("gcr.io", "pkg.dev")) else ""
        return f"Log in first: docker login {host}{google}. Your login must be allowed to push there."
    if re.search(r"invalid reference", problem):
        return "Give the image as it was built: HOST/NAME:TAG."
    if re.search(_NO_NETWORK, problem):
        return f"No answer from {host}: check its name, its port and the engine's network."
    if re.search(r"name unknown|not found", problem):
        return f"Create the repository at {host} first; some registries do not create it on a push."
    return "The message is the engine's or the registry's; their logs may have details."
