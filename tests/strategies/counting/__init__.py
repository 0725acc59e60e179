"""A third strategy: hands out shards and counts them, and nothing else. It shows what a new one has to bring."""
