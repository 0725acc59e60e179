"""The drawing of all exceptions in `errors.py` is complete and true."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

from elasticdl import errors

PACKAGE = Path(errors.__file__).parent
Entry = tuple[str, str, str]  # class, base, file


def drawn() -> set[Entry]:
    found: set[Entry] = set()
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if node := re.match(r"([│ ]*)[├└]── (\w+) +(?:(\S+\.py):)?", line):
            depth = len(node[1]) // 4
            parents[depth + 1 :] = [node[2]]
            found.add((node[2], parents[depth], node[3] or "errors.py"))
        elif re.fullmatch(r"\w+", line):
            parents = [line]
    return found


def defined() -> set[Entry]:
    """Every exception class of the package, from its source: not every module can be imported everywhere."""
    classes = [
        (c.name, ast.unparse(base), str(path.relative_to(PACKAGE)))
        for path in PACKAGE.rglob("*.py")
        for c in ast.walk(ast.parse(path.read_text()))
        if isinstance(c, ast.ClassDef)
        for base in c.bases
    ]
    known = {n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, BaseException)}
    found: set[Entry] = set()
    while more := {c for c in classes if c[1] in known} - found:
        found |= more
        known |= {name for name, _, _ in more}
    return found - {("ElasticDLError", "Exception", "errors.py")}


def test_every_exception_is_drawn_under_its_base_with_its_file() -> None:
    assert drawn() == defined()
