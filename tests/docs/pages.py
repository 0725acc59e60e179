"""The pages of the documentation, cut into what can be tried: commands, programs, links, flags, file names."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "model_zoo" / "README.md"])

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Command:
    """An `elasticdl` command line as a page shows it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)[:60]}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return _FENCE.findall(page.read_text())


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def inline(page: Path) -> list[str]:
    """What stands between single backticks."""
    return _INLINE.findall(prose(page))


def links(page: Path) -> list[str]:
    """Links within the repository."""
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as they are made for browsers."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[Command]:
    """Every `elasticdl` command line of a block that starts with one, continuations joined, redirections cut off.

    Blocks that show output may hold a command as well (the one to go on with); those are left out.
    """
    found = []
    for language, text in blocks(page):
        lines = text.replace("\\\n", " ").splitlines()
        if language or not lines or not lines[0].startswith(("elasticdl ", "source ", "kill ")):
            continue
        for line in lines:
            if re.match(r"elasticdl [a-z-]+( |$)", line) and "..." not in line:
                found.append(Command(name_of(page), tuple(shlex.split(line.partition(" > ")[0], comments=True)[1:])))
    return found


def flags(page: Path) -> set[str]:
    """Every flag that the page names, in prose or in a block."""
    code = [*inline(page), *(text for language, text in blocks(page) if language in ("", "sh", "bash"))]
    found = {flag for text in code for flag in re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]*)", text)}
    return {flag.replace("-", "_") for flag in found}
