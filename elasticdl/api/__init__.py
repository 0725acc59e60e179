"""What user code imports to train elastically with a loop of its own."""

from elasticdl.api.elastic import Elastic, Part
from elasticdl.api.job import Job, join

__all__ = ["Elastic", "Job", "Part", "join"]
