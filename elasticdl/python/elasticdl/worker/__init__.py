"""`python -m elasticdl.python.elasticdl.worker.main`."""
