"""One package per strategy: its machine, messages, status, roles and checks."""
