"""Readers: record ranges in, records out; no deep-learning framework inside."""
