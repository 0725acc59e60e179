"""Plain torch models of all-reduce jobs, and what Keras models on torch share with them."""
