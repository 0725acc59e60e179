"""`elasticdl zoo push`: pushes an image from the Docker engine to its registry."""

from __future__ import annotations

import time

from elasticdl.cli.zoo.engine import connect, explained, failure, troubles
from elasticdl.cli.zoo.layers import Layers
from elasticdl.cli.zoo.remedies import of_push
from elasticdl.errors import ImageError, Problem, UsageError


def run(image: str) -> int:
    """Pushes the image with its tag."""
    from docker.auth import resolve_repository_name
    from docker.errors import ImageNotFound, InvalidRepository
    from docker.utils import parse_repository_tag

    client = connect()
    repository, tag = parse_repository_tag(image)
    began, registry, digest = time.monotonic(), "", ""
    try:
        registry, _ = resolve_repository_name(image)
        client.inspect_image(image)
        with Layers() as layers:
            for event in client.push(repository, tag=tag or "latest", stream=True, decode=True):
                problem = failure(event)
                if problem:
                    layers.settle()
                    raise _refused(image, registry, problem)
                digest = (event.get("aux") or {}).get("Digest") or digest
                if "status" in event:
                    layers.show(event)
    except (ImageNotFound, InvalidRepository) as error:
        remedy = f"Build it first: elasticdl zoo build --image={image} ."
        raise UsageError([Problem(image, "", "no such image on this Docker engine", remedy)]) from error
    except troubles() as error:
        raise _refused(image, registry, *explained(error)) from error
    print(f"Pushed {image}: {digest}, {time.monotonic() - began:.0f} s.")
    return 0


def _refused(image: str, registry: str, problem: str, remedy: str = "") -> ImageError:
    return ImageError(f"{image} was not pushed: {problem.rstrip('.')}", remedy or of_push(image, registry, problem))
