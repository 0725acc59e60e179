"""What is wrong with a value: an exception for validators, and pydantic's errors as Problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from elasticdl.errors import Problem


class Invalid(ValueError):
    """A value that a knob cannot take: what is wrong, and what to write instead."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}. {remedy}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name a user most likely meant, if any is close."""
    names = list(known)
    folded = {n.lower().replace("-", "_"): n for n in names}
    wanted = name.lower().replace("-", "_")
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.6)
    if close:
        return folded[close[0]]
    # A shortened name is not "close" letter by letter: --batch_size for --minibatch_size.
    inside = sorted((n for n in folded if wanted and len(wanted) > 3 and wanted in n), key=len)
    return folded[inside[0]] if inside else None


def shown(value: Any) -> str:
    """A value as the user would have written it, short enough for one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "" if value is None else str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def from_validation(error: ValidationError, where: dict[str, str] | None = None) -> list[tuple[str, Problem]]:
    """Each pydantic error as (field, Problem). `where` gives the user's own spelling of a field."""
    found: list[tuple[str, Problem]] = []
    for detail in error.errors():
        field = str(detail["loc"][0]) if detail["loc"] else ""
        what, remedy = _in_words(detail["type"], detail.get("ctx", {}), detail["msg"], detail["input"])
        place = (where or {}).get(field, f"--{field}" if field else "job")
        if not any(name == field for name, _ in found):  # one problem per knob: later ones are echoes
            found.append((field, Problem(place, shown(detail["input"]), what, remedy)))
    return found


def _in_words(kind: str, context: dict[str, Any], message: str, value: Any) -> tuple[str, str]:
    raised = context.get("error")
    if isinstance(raised, Invalid):
        return raised.what, raised.remedy
    if kind == "greater_than_equal":
        return f"below {context['ge']}, the minimum", f"Give {context['ge']} or more."
    if kind == "greater_than":
        return f"not above {context['gt']}", f"Give a number above {context['gt']}."
    if kind in ("less_than_equal", "less_than"):
        limit = context.get("le", context.get("lt"))
        return f"above {limit}, the maximum", f"Give at most {limit}."
    if kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ")
        meant = nearest(str(value), choices.split(", "))
        return f"not one of {choices}", f"Did you mean {meant}?" if meant else "Choose one of them."
    if kind in ("bool_parsing", "bool_type"):
        return "neither true nor false", "Write true or false."
    if kind in ("float_parsing", "float_type", "finite_number"):
        return "not a number", "Give a number, such as 30 or 0.5."
    if kind == "string_type":
        return "not text", "Give a single word or path."
    if kind == "extra_forbidden":
        return "not known", "Remove it."
    return message[:1].lower() + message[1:], "Correct the value."
