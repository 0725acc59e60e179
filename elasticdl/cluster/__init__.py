"""Where replicas run: one `Cluster` protocol, and its memory, local and Kubernetes implementations."""

from elasticdl.cluster.protocol import (
    EXIT_OUT_OF_MEMORY,
    Cluster,
    Exit,
    ReplicaPhase,
    ReplicaRequest,
    ReplicaStatus,
)

__all__ = ["EXIT_OUT_OF_MEMORY", "Cluster", "Exit", "ReplicaPhase", "ReplicaRequest", "ReplicaStatus"]
