"""Numbers as commands take them: types for argparse, which says what is wrong."""

from __future__ import annotations

from argparse import ArgumentTypeError


def count(text: str) -> int:
    """0 or more."""
    value = int(text)
    if value < 0:
        raise ArgumentTypeError(f"{text} is below 0")
    return value


def positive(text: str) -> int:
    """1 or more."""
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f"{text} is less than 1")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text} is not above 0")
    return value
