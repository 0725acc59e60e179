"""Keras 3 models on torch, JAX and TensorFlow."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it on its first import
