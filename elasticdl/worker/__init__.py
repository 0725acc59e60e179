"""The worker: the training and evaluation loops, and its session with the master."""
