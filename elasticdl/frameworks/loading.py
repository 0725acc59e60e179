"""Build the model of a model file, with Keras or torch, for parameter servers or for all-reduce."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext

from elasticdl.errors import ModelError
from elasticdl.frameworks import memory
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.model_file import ModelFile, ModelRequest, is_keras_model
from elasticdl.frameworks.replica.model_replica import ModelReplica
from elasticdl.frameworks.trainable import Trainable


def load_trainable(
    source: ModelRequest | ModelFile, seed: int, sample: Callable[[], Arrays] | None = None
) -> Trainable:
    """Import the model file and build its model; names and initial values are a function of the seed.

    `sample` returns the features of one batch. It is called only for models that need data to know their shapes.
    """
    code = source if isinstance(source, ModelFile) else ModelFile(source)
    _seed_frameworks(seed)
    births, watched = None, nullcontext()
    if code.request.table_threshold_bytes and "torch" in sys.modules:
        from elasticdl.frameworks.torch.moving import Births

        births = watched = Births()
    with watched:
        model = code.build()
    if is_keras_model(model):
        from elasticdl.frameworks.keras.backends import keras_trainable

        return keras_trainable(model, code, seed, sample)
    from elasticdl.frameworks.torch.trainable import TorchTrainable

    return TorchTrainable(model, code, sample, births)


def load_replica(
    source: ModelRequest | ModelFile,
    seed: int,
    sample: Callable[[], Arrays] | None = None,
    *,
    device: str | None = None,
    deterministic: bool = True,
) -> ModelReplica:
    """Import the model file and build model and optimizer; names and initial values are a function of the seed.

    `sample` returns the features of one batch, for models that need data to know their shapes. The default `device` is
    the first GPU if there is one, else the CPU.
    """
    if importlib.util.find_spec("torch") is None:
        path = source.path if isinstance(source, ModelFile) else source.model_def
        remedy = "Run `pip install torch`; Keras can still use another backend."
        raise ModelError(path, "all-reduce needs torch to exchange gradients, and torch is not installed", remedy)
    from elasticdl.frameworks import determinism

    memory.keep_freed_memory()
    code = source if isinstance(source, ModelFile) else ModelFile(source)
    if deterministic:
        determinism.use_deterministic_algorithms()
    _seed_frameworks(seed)
    if "keras" in sys.modules and device is not None:
        from elasticdl.frameworks.replica.keras.backends import choose_device

        choose_device(device)
    model = code.build()
    if is_keras_model(model):
        from elasticdl.frameworks.replica.keras.backends import keras_replica

        return keras_replica(model, code, seed, sample)
    from elasticdl.frameworks.replica.torch.module import TorchReplica

    return TorchReplica(model, code, seed, sample, device)


def _seed_frameworks(seed: int) -> None:
    """Make names and initial values of the next model a function of the seed."""
    if "keras" in sys.modules:
        from elasticdl.frameworks.keras.model import seed_everything

        seed_everything(seed)
    if "torch" in sys.modules:
        from elasticdl.frameworks.determinism import set_random_state

        set_random_state(seed)
