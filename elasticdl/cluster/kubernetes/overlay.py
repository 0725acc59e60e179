"""The user's changes to pods: the Python file of --cluster_spec."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes.reading import Pod
from elasticdl.errors import Problem, UsageError


def load(path: Path) -> Callable[[Pod], Pod]:
    """The file's `with_pod(pod)`, or that of its object `cluster`: takes a pod as dicts and lists, as in
    Kubernetes' JSON, and returns it changed (or changes it in place and returns None).
    """
    spec = importlib.util.spec_from_file_location("elasticdl_cluster_spec", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise _problem(path, "is not a Python file", "Name a .py file that defines with_pod(pod).")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code: report any exception to the user
        raise _problem(path, f"raised {error!r} when it was loaded", "Fix the file.") from error
    with_pod = getattr(module, "with_pod", None) or getattr(getattr(module, "cluster", None), "with_pod", None)
    if not callable(with_pod):
        raise _problem(path, "defines no with_pod", "Define with_pod(pod), or an object `cluster` that has it.")

    def changed(pod: Pod) -> Pod:
        try:
            result: Any = with_pod(pod)
        except Exception as error:  # the user's code
            remedy = "A pod is made of dicts and lists: pod['spec']['tolerations'] = [...]."
            raise _problem(path, f"with_pod raised {error!r}", remedy) from error
        result = pod if result is None else result
        if not isinstance(result, dict) or "spec" not in result or "metadata" not in result:
            raise _problem(path, f"with_pod returned {type(result).__name__}", "Return the pod.")
        return result

    return changed


def _problem(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError([Problem("--cluster_spec", str(path), what, remedy)])
