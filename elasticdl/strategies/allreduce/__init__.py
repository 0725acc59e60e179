"""Elastic all-reduce: workers sum gradients among themselves, in worlds that follow each other."""
