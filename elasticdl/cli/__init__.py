"""The `elasticdl` command."""
