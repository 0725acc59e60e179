"""Resources, volumes and priorities, read from the text of their flags."""

from __future__ import annotations

import pytest

from elasticdl.job.invalid import Invalid
from elasticdl.job.resources import PrioritySpec, ResourceSpec, VolumeSpec, read_volumes


def test_cores_and_bytes_are_read_with_their_units() -> None:
    resources = ResourceSpec.parse("cpu=250m, memory=4096Mi")
    assert resources.cpu == 0.25
    assert resources.memory == 4 * 1024**3
    assert ResourceSpec.parse("memory=2G").memory == 2 * 10**9
    assert ResourceSpec.parse("memory=1.5Gi").memory == 3 * 1024**3 // 2


def test_gpu_and_disk_are_short_for_their_kubernetes_names() -> None:
    resources = ResourceSpec.parse("gpu=2,disk=1Gi,example.com/fpga=1")
    assert resources.gpu == 2
    assert dict(resources.extended) == {"nvidia.com/gpu": 2, "ephemeral-storage": 1024**3, "example.com/fpga": 1}


@pytest.mark.parametrize("text", ["cpu=1,memory=4096Mi", "cpu=0.25", "memory=1000", "cpu=2,nvidia.com/gpu=1", ""])
def test_the_text_of_resources_reads_back_as_itself(text: str) -> None:
    assert str(ResourceSpec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("cpu=1,mem=4Gi", "unknown resource 'mem'", "Did you mean memory?"),
        ("memory=4096MB", "unknown unit 'MB'", "memory=4096Mi"),
        ("memory=4g", "unknown unit 'g'", "memory=4Gi"),
        ("cpu=lots", "cpu=lots", "0.5"),
        ("cpu=0", "cpu=0", "0.5"),
        ("memory=0", "memory=0", "4096Mi"),
        ("gpu=half", "not a whole number", "nvidia.com/gpu=1"),
        ("gpu=1,nvidia.com/gpu=1", "gives nvidia.com/gpu twice", "Keep one"),
        ("cpu=1,cpu=2", "gives cpu twice", "Keep one"),
        ("4096Mi", "'4096Mi' instead of name=value", "name=value"),
    ],
)
def test_a_wrong_resource_is_named_with_a_remedy(text: str, what: str, remedy: str) -> None:
    with pytest.raises(Invalid) as caught:
        ResourceSpec.parse(text)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_mapping_means_the_same_as_the_text() -> None:
    assert ResourceSpec.parse({"cpu": 2, "memory": "1Gi"}) == ResourceSpec.parse("cpu=2,memory=1Gi")


def test_a_request_is_lowered_to_a_limit_only_where_it_is_above() -> None:
    request = ResourceSpec.parse("cpu=1,memory=4096Mi")
    assert str(request.at_most(ResourceSpec.parse("cpu=2,memory=1Gi"))) == "cpu=1,memory=1024Mi"


def test_several_volumes_are_read() -> None:
    volumes = read_volumes("host_path=/a,mount_path=/x,type=Directory;claim_name=c,mount_path=/y,sub_path=s")
    assert volumes == (
        VolumeSpec(host_path="/a", mount_path="/x", type="Directory"),
        VolumeSpec(claim_name="c", mount_path="/y", sub_path="s"),
    )
    assert read_volumes([v.as_dict() for v in volumes]) == volumes


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mount_path=/data", "one of host_path and claim_name"),
        ("host_path=/d,claim_name=c,mount_path=/data", "one of host_path and claim_name"),
        ("host_path=/d", "without an absolute mount_path"),
        ("host_path=/d,mount_path=data", "without an absolute mount_path"),
        ("host=/d,mount_path=/data", "unknown key 'host'"),
        ("host_path=/d,mount_path=/data,type=Folder", "type 'Folder'"),
        ("host_path=/d,mount_path=/x;host_path=/e,mount_path=/x", "two volumes at /x"),
    ],
)
def test_a_wrong_volume_is_named(text: str, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        read_volumes(text)


@pytest.mark.parametrize(
    ("text", "name", "share"),
    [("low", "low", 1.0), ("0.5", "high", 0.5), ("high=0.25", "high", 0.25), ("my-class", "my-class", 1.0)],
)
def test_a_priority_is_a_class_or_a_share_of_high_ones(text: str, name: str, share: float) -> None:
    assert PrioritySpec.parse(text) == PrioritySpec(name, share)


@pytest.mark.parametrize("text", ["high=2", "1.5", "High Priority", "high=half"])
def test_a_wrong_priority_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        PrioritySpec.parse(text)
