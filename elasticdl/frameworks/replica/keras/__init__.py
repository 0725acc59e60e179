"""Keras models of all-reduce jobs, on torch, JAX and TensorFlow."""
