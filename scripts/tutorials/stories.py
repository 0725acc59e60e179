"""The steps of each tutorial."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shell import Shell

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0  # for a job's pods, with images on the node
JOB_SECONDS = 1200.0


@dataclass(frozen=True)
class Stage:
    """Where a tutorial is played."""

    shell: Shell
    base_image: str  # of the image with the models
    namespace: str
    scale: float  # factor for the CPU and memory that pods request
    dev_image: str = "elasticdl:dev"
    mounts: str = ""  # for containers without Kubernetes: where the data is, if not in the image
    stand_in: str = ""  # for nginx, where the cluster has none

    @property
    def n(self) -> str:
        """The namespace option for kubectl."""
        return "" if self.namespace == "default" else f" -n {self.namespace}"

    @property
    def flag(self) -> str:
        """The namespace flag for elasticdl, as the last line of a long command."""
        return f" \\\n {self.word}" if self.word else ""

    @property
    def word(self) -> str:
        return "" if self.namespace == "default" else f" --namespace={self.namespace}"

    def request(self, cpu: float, memory_mi: int) -> str:
        return f"cpu={cpu * self.scale:g},memory={memory_mi * self.scale:.0f}Mi"

    def with_stand_in(self, manifest: str, indent: int) -> str:
        """The manifest with the image that replaces nginx, which ends on SIGTERM."""
        if not self.stand_in:
            return manifest
        image = f"image: {self.stand_in}\n{' ' * indent}command: [sh, -c, \"trap 'exit 0' TERM; sleep 100000 & wait\"]"
        manifest = manifest.replace("imagePullPolicy: Always", "imagePullPolicy: Never")
        return manifest.replace("image: nginx:1.7.9", image)

    def until_pods(self, enough: Callable[[list[list[str]]], bool], selector: str = "") -> None:
        """Wait until the pods of the namespace are like this; each is the words of its line."""
        pods: dict[str, list[str]] = {}

        def changed(seen: str) -> bool:
            event, *words = seen.splitlines()[-1].split()
            pods[words[0]] = words
            if event == "DELETED":
                del pods[words[0]]
            return enough(list(pods.values()))

        watch = f"kubectl get pods{self.n}{selector} --no-headers -w --output-watch-events"
        self.shell.until(watch, changed, START_SECONDS)

    def running(self, job: str, count: int) -> None:
        """Wait until this many pods of a job are ready, including its keeper."""
        self.until_pods(
            lambda pods: sum(pod[1] == "1/1" and pod[2] == "Running" for pod in pods) == count == len(pods),
            f" -l elasticdl-job-name={job}",
        )

    def logged(self, pod: str, what: str, seconds: float = JOB_SECONDS) -> None:
        """Wait until a pod's log has a matching line."""
        self.shell.until(f"kubectl logs{self.n} -f {pod}", lambda seen: re.search(what, seen) is not None, seconds)

    def pods(self, job: str) -> str:
        return self.shell.type(f"kubectl get pods{self.n}", show=lambda text: _of(text, job))

    def ended(self, job: str) -> None:
        """Wait until all of the job is gone but its master's pod, which has the result."""
        self.shell.until(
            f"kubectl get configmap{self.n} elasticdl-{job} --no-headers -w --output-watch-events",
            lambda seen: "DELETED" in seen or "not found" in seen,
            JOB_SECONDS,
        )
        self.shell.quietly(f"kubectl wait{self.n} --for=delete pod/elasticdl-{job}-keeper --timeout=180s")

    def clear(self, *jobs: str) -> None:
        """Remove these jobs and the other objects of a tutorial."""
        for job in jobs:
            self.shell.quietly(f"kubectl delete{self.n} configmap elasticdl-{job} --ignore-not-found")
            self.shell.quietly(f"kubectl delete{self.n} pod -l elasticdl-job-name={job} --wait=true")
        if jobs:
            for thing in ("deployment/test-nginx", "pod/my-pod", "pvc/fileserver-claim"):
                self.shell.quietly(f"kubectl delete{self.n} {thing} --ignore-not-found")
            self.shell.quietly(f"kubectl delete pv/{self.namespace}-fileserver --ignore-not-found")


def _of(text: str, job: str) -> str:
    """From a list of pods, the header and the lines of this job and of the Deployment."""
    head, *rest = text.splitlines()
    return "\n".join([head, *(line for line in rest if f"-{job}-" in line or line.startswith("test-nginx"))])


def _rights(stage: Stage) -> None:
    stage.shell.say("Grant the masters of jobs their rights, once per namespace:")
    file = f"{ROOT}/manifests/elasticdl-rbac.yaml"
    if stage.namespace == "default":
        stage.shell.type(f"kubectl apply -f {file}")
    else:
        renamed = f"sed 's/namespace: default/namespace: {stage.namespace}/' {file}"
        stage.shell.type(f"{renamed} | kubectl apply -n {stage.namespace} -f -")


def one_node(stage: Stage) -> None:
    """000: both strategies on a small cluster."""
    shell = stage.shell
    _rights(stage)
    shell.say("Build an image with the models. The engine is the cluster's own, so there is no push:")
    shell.type(f"elasticdl zoo init --base_image={stage.base_image} --model_zoo=model_zoo")
    shell.type("elasticdl zoo build --image=elasticdl:mnist_ps .", show=_ends)
    shell.say("The old tutorial builds another image for all-reduce; here one image is enough.")
    shell.type("docker tag elasticdl:mnist_ps elasticdl:mnist_allreduce")
    shell.say("## With a parameter server")
    sizes = "\n".join(
        f'  --{role}_resource_request="{stage.request(cpu, 1024)}" \\\n'
        f'  --{role}_resource_limit="cpu=1,memory=2048Mi" \\'
        for role, cpu in (("master", 0.2), ("worker", 0.4), ("ps", 0.2))
    )
    shell.type(f"""elasticdl train \\
  --image_name=elasticdl:mnist_ps \\
  --model_zoo=model_zoo \\
  --model_def=mnist.mnist_functional_api.custom_model \\
  --training_data=/data/mnist/train \\
  --validation_data=/data/mnist/test \\
  --num_epochs=2 \\
{sizes}
  --minibatch_size=64 \\
  --num_minibatches_per_task=2 \\
  --num_ps_pods=1 \\
  --num_workers=1 \\
  --evaluation_steps=50 \\
  --job_name=test-mnist \\
  --image_pull_policy=Never \\
  --volume="host_path=/data,mount_path=/data" \\
  --distribution_strategy=ParameterServerStrategy{stage.flag}""")
    stage.running("test-mnist", 4)
    stage.pods("test-mnist")
    stage.logged("elasticdl-test-mnist-master", r"Evaluation metrics\[v=50\]")
    shell.type(f"elasticdl status test-mnist{stage.word}")
    stage.ended("test-mnist")
    shell.say("After the job has ended, its master's pod remains, with the log:")
    stage.pods("test-mnist")
    shell.type(f'kubectl logs{stage.n} elasticdl-test-mnist-master | grep "Evaluation"')
    shell.say("## With all-reduce")
    shell.type(f"""elasticdl train \\
  --image_name=elasticdl:mnist_allreduce \\
  --model_zoo=model_zoo \\
  --model_def=mnist.mnist_functional_api.custom_model \\
  --training_data=/data/mnist/train \\
  --num_epochs=1 \\
  --master_resource_request="{stage.request(0.2, 1024)}" \\
  --master_resource_limit="cpu=1,memory=2048Mi" \\
  --worker_resource_request="{stage.request(0.4, 1024)}" \\
  --worker_resource_limit="cpu=1,memory=2048Mi" \\
  --minibatch_size=64 \\
  --num_minibatches_per_task=2 \\
  --num_workers=2 \\
  --job_name=test-mnist-allreduce \\
  --image_pull_policy=Never \\
  --volume="host_path=/data,mount_path=/data" \\
  --distribution_strategy=AllreduceStrategy{stage.flag}""")
    stage.running("test-mnist-allreduce", 4)
    stage.pods("test-mnist-allreduce")
    stage.logged("elasticdl-test-mnist-allreduce-worker-0", "steps = 100")
    shell.type(f"kubectl logs{stage.n} elasticdl-test-mnist-allreduce-worker-0 | grep Loss")
    stage.ended("test-mnist-allreduce")
    stage.pods("test-mnist-allreduce")


def by_hand(stage: Stage) -> None:
    """002: master and worker in two containers, without Kubernetes."""
    shell = stage.shell
    data = "and a few digits, mounted where the image has all of MNIST" if stage.mounts else "and the data"
    shell.say(f"Start the master in a terminal (without `-it` here), in the development image with the tree {data}:")
    run = f"docker run --net=host --rm {stage.mounts}{stage.dev_image}"
    shell.begin(f"""{run} \\
    bash -c "python -m elasticdl.python.elasticdl.master.main \\
          --model_file=elasticdl/python/examples/mnist_functional_api.py \\
          --job_name=test \\
          --training_data_dir=/data/mnist/train \\
          --evaluation_data_dir=/data/mnist/test \\
          --records_per_task=100 \\
          --num_epochs=2 \\
          --codec_type=tf_example \\
          --grads_to_wait=2 \\
          --minibatch_size=10 \\
          --log_level=INFO\"""")
    shell.say("Start a worker in another terminal:")
    shell.type(
        f"""{run} \\
    bash -c "python -m elasticdl.python.elasticdl.worker.main \\
          --worker_id=1 \\
          --model_file=elasticdl/python/examples/mnist_functional_api.py \\
          --codec_type=tf_example \\
          --master_addr=localhost:50001 \\
          --log_level=INFO\"""",
        seconds=JOB_SECONDS,
        show=_ends,
    )
    shell.say("The first terminal shows:")
    shell.finish(JOB_SECONDS)


def coming_and_going(stage: Stage) -> None:
    """001: a worker is deleted; a Deployment of high priority takes the room of workers, and gives it back."""
    shell, job = stage.shell, "test-mnist"
    _rights(stage)
    shell.say("Create two priorities:")
    shell.type(f"kubectl apply -f {ROOT}/manifests/high.yaml -f {ROOT}/manifests/low.yaml")
    _file_server(stage)
    shell.say(
        "Submit the job: master and servers have a high priority, workers a low one. Its image is already on the "
        "node, so the pull policy is Never."
    )
    sizes = "\n".join(
        f'  --{role}_resource_request="{stage.request(2, 2048)}" \\\n'
        f'  --{role}_resource_limit="cpu=2,memory=2048Mi" \\\n'
        f"  --{role}_pod_priority={priority} \\"
        for role, priority in (("master", "high"), ("worker", "low"), ("ps", "high"))
    )
    shell.type(f"""elasticdl train \\
  --image_name=elasticdl:mnist_ps \\
  --model_zoo=model_zoo \\
  --model_def=mnist_functional_api.mnist_functional_api.custom_model \\
  --training_data=/data/mnist/train \\
  --validation_data=/data/mnist/test \\
  --num_epochs=5 \\
{sizes}
  --minibatch_size=64 \\
  --num_minibatches_per_task=64 \\
  --num_ps_pods=2 \\
  --num_workers=4 \\
  --evaluation_steps=200 \\
  --grads_to_wait=1 \\
  --job_name=test-mnist \\
  --log_level=INFO \\
  --image_pull_policy=Never \\
  --volume="mount_path=/data,claim_name=fileserver-claim" \\
  --distribution_strategy=ParameterServerStrategy{stage.flag}""")
    stage.running(job, 8)
    stage.pods(job)
    stage.logged("elasticdl-test-mnist-worker-0", "Loss = ")
    shell.type(f'kubectl logs{stage.n} elasticdl-test-mnist-worker-0 | grep "Loss"')
    shell.say("## A worker is deleted\n\nIts replacement starts at once, with the next number; the job does not stop.")
    shell.type(f"kubectl delete pod{stage.n} elasticdl-test-mnist-worker-0")
    stage.running(job, 8)
    stage.pods(job)
    shell.say("## Pods of higher priority need the room")
    _nginx(stage)
    stage.until_pods(lambda pods: any(_is(pod, f"elasticdl-{job}-worker", "Terminating") for pod in pods))
    stage.pods(job)
    stage.until_pods(
        lambda pods: (
            sum(_is(pod, "test-nginx", "Running") for pod in pods) == 5
            and not any(_is(p, "", "Terminating") for p in pods)
        )
    )
    stage.pods(job)
    shell.say("The job continues with the remaining workers; the replacements wait for room.")
    shell.type(f"kubectl scale{stage.n} deployment.v1.apps/test-nginx --replicas=1")
    stage.until_pods(
        lambda pods: (
            sum(_is(pod, f"elasticdl-{job}-worker", "Running") for pod in pods) == 4
            and not any(_is(p, "", "Terminating") for p in pods)
        )
    )
    shell.say("The room is free again, and the waiting workers start.")
    stage.pods(job)
    shell.type(f"elasticdl status {job}{stage.word}")
    shell.say("Stop the job, with a checkpoint.")
    shell.type(f"elasticdl stop {job}{stage.word}")


def _is(pod: list[str], start: str, state: str) -> bool:
    return pod[0].startswith(start) and pod[2] == state


FILE_SERVER = """
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {namespace}-fileserver
spec:
  accessModes: [ReadWriteMany]
  capacity: {{storage: 1Gi}}
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{name: fileserver-claim, namespace: {namespace}}}
  local: {{path: {folder}}}
  nodeAffinity:
    required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/os, operator: Exists}}]}}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: fileserver-claim
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: {namespace}-fileserver
  resources: {{requests: {{storage: 1Gi}}}}
"""


def _file_server(stage: Stage) -> None:
    """The claim of the tutorial, and the data on it."""
    shell = stage.shell
    (shell.folder.parent / "fileserver").mkdir()
    text = FILE_SERVER.format(namespace=stage.namespace, folder=shell.folder.parent / "fileserver")
    (shell.folder / "fileserver-claim.yaml").write_text(text)
    shutil.copytree("/data/mnist", shell.folder / "data" / "mnist")
    shell.say("Create a claim with the data. Here the file server is a directory of the node.")
    shell.type(f"kubectl create{stage.n} -f fileserver-claim.yaml")
    pod = (ROOT / "manifests" / "examples" / "my-pod.yaml").read_text()
    (shell.folder / "my-pod.yaml").write_text(stage.with_stand_in(pod, indent=6))
    shell.type(f"kubectl create{stage.n} -f my-pod.yaml")
    shell.type(f"kubectl wait{stage.n} --for=condition=Ready pod/my-pod --timeout=180s")
    shell.type(f"kubectl cp{stage.n} data/mnist my-pod:/data")


def _nginx(stage: Stage) -> None:
    """The tutorial's Deployment, scaled like the job, with an image that the cluster has."""
    text = (ROOT / "manifests" / "examples" / "nginx.yaml").read_text()
    text = re.sub(r"cpu: 2\b", f"cpu: {2 * stage.scale:g}", text)
    text = re.sub(r"memory: 2048Mi", f"memory: {2048 * stage.scale:.0f}Mi", text)
    (stage.shell.folder / "nginx.yaml").write_text(stage.with_stand_in(text, indent=10))
    stage.shell.type(f"kubectl create{stage.n} -f nginx.yaml")


def _ends(text: str) -> str:
    """The beginning and the end of a long text."""
    lines = text.splitlines()
    return "\n".join([*lines[:3], "…", *lines[-3:]]) if len(lines) > 8 else text


# Title, factor for the resources that the old tutorial requests, and the story.
STORIES: dict[str, tuple[str, float, Callable[[Stage], None]]] = {
    "one-node": ("MNIST on a small cluster: a parameter server, and all-reduce", 1.0, one_node),
    "coming-and-going": ("Workers that are deleted, and room that is taken and given back", 0.1, coming_and_going),
    "by-hand": ("A master and a worker started by hand", 1.0, by_hand),
}
