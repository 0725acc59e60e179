"""What user code imports to train elastically with a loop of its own."""

from elasticdl.api.elastic import Elastic
from elasticdl.api.job import Job, join
from elasticdl.api.terms import Part

__all__ = ["Elastic", "Job", "Part", "join"]
