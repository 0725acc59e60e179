"""Decides what happens in an all-reduce job; pure, like `elasticdl.core`."""
