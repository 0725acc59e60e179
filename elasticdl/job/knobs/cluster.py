"""Knobs of where a job runs, its images and its environment."""

from __future__ import annotations

from typing import ClassVar, Literal

from elasticdl.job.knob import KnobGroup, knob
from elasticdl.job.resources import Volumes
from elasticdl.job.values import DnsLabel, Envs, Image, JobName, JsonObject, Pattern, Port, Text

NO_IMAGE = "processes on this machine use no image"
NO_CLUSTER = "processes on this machine run outside any cluster"


class ClusterKnobs(KnobGroup):
    title: ClassVar[str] = "Job, cluster and images"

    job_name: JobName = knob(
        None,
        "The name of the job, which pods and processes are named after. Generated when not given.",
        metavar="NAME",
        common=True,
    )
    runtime: Literal["local", "kubernetes"] | None = knob(
        None,
        "Where the job runs: as processes on this machine or as pods. Pods by default when an image is given.",
        common=True,
    )
    image_name: Image = knob(
        None,
        "The container image of the job's pods.",
        metavar="IMAGE",
        common=True,
        local=NO_IMAGE,
    )
    worker_image: Image = knob(None, "The image of the workers, if different.", metavar="IMAGE", local=NO_IMAGE)
    ps_image: Image = knob(None, "The image of the parameter servers, if different.", metavar="IMAGE", local=NO_IMAGE)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = knob(
        "Always", "When Kubernetes pulls the images.", local=NO_IMAGE
    )
    restart_policy: Literal["Never", "OnFailure", "Always"] = knob(
        "Never",
        "Whether Kubernetes itself restarted the containers of workers, in older versions.",
        gone="the master replaces lost and crashed workers itself, and counts crashes: --relaunch_on_worker_failure",
    )
    namespace: DnsLabel = knob(
        None,
        "The Kubernetes namespace of the job. The default is the one that kubectl uses: the context's, inside a pod "
        "the pod's, else default.",
        metavar="NAME",
        local=NO_CLUSTER,
    )
    volume: Volumes = knob(
        (),
        "Volumes mounted into every pod: host_path=,mount_path=[,type=][,sub_path=] or "
        "claim_name=,mount_path=[,sub_path=].",
        metavar='"K=V,K=V;K=V,K=V"',
        local="nothing is mounted; processes on this machine see its files directly",
    )
    envs: Envs = knob({}, "Environment variables of every replica.", metavar='"K=V,K=V"', separator=",")
    master_port: Port = knob(0, "The port of the master; 0 lets the system choose one. In a pod it is always 50001.")
    populate_env_names: Pattern = knob(
        None,
        "Which environment variables the master passes to the pods it starts.",
        metavar="REGEX",
        local="processes on this machine inherit the whole environment",
    )
    cluster_spec: Text = knob(
        None,
        "A Python file with functions that change the pods before they are created.",
        metavar="FILE",
        local=NO_CLUSTER,
    )
    cluster_spec_json: JsonObject = knob(
        None, "A JSON object that is merged into every pod.", metavar="JSON", local=NO_CLUSTER
    )
    yaml: Text = knob(
        None,
        "Write the job's Kubernetes objects to this file, or print them with -, instead of submitting the job.",
        metavar="FILE",
    )
    force_use_kube_config_file: bool = knob(False, "Use the kubeconfig file even inside a cluster.", local=NO_CLUSTER)
    extra_pypi_index: Text = knob(
        None,
        "Another package index for the image, in older versions.",
        metavar="URL",
        gone="images are built by elasticdl zoo, which takes --extra_pypi_index",
    )
