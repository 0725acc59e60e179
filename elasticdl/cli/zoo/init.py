"""`elasticdl zoo init`: checks the flags against the current folder, and writes a Dockerfile there."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from elasticdl import __version__
from elasticdl.cli.zoo import dockerfile
from elasticdl.cli.zoo.dockerfile import Recipe
from elasticdl.errors import Problem, UsageError
from elasticdl.job import names

WHEELS = "scripts/docker_build_wheel.sh makes ElasticDL's."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = f"an image with Python 3.11 or newer and pip (default: {dockerfile.BASE_IMAGE})"
    parser.add_argument("--base_image", "--base-image", metavar="IMAGE", default=dockerfile.BASE_IMAGE, help=what)
    what = "the folder of models, here or below; /model_zoo in the image (default: this folder)"
    parser.add_argument("--model_zoo", "--model-zoo", metavar="DIR", default=".", help=what)
    what = "a folder of wheels, here or below, which are installed before packages of the index"
    parser.add_argument("--local_pkg_dir", "--local-pkg-dir", metavar="DIR", default="", help=what)
    what = "another package index, besides the usual one"
    parser.add_argument("--extra_pypi_index", "--extra-pypi-index", metavar="URL", default="", help=what)
    what = "a file for --cluster_spec of jobs, here or below; /cluster_spec in the image"
    parser.add_argument("--cluster_spec", "--cluster-spec", metavar="FILE", default="", help=what)
    parser.add_argument("--force", action="store_true", help="replace a Dockerfile that this command did not write")


def run(args: argparse.Namespace) -> int:
    """Writes Dockerfile, and .dockerignore where there is none, into the current folder."""
    here = Path.cwd()
    recipe = read_recipe(args, here)
    target = here / "Dockerfile"
    if not args.force:
        _require_ours(target)
    target.write_text(dockerfile.text(recipe))
    written = "Dockerfile"
    ignored = here / ".dockerignore"
    if not ignored.exists():
        ignored.write_text(dockerfile.IGNORED)
        written += " and .dockerignore"
    print(f"Wrote {written}: /{dockerfile.ZOO} will hold {_named(recipe.model_zoo)}, on {recipe.base_image}.")
    print("Next: elasticdl zoo build --image=NAME:TAG .")
    secret = urlsplit(recipe.extra_index)
    if secret.password or secret.username:
        warning = (
            "--extra_pypi_index contains a login, which the Dockerfile and the image's history show to every reader"
        )
        print(f"elasticdl zoo: {warning}.", file=sys.stderr)
    return 0


def read_recipe(args: argparse.Namespace, here: Path) -> Recipe:
    """What the flags ask for; a UsageError lists everything that is wrong with them."""
    problems: list[Problem] = []
    zoo = _inside(here, "--model_zoo", args.model_zoo, problems, folder=True)
    wheels = _inside(here, "--local_pkg_dir", args.local_pkg_dir, problems, folder=True) if args.local_pkg_dir else ""
    spec = _inside(here, "--cluster_spec", args.cluster_spec, problems, folder=False) if args.cluster_spec else ""
    if wheels and not list((here / wheels).glob("*.whl")):
        problems.append(Problem("--local_pkg_dir", args.local_pkg_dir, "no wheel in it", f"Put some there: {WHEELS}"))
    if re.search(r"\s", args.base_image) or not args.base_image:
        remedy = f"Write it as in docker images, like {dockerfile.BASE_IMAGE}."
        problems.append(Problem("--base_image", args.base_image, "not the name of an image", remedy))
    if args.extra_pypi_index and urlsplit(args.extra_pypi_index).scheme not in ("http", "https", "file"):
        remedy = "Write the whole address, with https:// in front."
        problems.append(Problem("--extra_pypi_index", args.extra_pypi_index, "not an address", remedy))
    if problems:
        raise UsageError(problems)
    return Recipe(
        version=__version__,
        base_image=args.base_image,
        model_zoo=zoo,
        requirements=(here / zoo / "requirements.txt").is_file(),
        wheels=wheels,
        own_wheel=bool(wheels) and bool(list((here / wheels).glob("elasticdl-*.whl"))),
        extra_index=args.extra_pypi_index,
        cluster_spec=spec,
    )


def _inside(here: Path, flag: str, value: str, problems: list[Problem], folder: bool) -> str:
    """A path for the Dockerfile: below the current folder, since the engine gets no other."""
    path = Path(os.path.normpath(here / names.expanded(value)))
    if not (path.is_dir() if folder else path.is_file()):
        what = "no such directory" if folder else "no such file"
        problems.append(Problem(flag, value, what, f"Give a path below {here}."))
    elif not path.is_relative_to(here):
        what = "is outside the folder to build; Docker copies nothing from there"
        problems.append(Problem(flag, value, what, "Run this in a folder above it, or copy it here."))
    else:
        return path.relative_to(here).as_posix()
    return "."


def _require_ours(target: Path) -> None:
    author = dockerfile.author(target.read_text(errors="replace")) if target.exists() else "init"
    if author == "init":
        return
    what = {"edited": "was edited since elasticdl zoo init wrote it", "user": "was not written by elasticdl zoo init"}
    remedy = "Build it as it is (elasticdl zoo build), move it away, or give --force to replace it."
    raise UsageError([Problem("Dockerfile", "", what[author], remedy)])


def _named(folder: str) -> str:
    return "this folder" if folder == "." else folder
