#!/usr/bin/env bash
# Runs the tests that need a Kubernetes cluster or a Docker engine (those marked `kubernetes` and `docker`; the latter
# are skipped where no engine answers).
#
#   scripts/test_k8s.sh [--short] [--context NAME] [pytest arguments]
#
# --short leaves those out that take minutes each (marked `long`): tutorials, and whole jobs from images.
#
# Which cluster, in this order:
#   1. the kubeconfig context NAME (also: ELASTICDL_K8S_CONTEXT=NAME); it must be reachable;
#   2. the current context of the kubeconfig, if it is reachable;
#   3. the cluster that ../shared/kube/cluster starts on this machine, if that is there; it is stopped afterwards.
#
# The tests make namespaces of their own and remove them. Their pods run the image ELASTICDL_K8S_IMAGE (with sh, mkfifo
# and python3; python:3.11-slim by default) with the pull policy ELASTICDL_K8S_PULL (IfNotPresent by default). The cluster
# of ../shared/kube, started here or before, has an image of its own, and pulls none.
# PYTHON is the Python that has ElasticDL and its development tools.
# Exit code 2: no cluster is there to test on; 69: this machine cannot run one; otherwise pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
local_cluster=../shared/kube/cluster
context=${ELASTICDL_K8S_CONTEXT:-}
marks="kubernetes or docker"
jobs_at_once=() # long tests drain and fill the node
if [ "${1:-}" = --short ]; then
  marks="($marks) and not long"
  jobs_at_once=(-n 2 --dist loadfile)
  shift
fi
if [ "${1:-}" = --context ]; then
  context=${2:?--context needs a name}
  shift 2
fi

say() { echo "test-k8s: $*"; }
reachable() { kubectl ${context:+--context="$context"} get --raw /readyz --request-timeout=5s >/dev/null 2>&1; }

started=
stop_cluster() {
  if [ -n "$started" ]; then
    say "stopping the cluster that was started for these tests"
    "$local_cluster" down
  fi
}
trap stop_cluster EXIT

# The first process of that cluster's pods may be a `sleep` that ignores SIGTERM. Then each pod takes 10 s longer to
# end, its kubelet forgets how the container ended, and removes the pod after up to a minute.
let_pods_end() {
  local slow='["/bin/busybox","sleep","2147483647"]'
  [ "$(docker image inspect -f '{{json .Config.Entrypoint}}' pause:local 2>/dev/null)" = "$slow" ] || return 0
  docker build -q -t pause:local - >/dev/null 2>&1 <<'EOF'
FROM pause:local
ENTRYPOINT ["/bin/busybox", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"]
EOF
}

if ! command -v kubectl >/dev/null && [ ! -x "$local_cluster" ]; then
  say "there is no kubectl; install it and point KUBECONFIG at a cluster"
  exit 2
elif [ -n "$context" ]; then
  reachable || { say "the context $context is not reachable; see: kubectl --context=$context get --raw /readyz"; exit 2; }
  say "using the context $context"
elif reachable; then
  say "using the current context, $(kubectl config current-context)"
elif [ -x "$local_cluster" ]; then
  say "no cluster is reachable; starting $local_cluster (a minute or two the first time)"
  started=yes
  printed=$("$local_cluster" up 2>&1 | tee /dev/stderr) || { say "it cannot be started on this machine"; exit 69; }
  KUBECONFIG=${printed##*KUBECONFIG=}  # its last words
  export KUBECONFIG
  reachable || { say "the cluster was started and is not reachable"; exit 69; }
  [[ ${KUBE_VERSION:-1.20} != 1.20* ]] || let_pods_end || say "pods of this cluster end slowly"
else
  say "no cluster is reachable, and there is no $local_cluster to start one; name a context: $0 --context NAME"
  exit 2
fi

export ELASTICDL_K8S=1 ELASTICDL_K8S_CONTEXT="$context"
own_image=debian-python:bookworm
has() { kubectl ${context:+--context="$context"} get nodes -o 'jsonpath={..images[*].names[*]}' | grep -w "$1"; }
if [ -n "$started" ] || has "$own_image" >/dev/null; then
  export ELASTICDL_K8S_IMAGE=${ELASTICDL_K8S_IMAGE:-$own_image} ELASTICDL_K8S_PULL=${ELASTICDL_K8S_PULL:-Never}
fi
if [ $# -gt 0 ]; then
  "$python" -m pytest -q -m "$marks" "$@"
  exit
fi
# First the tests whose pods only wait, four files at a time; then one that fills the node; then whole jobs.
waiting=(tests/cluster tests/cli tests/seeds tests/kubernetes/test_{submission,keeper,lease}.py)
fills=tests/cluster/test_kubernetes.py::test_the_scheduler_takes_a_pod_away_for_one_of_higher_priority
jobs=()
for file in tests/kubernetes/test_*.py; do
  [[ " ${waiting[*]} " == *" $file "* ]] || jobs+=("$file")
done
code=0
"$python" -m pytest -q -m "$marks" -n 4 --dist loadfile --deselect="$fills" "${waiting[@]}" || code=$?
"$python" -m pytest -q -m "$marks" "$fills" || code=$?
"$python" -m pytest -q -m "$marks" "${jobs_at_once[@]}" "${jobs[@]}" || code=$?
exit $code
