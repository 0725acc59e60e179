"""How a job ends: the words in its result, its status and its journal."""

from enum import StrEnum


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
