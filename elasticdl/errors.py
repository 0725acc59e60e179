"""The exceptions that ElasticDL raises on purpose. This file defines those that name no other file here.

ElasticDLError
├── UsageError           the request is wrong; lists every problem; exit code 2
├── JobFailed            a job started and could not finish; exit code 1
│   └── VolumeAway       the volume of the job's files does not answer or is in use; a later attempt may succeed
├── SentAway             this process has to end; another one continues its work
├── DataError            a data file is missing, corrupt or truncated; names file, offset and remedy
├── ModelError           the user's model file is wrong or raised an error; carries the user's traceback
│   └── ScheduleError    its learning-rate schedule raised an error or gave no rate; skipping a record does not help
├── ImageError           an image could not be built or pushed; names the engine's or registry's error and the remedy
└── WireError            communication with another process of the job failed
    ├── Refused          the other side refuses and says why; retrying does not help
    │   └── ApiRefused   cluster/kubernetes/api.py: the Kubernetes API refuses; carries its status code
    ├── Unreachable      no answer within the deadline
    ├── CalledOff        a collective ended early because the world changes
    ├── GroupBroken      a collective failed; a peer is gone or cannot be reached
    ├── Interrupted      ps/connections.py: the worker no longer waits for a server
    ├── Resend           ps/connections.py: a server expects an earlier batch of the lease first
    ├── Stale            ps/connections.py: a push was computed on too old a version
    ├── TimelineOver     ps/connections.py: a server is on another timeline
    └── _Over            ps/service.py: the same, on the server's side

Bytes and values from outside; the reader adds their place and raises one of the above or answers with a refusal:

ValueError
├── Invalid              job/invalid.py: the value of a flag
├── BadFrame             wire/frames.py: a message of the data plane
├── BadExample           data/example_wire.py: a serialized tf.train.Example
└── Malformed            cluster/messages.py: a message between the launcher and its processes

Signals inside one package, caught there:

Exception
├── PeerLost             collective/peer_sockets.py: the connection to a peer ended
├── Cancelled            ps/saving.py: a checkpoint is no longer written
├── Unavailable          data/mnist.py: one source of MNIST; the next one is tried
└── NotPermitted         cli/chaos/connections.py: the system does not allow this fault
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what the user asked for."""

    where: str  # the flag, key or file, as the user wrote it: "--num_workers"
    value: str  # what stood there; empty when nothing did
    what: str  # what is wrong with it
    remedy: str  # what to do

    def __str__(self) -> str:
        shown = f"{self.where}={self.value}" if self.value else self.where
        return f"{shown}: {self.what}. {self.remedy}"


class ElasticDLError(Exception):
    """Base of everything ElasticDL raises on purpose."""

    exit_code = 1


class UsageError(ElasticDLError):
    """The request is wrong; every problem found is listed."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class JobFailed(ElasticDLError):
    """A job started and could not finish; the message is the reason."""


class VolumeAway(JobFailed):
    """The job's files are held by another, or their volume does not answer: it may pass."""


class SentAway(ElasticDLError):
    """This process was told to go, and has seen to what it leaves behind."""


class DataError(ElasticDLError):
    """A data file cannot be read."""

    def __init__(self, path: str, what: str, remedy: str, offset: int | None = None) -> None:
        self.path, self.what, self.remedy, self.offset = path, what, remedy, offset
        at = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"{path}{at}: {what}. {remedy}")


class ModelError(ElasticDLError):
    """The user's model file is wrong, or its code raised."""

    # Keras makes an exception anew from its text alone.
    def __init__(self, path: str, what: str = "", remedy: str = "", traceback: str = "") -> None:
        self.path, self.what, self.remedy, self.traceback = path, what, remedy, traceback
        parts = [f"{path}: {what}" if what else path]
        if traceback:
            parts.append(traceback.rstrip())
        if remedy:
            parts.append(remedy)
        super().__init__("\n".join(parts))


class ScheduleError(ModelError):
    """The user's learning-rate schedule raised, or gave something that is no rate."""


class ImageError(ElasticDLError):
    """An image could not be built or pushed."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}. {remedy}")


class WireError(ElasticDLError):
    """Talking to another process of the job failed."""


class Refused(WireError):
    """The other side said no; retrying does not help."""


class Unreachable(WireError):
    """No answer within the deadline."""


class CalledOff(WireError):
    """A collective ended early because the world changes."""


class GroupBroken(WireError):
    """A collective failed: a peer is gone, or cannot be reached; `suspects` names those that may be to blame."""

    def __init__(self, what: str, suspects: Sequence[str] = ()) -> None:
        self.suspects = tuple(suspects)
        super().__init__(what)
