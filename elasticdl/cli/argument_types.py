"""Numbers as commands take them: types for argparse, which says what is wrong."""

from __future__ import annotations

from argparse import ArgumentTypeError


def count(text: str, least: int = 0) -> int:
    value = int(text)
    if value < least:
        raise ArgumentTypeError(f"{text} is less than {least}")
    return value


def positive(text: str) -> int:
    return count(text, 1)


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text} is not above 0")
    return value
