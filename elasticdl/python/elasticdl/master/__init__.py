"""`python -m elasticdl.python.elasticdl.master.main`."""
