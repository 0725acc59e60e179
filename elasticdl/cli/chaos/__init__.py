"""`elasticdl chaos`: disturbs a running job on purpose, by a schedule that a seed reproduces, and says how it went."""
