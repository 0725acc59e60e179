"""The user's part of a traceback: frames of ElasticDL and of the frameworks are dropped."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elasticdl.errors import ElasticDLError, ModelError

_OURS = Path(__file__).resolve().parents[1]


def _inside(filename: str, roots: Sequence[Path]) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(root) for root in roots)


def user_traceback(exc: BaseException, roots: Sequence[Path]) -> str:
    """The traceback of `exc` with only frames under `roots`, the frame that raised (unless it is ours) and the error.

    The causes of the exception are kept and trimmed in the same way.
    """
    resolved = [root.resolve() for root in roots]
    shown = traceback.TracebackException.from_exception(exc)
    link: traceback.TracebackException | None = shown
    while link is not None:
        frames = list(link.stack)
        last = len(frames) - 1
        link.stack = traceback.StackSummary.from_list(
            f
            for i, f in enumerate(frames)
            if _inside(f.filename, resolved)
            or (i == last and not _inside(f.filename, [_OURS]) and not f.filename.startswith("<frozen"))
        )
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(shown.format()).rstrip("\n")


@contextmanager
def user_code(path: str, roots: Sequence[Path], doing: str) -> Iterator[None]:
    """Exceptions of the user's code inside become ModelErrors with the user's part of the traceback.

    Errors of ElasticDL pass unchanged. So does MemoryError, since it is about the machine and not about the model.
    """
    try:
        yield
    except (ElasticDLError, MemoryError):
        raise
    except Exception as exc:  # the border to the user's code: it may raise anything
        what = f"{type(exc).__name__} while {doing}"
        raise ModelError(path, what, traceback=user_traceback(exc, roots)) from exc
