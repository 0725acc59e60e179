"""`python -m elasticdl.python.master.main`."""
