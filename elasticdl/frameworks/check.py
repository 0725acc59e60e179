"""A process of its own that finds out what is wrong with a model file before a job starts.

`python -m elasticdl.frameworks.check '{"model_zoo": ..., "model_def": ...}'` imports the file, builds the
model and reads the optimizer. It exits with 0, or with 2 and the problem on standard error. The command that
starts a job runs it, so that it need not import a framework itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from elasticdl.errors import ModelError, UsageError
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.frameworks.optimizers import read_optimizer


def check_model(request: ModelRequest) -> None:
    """Raise the ModelError or UsageError that a worker would meet at its start."""
    code = ModelFile(request)
    code.metrics()
    model = code.build_checked()
    parameters = _torch_parameters(model)
    read_optimizer(code, parameters)


def _torch_parameters(model: Any) -> list[Any]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return []
    return [p for p in model.parameters() if p.requires_grad]


def main(arguments: list[str]) -> int:
    try:
        check_model(ModelRequest(**json.loads(arguments[0])))
    except (ModelError, UsageError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
