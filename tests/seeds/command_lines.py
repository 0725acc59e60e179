"""The command lines that the tutorials of older versions have a user type, cut out of their pages."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
SEEDS = HERE.parents[2] / "shared" / "seeds"
COPY = HERE / "command_lines.txt"

_FENCE = re.compile(r"^``` ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(
    r"(\$ )?(cat|cd|docker|eksctl|elasticdl|eval|export|gcloud|git|kubectl|make|minikube|mkdir|pip|sed|wget|"
    r"scripts/\S+|[A-Z_]+=\S+)( |$)"
)


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages; most of its shell blocks say bash, some nothing."""
    return [body for language, body in _FENCE.findall(text) if language in languages]


def command_lines(text: str) -> list[str]:
    """Every command of a page on one line, as typed; what stands among them and is output is left out."""
    found = []
    for block in blocks(text, "bash", ""):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        document = False
        for line in lines:
            if document:
                document = line != "EOF"
            elif _COMMAND.match(line):
                document = "<<EOF" in line
                found.append(re.sub(r"\s+", " ", line.removeprefix("$ ")).strip())
    return found


def in_seeds() -> list[str]:
    """`000 COMMAND` for each, in order; nothing where the pages are not beside this checkout."""
    pages = sorted(SEEDS.iterdir()) if SEEDS.exists() else []
    return [f"{page.name[:3]} {line}" for page in pages for line in command_lines(page.read_text())]
