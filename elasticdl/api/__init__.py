"""What user code imports to train elastically with a loop of its own."""

from elasticdl.api.elastic import Elastic
from elasticdl.api.job import JoinedJob, join
from elasticdl.api.terms import StepPart

__all__ = ["Elastic", "JoinedJob", "StepPart", "join"]
