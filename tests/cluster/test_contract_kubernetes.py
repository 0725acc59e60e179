"""The contract suite on a real Kubernetes cluster."""

from __future__ import annotations

import pytest

from .contract import ClusterContract
from .kubernetes_stage import kubernetes_stage


@pytest.mark.kubernetes
class TestKubernetesCluster(ClusterContract):
    stage = staticmethod(kubernetes_stage)
    deadline_seconds = 120.0  # old kubelets are slow
