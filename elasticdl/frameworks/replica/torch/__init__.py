"""Plain torch models of all-reduce jobs, and torch optimizers, which Keras models on torch can use too."""
