"""Decides what happens in a job with parameter servers; pure, like `elasticdl.core`."""
