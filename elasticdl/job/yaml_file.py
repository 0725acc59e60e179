"""Reading a job from a YAML file: a mapping with the names of the flags as its keys."""

from __future__ import annotations

from typing import Any

import yaml

from elasticdl.errors import Problem
from elasticdl.job import names


class _Loader(yaml.SafeLoader):
    """SafeLoader, except that a key written twice is an error: YAML itself would keep the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str) -> tuple[dict[str, Any], list[Problem]]:
    """The file's keys and values as they stand there, with keys that are null left out."""
    try:
        text = names.expanded(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
        return {}, [Problem("-f", path, f"cannot be read: {reason}", "Give a YAML file.")]
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        return {}, [Problem("-f", path, _where(error), "Correct the file.")]
    if content is None:
        return {}, []
    if not isinstance(content, dict):
        return {}, [Problem("-f", path, "not a mapping", "Write one name: value per line, such as num_workers: 2.")]
    return {str(key): value for key, value in content.items() if value is not None}, []


def _where(error: yaml.YAMLError) -> str:
    what = getattr(error, "problem", None) or "not YAML"
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}" if mark is not None else what
