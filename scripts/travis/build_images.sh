#!/usr/bin/env bash
# Builds the images of ElasticDL itself: to run jobs (elasticdl:runtime) and to develop in (elasticdl:dev, and the names
# that tutorials use for it).
# usage: [BASE_IMAGE=…] [EXTRA_PYPI_INDEX=…] [GEN_DATA=yes] [DATA_IMAGE=…] scripts/travis/build_images.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

base="${BASE_IMAGE:-python:3.11-slim}"
arguments=(
  --build-arg BASE_IMAGE="$base"
  --build-arg EXTRA_PYPI_INDEX="${EXTRA_PYPI_INDEX:-}"
  --build-arg GEN_DATA="${GEN_DATA:-no}"
  --build-arg DATA_IMAGE="${DATA_IMAGE:-$base}"
  --label elasticdl.tree="$(git rev-parse HEAD:elasticdl 2>/dev/null || true)"  # which the tests compare with theirs
)
docker build "${arguments[@]}" -f elasticdl/docker/Dockerfile --target runtime -t elasticdl:runtime .
docker build "${arguments[@]}" -f elasticdl/docker/Dockerfile \
  -t elasticdl:dev -t elasticdl:dev_allreduce -t elasticdl/elasticdl:dev .
