"""Each cluster against the contract suite."""

from __future__ import annotations

import pytest

from .contract import ClusterContract
from .stages import local_stage, memory_stage, memory_stage_through_a_socket, supervisor_stage


class TestMemoryCluster(ClusterContract):
    stage = staticmethod(memory_stage)


class TestMemoryClusterThroughASocket(ClusterContract):
    stage = staticmethod(memory_stage_through_a_socket)


@pytest.mark.processes
class TestSupervisor(ClusterContract):
    stage = staticmethod(supervisor_stage)


@pytest.mark.processes
class TestLocalCluster(ClusterContract):
    stage = staticmethod(local_stage)
