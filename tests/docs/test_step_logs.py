"""What the benchmarks of recovery read out of the steps that workers log: a pause must not get lost between worlds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.observing import Seen, longest_gap

OLD, NEW = (11, 12), (21, 22, 23)  # processes: none of the old ones is in the new world, which starts over at step 1


def seen(path: Path, generations: tuple[int, int]) -> Seen:
    """Two workers commit a step a second; at 10 a third joins; 8 s after their last step all begin anew."""
    lines = [f"{step} {step} {pid} {generations[0]}" for step in range(1, 14) for pid in OLD]
    lines += [f"{20 + step} {step} {pid} {generations[1]}" for step in range(1, 20) for pid in NEW]
    path.write_text("".join(f"{line}\n" for line in lines))
    return Seen.read(path)


def test_the_pause_between_two_worlds_is_seen(tmp_path: Path) -> None:
    assert longest_gap(seen(tmp_path / "steps", (5, 6)), 10.0, 30.0) == 21 - 13


def test_worlds_under_one_number_are_refused_instead_of_hiding_their_pause(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two worlds logged under one number"):
        longest_gap(seen(tmp_path / "steps", (0, 0)), 10.0, 30.0)
