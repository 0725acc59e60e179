"""The page on how exactly-once is proven counts the mutants that there are."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.mutants import MUTANTS

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "exactly-once.md"


def test_the_page_counts_the_mutants_and_names_the_command() -> None:
    words = " ".join(PAGE.read_text().split())
    assert len(MUTANTS) == 4 + 30
    assert "four that the old ElasticDL had, and thirty that this design invites" in words
    assert "python -m tests.simulation 43" in words
