"""The command line of `elasticdl zoo`."""

from __future__ import annotations

import argparse

from elasticdl.cli.zoo import init


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `elasticdl zoo`."""
    commands = parser.add_subparsers(dest="zoo_command", required=True, metavar="COMMAND")
    about = "write a Dockerfile for a folder of models"
    init.add_arguments(commands.add_parser("init", help=about, description=f"{about[0].upper()}{about[1:]}."))
    about = "build the image with the Docker engine"
    build = commands.add_parser("build", help=about, description=f"{about[0].upper()}{about[1:]}.")
    build.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="the folder with the Dockerfile (default: .)"
    )
    build.add_argument("--image", metavar="NAME:TAG", required=True, help="the image's name, for --image_name of jobs")
    about = "push an image to its registry"
    push = commands.add_parser("push", help=about, description=f"{about[0].upper()}{about[1:]}.")
    push.add_argument("image", metavar="IMAGE", help="HOST/NAME:TAG, as given to build")


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; returns the exit code."""
    if args.zoo_command == "init":
        return init.run(args)
    if args.zoo_command == "build":
        from elasticdl.cli.zoo import build

        return build.run(args.path, args.image)
    from elasticdl.cli.zoo import push

    return push.run(args.image)
