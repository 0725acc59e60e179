"""Elastic all-reduce as a worker sees it: worlds, the deterministic sum, state from peer to peer."""
