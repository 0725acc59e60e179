"""The page that explains messages explains messages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
HEADINGS = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def code() -> str:
    """The code, and the tests of the command line, which expect whole messages that the code puts together."""
    others = [path for path in (ROOT / "tests" / "cli").glob("*.py") if path != Path(__file__)]
    return "\n".join(path.read_text() for path in [*sorted((ROOT / "elasticdl").rglob("*.py")), *others])


def test_the_page_has_headings() -> None:
    assert len(HEADINGS) > 20


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_heading_is_a_message_of_the_code(heading: str, code: str) -> None:
    pieces = [re.escape(piece.strip()) for piece in heading.split("…") if piece.strip()]
    assert re.search(r"[^\n]{0,80}".join(pieces), code) is not None


def test_every_page_that_is_linked_exists() -> None:
    for page in ("docs/troubleshooting.md", "docs/decisions/launcher.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
            assert (ROOT / page).parent.joinpath(link).exists(), link
