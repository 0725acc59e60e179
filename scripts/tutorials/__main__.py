"""Plays a tutorial on a real cluster and writes down what was typed and seen.

python scripts/tutorials one-node --out docs/tutorials/one-node.md

The cluster must be reachable by kubectl, its engine by docker, and /data/mnist must be on its node.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from shell import Shell
from stories import ROOT, STORIES, Stage, by_hand


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tutorials", description=__doc__.partition("\n")[0])
    parser.add_argument("story", choices=STORIES)
    parser.add_argument("--out", type=Path, required=True, help="the page to write")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--base_image", default="elasticdl:runtime", help="what the image with the models is built on")
    parser.add_argument("--dev_image", default="elasticdl:dev", help="for master and worker by hand")
    parser.add_argument("--mounts", default="", help="options of docker run for them, such as -v /data:/data")
    parser.add_argument("--stand_in", default="", help="an image with sleep that plays nginx's part")
    parser.add_argument("--scale", type=float, help="of the CPU and memory that pods ask for")
    args = parser.parse_args()
    title, scale, play = STORIES[args.story]
    scale = args.scale or scale
    with tempfile.TemporaryDirectory(prefix="elasticdl-tutorial-") as top:
        folder, programs = Path(top) / "elasticdl", Path(top) / "bin"
        programs.mkdir()
        client = programs / "elasticdl"  # of this tree, installed or not
        client.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m elasticdl "$@"\n')
        client.chmod(0o755)
        shutil.copytree(ROOT / "model_zoo", folder / "model_zoo", ignore=shutil.ignore_patterns("__pycache__"))
        env = {"PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
        shell = Shell(folder, env, [(f"{ROOT}/", ""), (str(folder), "~/elasticdl"), ("/root/", "~/")])
        mounts = f"{args.mounts} " if args.mounts else ""
        stage = Stage(shell, args.base_image, args.namespace, scale, args.dev_image, mounts, args.stand_in)
        jobs = ("test-mnist", "test-mnist-allreduce") if play is not by_hand else ()
        stage.clear(*jobs)
        shell.say(f"# {title}")
        where = "a cluster of one node" if jobs else "a machine"
        shell.say(ABOUT.format(story=args.story, where=where) + (SCALED.format(scale=scale) if scale != 1 else ""))
        try:
            play(stage)
        finally:
            stage.clear(*jobs)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(shell.transcript())
    return 0


ABOUT = (
    "Played by `python scripts/tutorials {story}` on {where} with two CPUs; nothing here was typed by "
    "hand. The commands are those of the old tutorial but for the image and the data, and where the page says so."
)
SCALED = " What pods ask for is {scale:g} times what they ask for there, to fit on that node."

if __name__ == "__main__":
    sys.exit(main())
