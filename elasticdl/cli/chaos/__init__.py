"""`elasticdl chaos`: injects faults into a running job, by a seeded schedule, and reports the outcome."""
